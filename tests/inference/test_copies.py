"""How many copies of the model share the cores: what is measured, and what is chosen."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optcli.inference import copies
from optcli.inference.copies import Split
from optcli.inference.probe import Timed
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner

MANY = 1000


def built(runner: Any) -> Any:
    """As much of a built variant as the choice reads."""
    return SimpleNamespace(runner=runner, options=runner.model_dump(), name="v")


def timed(per_s: float, *, begins: float = 0.0, memory: int = 1) -> Timed:
    """One call after another for four seconds."""
    return Timed(tuple(begins + n / per_s for n in range(round(4 * per_s) + 1)), 1, memory)


def choose(
    monkeypatch: pytest.MonkeyPatch,
    rates: dict[int, float],
    *,
    cores: int = 4,
    shards: int = MANY,
    seconds: float = 100.0,
    memory: int = 1,
) -> Split:
    """The choice where each copy with so many threads makes `rates[threads]` calls a second."""

    def measure(_built: Any, _path: Path, split: Split, _size: int) -> list[Timed]:
        return [timed(rates[split.threads], memory=memory) for _ in range(split.copies)]

    monkeypatch.setattr(copies, "_timed", measure)
    monkeypatch.setattr(copies, "available_bytes", lambda: 100)
    return copies.measured(
        built(OnnxruntimeRunner(threads=4)),
        Path("report.json"),
        batch_size=8,
        cores=cores,
        shards=shards,
        seconds=seconds,
    )


def test_more_copies_are_taken_as_long_as_they_are_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    found = choose(monkeypatch, {4: 10.0, 2: 6.0, 1: 2.0})
    assert (found.copies, found.threads) == (2, 2)
    assert found.rates == pytest.approx({4: 80.0, 2: 96.0, 1: 64.0})
    # Slower by less than what one copy loses beside other processes.
    found = choose(monkeypatch, {4: 10.0, 2: 4.95, 1: 2.47})
    assert (found.copies, found.threads) == (4, 1)


@pytest.mark.parametrize(
    "more", [{"shards": 7}, {"memory": 30}, {"seconds": 20.0}], ids=["shards", "memory", "short"]
)
def test_one_copy_is_left_where_more_do_not_pay(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    found = choose(monkeypatch, {4: 10.0, 2: 9.0, 1: 8.0}, **more)
    assert found == Split(1, 4, {})


def test_only_the_time_counts_in_which_all_copies_compute() -> None:
    # The first one is alone for two seconds, in which it is four times as fast.
    ends = [n / 40 for n in range(80)] + [2 + n / 10 for n in range(21)]
    both = [Timed(tuple(ends), 1, 1), timed(10.0, begins=2.0)]
    assert copies.together(both, 8) == pytest.approx(160.0)
    assert copies.together([Timed((0.0, 1.0, 2.0), 50, 1)], 8) == pytest.approx(400.0)


def test_copies_do_not_keep_to_the_same_cores() -> None:
    one = built(OpenvinoRunner(threads=2))
    assert copies.options_of(one, Split(1, 2, {})) == one.options
    several = copies.options_of(one, Split(2, 1, {}))
    assert (several["threads"], several["pin_threads"]) == (1, False)
    assert "pin_threads" not in copies.options_of(built(OnnxruntimeRunner(threads=2)), Split(2, 1, {}))
