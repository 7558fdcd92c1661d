import pytest
from plain_network import BAR, SPEC, Network, Samples

from optcli import accuracy, data, runners, workers
from optcli.accuracy import EvaluationRequest, process
from optcli.artifact import Artifact, Format
from optcli.observer import Silent


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """Evaluate a function of the inputs over samples, in this process."""
    Network.sizes.clear()
    monkeypatch.setattr(runners, "find", lambda name: Network)

    def run(function, request, gives, *, environment, listener, **_):
        name = function.removeprefix("optcli.accuracy.process:")
        assert "OMP_NUM_THREADS" in environment

        class Channel:
            @staticmethod
            def send(message):
                if listener is not None:
                    assert isinstance(message, listener.kind)
                    listener.hear(message)

        getattr(process, name)(request, Channel)

    monkeypatch.setattr(workers, "run", run)

    def evaluated(
        network=lambda x: {"y": x},
        samples=None,
        settings=BAR,
        spec=SPEC,
        observer=None,
        elsewhere=None,
        **more,
    ):
        Network.function = staticmethod(network)
        monkeypatch.setattr(data, "open", lambda *_: samples if samples is not None else Samples())
        out = tmp_path / f"evaluation-{len(list(tmp_path.iterdir()))}"
        artifact = Artifact("k", Format.ONNX, tmp_path, "fp32", 1, "d")
        settings_of_data = data.DataSettings(source="npz:x.npz")
        request = EvaluationRequest(
            artifact=artifact,
            runner="network",
            options={},
            inputs=(spec,),
            data=settings_of_data,
            folder=tmp_path,
            settings=settings,
            out=out,
            feeds=(spec,),
            **more,
        )
        return accuracy.evaluate(request, observer or Silent(), elsewhere=elsewhere)

    return evaluated
