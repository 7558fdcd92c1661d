"""How a search divides its time between trials and finalists."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_project import write_recipe

from optcli.recipe import Recipe, load
from optcli.results import Estimate
from optcli.results.tuning import TuningTrial
from optcli.tuning import search
from optcli.tuning.budget import SearchBudget
from optcli.tuning.display import Display
from optcli.tuning.space import Space
from optcli.tuning.starting import Study
from optcli.tuning.strategy import Strategy


@pytest.fixture
def plain_recipe(tmp_path: Path) -> Recipe:
    return load(write_recipe(tmp_path))


def reference(judging_s: float | None = 103.0, samples: int | None = 100) -> TuningTrial:
    """A network that takes half a second an image, as the baseline does."""
    return TuningTrial(
        number=0,
        label="float",
        why="",
        parameters={},
        passes=(),
        stage="inside",
        score=Estimate(value=1.0),
        judging_s=judging_s,
        samples=samples,
        seconds=120.0,
    )


def test_a_share_is_kept_where_judging_takes_little() -> None:
    for trial in (None, reference(judging_s=None), reference(judging_s=4.0)):
        assert SearchBudget(900.0, 100).final_s(trial) == 135.0
    assert SearchBudget(60.0).final_s(None) == 34.0, "the baseline and one finalist are launched"
    assert SearchBudget(30.0).final_s(None) == 20.0, "six tenths would be less than the least"
    assert SearchBudget(100.0).final_s(None) == 50.0, "half of it"
    assert SearchBudget(300.0).final_s(None) == 4 * 17.0, (
        "13 s for launching each, and 4 s for its calls"
    )
    assert SearchBudget(3600.0).final_s(None) == 150.0
    assert SearchBudget(300.0).slowed_by(0.5).final_s(None) == 4 * 30.0, "launching takes twice as long"
    assert SearchBudget(180.0).slowed_by(0.9).final_s(None) == 108.0, (
        "four times at most: the baseline and one"
    )
    assert SearchBudget(300.0).slowed_by(None) == SearchBudget(300.0)


def test_more_is_kept_for_many_evaluation_samples_and_never_more_than_half() -> None:
    assert SearchBudget(900.0, 100).final_s(reference()) == 4 * (50.0 + 17.0)
    assert SearchBudget(3600.0, 200).final_s(reference()) == 4 * (100.0 + 17.0)
    assert SearchBudget(900.0, 10_000).final_s(reference()) == 450.0
    assert SearchBudget(24.0, 10_000).final_s(reference()) == 20.0, "the least stays"


@pytest.mark.parametrize(
    ("evaluation", "left_s", "judged"),
    [
        (0, 450.0, 5),
        (100, 450.0, 5),
        (200, 450.0, 2),
        (300, 450.0, 1),
        (10_000, 450.0, 1),
        (100, 1.0, 1),
    ],
)
def test_as_many_finalists_as_can_be_judged_in_time(
    evaluation: int, left_s: float, judged: int
) -> None:
    assert SearchBudget(900.0, evaluation).finalists(left_s, reference(), 5) == judged


def test_a_minute_has_time_for_one_finalist() -> None:
    """Two of them and the baseline take 51 s: one minute had become 95 s on a busy machine."""
    for seconds, judged in ((60.0, 1), (120.0, 2), (900.0, 2)):
        assert SearchBudget(seconds).finalists(1.0, reference(judging_s=None), 5) == judged


def test_measuring_has_what_judging_leaves() -> None:
    three = [reference()] * 3
    assert SearchBudget(900.0, 100).measuring_s(450.0, reference(), three) == 450.0 - 4 * 63.0
    assert SearchBudget(900.0, 10_000).measuring_s(450.0, reference(), three[:1]) == 0.0
    assert SearchBudget(900.0).measuring_s(100.0, None, [None] * 5) == 22.0
    hurried = SearchBudget(900.0, 100).measuring_s(450.0, reference(), three, hurried=True)
    assert hurried == 4 * 8.0, "somebody waits for the answer"
    assert SearchBudget(900.0, 100).judged_s(reference(), three) == 4 * 63.0


def test_a_large_network_takes_longer_to_warm_up() -> None:
    """ResNet-50 on two cores: with its baseline and its INT8 it was launched and timed in 125 s."""
    large = reference(judging_s=None).model_copy(update={"p50_ms": {1: 19.4, 8: 154.9}})
    each_s = 17.0 + 130 * 0.1743
    assert 3 * each_s == pytest.approx(125.0, rel=0.06)
    assert SearchBudget(600.0).final_s(large) == pytest.approx(4 * each_s)
    two = [large, large]
    assert SearchBudget(600.0).measuring_s(160.0, large, two) == pytest.approx(
        160.0 - 3 * (each_s - 4.0)
    )
    assert SearchBudget(600.0).finalists(130.0, large, 5) == 2
    assert SearchBudget(600.0).finalists(-5.0, large, 5) == 1


def test_finalists_that_are_faster_than_the_reference_take_less() -> None:
    """The times are ConvNeXt-Tiny's, in FP32 and in INT8 with bfloat16."""
    large = reference(judging_s=None).model_copy(update={"p50_ms": {1: 52.0, 8: 330.0}})
    fast = reference(judging_s=None).model_copy(update={"p50_ms": {1: 15.0, 8: 79.0}})
    large_s, fast_s = 17.0 + 130 * 0.382, 17.0 + 130 * 0.094
    budget = SearchBudget(600.0)
    assert budget.final_s(large) == pytest.approx(4 * large_s)
    assert budget.final_s(large, large) == budget.final_s(large)
    assert budget.final_s(large, fast) == pytest.approx(2 * large_s + 2 * fast_s)
    untimed = fast.model_copy(update={"p50_ms": {}})
    assert budget.final_s(large, untimed) == budget.final_s(large), "nothing is known of its speed"
    chosen = [fast, fast, large]
    assert budget.judged_s(large, chosen) == pytest.approx(2 * (large_s - 4.0) + 2 * (fast_s - 4.0))
    assert budget.measuring_s(200.0, large, chosen) == pytest.approx(
        200.0 - budget.judged_s(large, chosen)
    )
    for count, needed_s in (
        (1, large_s + fast_s),
        (2, large_s + 2 * fast_s),
        (3, 2 * large_s + 2 * fast_s),
    ):
        assert budget.finalists(needed_s + 1.0, large, 5, fast) == count
        assert budget.finalists(needed_s - 1.0, large, 5, fast) == max(1, count - 1)


