"""The log of a step, and the call beside it that repeats it."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

from optcli.pipeline import step
from optcli.pipeline.local_maker import begun_log


@dataclass(frozen=True)
class Asked:
    """A request of a worker."""

    number: int


def test_a_step_can_be_repeated_by_what_lies_beside_its_log(tmp_path, monkeypatch):
    store = SimpleNamespace(log_folder=lambda key: tmp_path / key)
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "log.txt").write_text("of an earlier try")
    call = SimpleNamespace(function="optcli.pipeline.step:doubled", request=Asked(21))
    log = begun_log(store, SimpleNamespace(key="k", call=call))
    assert not log.exists()
    recorded = json.loads((log.parent / "call.json").read_text())
    assert recorded == {"function": call.function, "message": {"number": 21}}

    @dataclass(frozen=True)
    class Repeated(Asked):
        out: object = None

    def doubled(request, channel):
        return 2 * request.number

    monkeypatch.setattr(step, "doubled", doubled, raising=False)
    monkeypatch.setattr(step.messages, "types_of", lambda function: (Repeated, int))
    monkeypatch.setattr(step.messages, "read", lambda kind, record: kind(**record))
    assert step.repeated(recorded, tmp_path) == 42
