"""Real runtimes under their own profilers, on tiny networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_networks import INPUTS, apply, torch_artifact

from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.errors import InputError, RunnerError
from optcli.measure import profiling
from optcli.measure.profiling import Profile
from optcli.measure.profiling.profiler import OPAQUE
from optcli.results import ArtifactSummary
from optcli.settings.postprocess import PostprocessSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return torch_artifact(tmp_path_factory.mktemp("network"), "Conv")


@pytest.fixture(scope="module")
def onnx(network: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    from optcli.passes.export_onnx import ExportOnnx

    return apply(ExportOnnx(), network, tmp_path_factory.mktemp("onnx") / "made", INPUTS["Conv"])


def images(folder: Path, size: int = 16) -> DataSettings:
    from PIL import Image

    folder.mkdir()
    for number in range(6):
        Image.new("RGB", (40, 40), (number * 9, 90, 200)).save(folder / f"{number}.png")
    prepare = {"resize": [size, size], "scale": 1 / 255}
    return DataSettings.model_validate({"source": f"imagefolder:{folder}", "prepare": prepare})


def measured(artifact: Artifact, runner: str, place: Path, batch_size: int = 2, **more: Any) -> Profile:
    summary = ArtifactSummary(key="k", format=artifact.format, path="v", precision="fp32", size_bytes=1)
    request = profiling.ProfileRequest(
        variant="v",
        recipe="r",
        summary=summary,
        artifact=artifact,
        runner=runner,
        options={"threads": 1, **more.pop("options", {})},
        inputs=tuple(INPUTS["Conv"]),
        batch_size=batch_size,
        folder=place,
        **{"trace": place / "trace.json", **more},
    )
    return profiling.measure(request, place / "log")


def check(found: Profile) -> list[dict[str, Any]]:
    """What holds for every runtime; gives the trace's events."""
    assert found.operators_ms is not None
    assert found.outside_ms is not None
    assert found.operators_ms == pytest.approx(sum(each.time_ms for each in found.operators))
    shares = sum(each.share for each in found.operators)
    assert shares == pytest.approx(found.operators_ms / found.whole_ms)
    # What is said of a call comes to the call, whatever the machine does beside it.
    explained = found.operators_ms + found.outside_ms
    assert found.unexplained_ms is not None
    assert explained + found.unexplained_ms == pytest.approx(found.stage_ms("compute"))
    assert [each.time_ms for each in found.operators] == sorted(
        (each.time_ms for each in found.operators), reverse=True
    )
    assert 1 <= len(found.findings) <= 3
    assert found.trace is not None
    record = json.loads(Path(found.trace).read_text())
    for event in record["traceEvents"]:
        assert event["ph"] != "X" or {"name", "ts", "dur", "pid", "tid"} <= set(event)
    return record["traceEvents"]


def types(found: Profile) -> set[str]:
    return {each.type for each in found.operators}


def test_onnxruntime_with_real_samples(onnx, tmp_path):
    found = measured(onnx, "onnxruntime", tmp_path, data=images(tmp_path / "images"))
    events = check(found)
    assert {"Conv", "Gemm"} <= types(found)
    assert {each.precision for each in found.operators} == {"fp32"}
    assert found.inputs == "real samples"
    assert [each.name for each in found.stages] == [
        "read", "prepare", "copy in", "compute", "copy out",
    ]  # fmt: skip
    assert found.runner["provider"] == "CPUExecutionProvider"
    assert sum(event["name"] == "model_run" for event in events) == found.calls


def test_what_follows_the_model_is_a_stage_too(onnx, tmp_path):
    (tmp_path / "after.py").write_text(
        "def decode(outputs, meta):\n    return outputs['output'].argmax()\n"
    )
    data = images(tmp_path / "images")
    after = PostprocessSettings.model_validate({"python": "after.py:decode"})
    found = measured(onnx, "onnxruntime", tmp_path, data=data, postprocess=after)
    assert found.stages[-1].name == "post-process"
    assert found.stages[-1].time_ms > 0


def test_openvino(onnx, tmp_path):
    found = measured(onnx, "openvino", tmp_path)
    check(found)
    assert "Convolution" in types(found)
    assert found.statistic == "mean"
    assert found.inputs == "random"
    assert [each.name for each in found.stages] == ["copy in", "compute", "copy out"]


@pytest.mark.long
def test_eager_torch(network, tmp_path):
    found = measured(network, "torch", tmp_path)
    events = check(found)
    convolutions = [each for each in found.operators if each.name.startswith("aten::conv2d")]
    assert len(convolutions) == 4
    assert {event["name"] for event in events} >= {"optcli copy in", "optcli compute", "aten::conv2d"}


@pytest.mark.long
def test_torchscript(network, tmp_path):
    from optcli.passes.torchscript import Torchscript

    made = apply(Torchscript(), network, tmp_path / "made", INPUTS["Conv"])
    found = measured(made, "torchscript", tmp_path)
    check(found)
    assert any("conv" in kind for kind in types(found))


@pytest.mark.long
def test_a_package_of_aot_inductor_is_said_to_be_one_piece(network, tmp_path):
    from optcli.passes.aot_inductor import AotInductor

    made = apply(AotInductor(strict=False), network, tmp_path / "made", INPUTS["Conv"])
    found = measured(made, "aoti", tmp_path)
    check(found)
    assert OPAQUE in types(found)
    assert any("one piece" in note for note in found.notes)


def test_data_that_do_not_fit_are_named(onnx, tmp_path):
    data = images(tmp_path / "images", size=8)
    with pytest.raises(InputError, match="found shape"):
        measured(onnx, "onnxruntime", tmp_path, data=data)


def test_a_trace_that_cannot_be_written(onnx, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="trace cannot be written"):
        measured(onnx, "onnxruntime", tmp_path, trace=tmp_path / "file" / "trace.json")


def test_an_artifact_that_cannot_be_loaded(onnx, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"nothing")
    gone = Artifact("k", onnx.format, broken, "fp32", 0, "d", onnx.facts)
    with pytest.raises(RunnerError):
        measured(gone, "onnxruntime", tmp_path)