def test_the_calls_of_the_chosen_finalists_have_what_their_own_speed_leaves() -> None:
    large = reference(judging_s=None).model_copy(update={"p50_ms": {1: 52.0, 8: 330.0}})
    fast = reference(judging_s=None).model_copy(update={"p50_ms": {1: 15.0, 8: 79.0}})
    found: Any = SimpleNamespace(why="", budget=SearchBudget(600.0), left_s=200.0, first=large)
    expected_s = 200.0 - 2 * 13.0 - 130 * (0.382 + 0.094)
    assert search._measuring_s(found, [fast]) == pytest.approx(expected_s)


def test_a_short_search_judges_three_finalists_and_the_recipe_may_want_fewer() -> None:
    assert SearchBudget(599.0).finalists(90.0, None, 5) == 3
    assert SearchBudget(900.0).finalists(100.0, None, 2) == 2


def test_a_search_without_time_left_judges_two_finalists_where_that_takes_little() -> None:
    assert SearchBudget(900.0).finalists(-5.0, reference(judging_s=2.0), 5) == 2
    assert SearchBudget(900.0, 100).finalists(-5.0, reference(), 5) == 1


class Attempts:
    """Stands for the trials: the reference, those of `then`, and one that cannot be tried in time."""

    def __init__(self, first: TuningTrial, seconds: float, then: Sequence[TuningTrial] = ()) -> None:
        self.first, self.seconds, self.then = first, seconds, then
        self.trial_runner = SimpleNamespace(settings=SimpleNamespace(timeout_s=60.0))
        self.left_s: list[float] = []

    def attempt(
        self, number: int, candidate: Any, why: str, best: Any, surest: Any, left_s: float, **_: Any
    ) -> TuningTrial:
        self.left_s.append(left_s)
        own = {"label": candidate.label, "parameters": candidate.parameters, "number": number}
        own |= {"passes": candidate.passes, "runner": candidate.runner}
        if 0 < number <= len(self.then):
            return self.then[number - 1].model_copy(update=own)
        if number:
            own |= {"stage": "outside", "judging_s": None, "seconds": self.seconds}
        return self.first.model_copy(update=own)


