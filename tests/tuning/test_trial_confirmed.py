"""A trial that looks faster is measured again, over fresh processes; one that does not is not."""

from types import SimpleNamespace
from typing import Any

import pytest

from optcli.results import Estimate
from optcli.results.tuning import Trial
from optcli.tuning.trials import Repairs

FIRST = Trial(number=0, label="as it is", options={}, operators=8, seconds=1.0)
TRIAL = Trial(number=1, label="", options={}, inside=True, operators=6, seconds=1.0)


@pytest.mark.parametrize(("first", "second", "asked"), [(1.3, 0.98, [3, 5]), (0.9, 1.3, [3])])
def test_what_looks_faster_must_be_so_again(
    monkeypatch: pytest.MonkeyPatch, first: float, second: float, asked: list[int]
) -> None:
    launches: list[int] = []

    def measured(_: Any, trial: Trial, __: Any, ___: str, count: int) -> Trial:
        launches.append(count)
        value = first if len(launches) == 1 else second
        ratio = Estimate(value=value, low=value - 0.01, high=value + 0.01)
        return trial.model_copy(update={"speedup": ratio})

    monkeypatch.setattr(Repairs, "_measured", measured)
    nothing: Any = SimpleNamespace()
    found = Repairs(nothing, nothing, "int8", 0)._timed(TRIAL, nothing, "int8.trial-1", FIRST)
    assert launches == asked
    assert not found.pays
    assert found.float_operators == 2