def divided(
    folder: Path,
    recipe: Recipe,
    budget: SearchBudget,
    first: TuningTrial,
    then: Sequence[TuningTrial] = (),
) -> tuple[Attempts, list[str], str]:
    said: list[str] = []
    observer: Any = SimpleNamespace(
        warned=lambda _, message: said.append(message),
        finished=lambda *_: None,
        progress=lambda *_: None,
    )
    space = Space.of(recipe)
    study = Study(folder / "trials.jsonl")
    attempts: Any = Attempts(first, budget.seconds, then)
    until = time.monotonic() + budget.seconds
    display = Display(observer, until)
    why = search._divided(budget, space, 0.01, study, attempts, display, until, lambda: None)
    return attempts, [each for each in said if "evaluation samples" in each], why


@pytest.mark.parametrize(
    ("evaluation", "kept_s", "warns"), [(10, 135.0, False), (100, 268.0, False), (10_000, 450.0, True)]
)
def test_what_the_finalists_need_is_taken_from_the_trials(
    tmp_path: Path, plain_recipe: Recipe, evaluation: int, kept_s: float, *, warns: bool
) -> None:
    budget = SearchBudget(900.0, evaluation)
    attempts, said, why = divided(tmp_path, plain_recipe, budget, reference())
    grace_s = 0.25 * 135.0
    assert budget.grace_s == grace_s, "a training that is too long does not take more of the judging"
    assert attempts.left_s[1] == pytest.approx(900.0 - kept_s + grace_s, abs=5.0)
    assert len(attempts.left_s) == 2, "the second trial used all of the time"
    assert why == "the time is used up"
    assert bool(said) is warns
    if warns:
        assert "10000 evaluation samples" in said[0]
        assert "--minutes 333" in said[0], said[0]


def test_a_faster_trial_leaves_more_time_to_the_search(tmp_path: Path, plain_recipe: Recipe) -> None:
    large = reference(judging_s=None).model_copy(update={"p50_ms": {1: 52.0, 8: 330.0}})
    faster = {"p50_ms": {1: 15.0, 8: 79.0}, "score": Estimate(value=3.5)}
    budget = SearchBudget(600.0)
    then = [
        large.model_copy(update={**faster, "seconds": 1.0}),
        large.model_copy(update={**faster, "seconds": 1.0, "stage": "outside"}),
    ]
    attempts, _, why = divided(tmp_path, plain_recipe, budget, large, then)
    before_s = 600.0 - budget.final_s(large) + budget.grace_s
    after_s = 600.0 - budget.final_s(large, then[0]) + budget.grace_s
    assert after_s > before_s + 70.0
    assert attempts.left_s[1:] == pytest.approx([before_s, after_s, after_s], abs=5.0)
    assert why == "the time is used up"
    kept = Study(tmp_path / "trials.jsonl").trials
    assert len(kept) == 4


def test_records_keep_what_the_finalists_need(tmp_path: Path, plain_recipe: Recipe) -> None:
    budget = SearchBudget(900.0, 100)
    divided(tmp_path, plain_recipe, budget, reference())
    attempts, _, _ = divided(tmp_path, plain_recipe, budget, reference())
    assert not attempts.left_s, "the trials of the first run have used all of the time"
    space = Space.of(plain_recipe)
    kept = Study(tmp_path / "trials.jsonl").trials
    assert budget.final_s(kept[0]) == 268.0
    assert Strategy(space, 0.01, 900.0 - 268.0).next(kept) is None
