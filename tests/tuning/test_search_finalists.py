"""Which trials are judged at the end, and which of them is the winner."""

from typing import Any

from optcli.results import Estimate
from optcli.results.tuning import Finalist, TuningTrial
from optcli.tuning.finalists import choose, front
from optcli.tuning.judgement import winner as won_by

BAR = 0.01


def trial(
    number: int, score: float, loss: float, high: float | None = None, **more: Any
) -> TuningTrial:
    stage: Any = "inside" if loss <= BAR else "outside"
    return TuningTrial(
        number=number,
        label=f"trial {number}",
        why="",
        parameters={"runtime": "openvino", "precision": "int8"},
        passes=(("to_openvino", {"number": number}),),
        score=Estimate(value=score),
        loss=Estimate(value=loss, low=loss - 0.005, high=high if high is not None else loss + 0.005),
        stage=stage,
    )


def finalist(name: str, score: float, outcome: Any = "accept", *, certain: bool = False) -> Finalist:
    return Finalist(variant=name, trial=0, why="", outcome=outcome, certain=certain, score=score)


def test_what_is_outside_the_bar_is_no_finalist() -> None:
    trials = [trial(0, 1.0, 0.0), trial(1, 3.0, 0.02), trial(2, 2.0, 0.004)]
    assert [each.trial.number for each in choose(trials, BAR, 5)] == [2, 0]


def test_without_a_trial_inside_there_is_none() -> None:
    assert choose([trial(1, 3.0, 0.02)], BAR, 5) == []


def test_the_fastest_that_is_surely_inside_stands_beside_the_fastest() -> None:
    trials = [trial(1, 3.0, 0.009, 0.015), trial(2, 2.5, 0.003, 0.008), trial(3, 1.0, 0.0, 0.001)]
    chosen = choose(trials, BAR, 2)
    assert [each.trial.number for each in chosen] == [1, 2]
    assert "surely" in chosen[1].why


def test_of_one_pruned_network_the_training_that_is_surest_is_judged() -> None:
    """More training leaves its speed as it is: which of the two is timed faster is chance."""
    cut = {"parameters": {"blocks": 0.34, "width": 0.0, "train_s": 100}, "trains": True}
    other = {"parameters": {"blocks": 0.5, "width": 0.0, "train_s": 100}, "trains": True}
    whole = trial(1, 2.1, 0.0, 0.001)
    short, long, harder = (
        each.model_copy(update=update)
        for each, update in (
            (trial(2, 3.05, 0.004, 0.009), cut),
            (trial(3, 3.0, 0.001, 0.005), cut),
            (trial(4, 4.0, 0.008, 0.02), other),
        )
    )
    chosen = choose([whole, short, long, harder], BAR, 3)
    assert [each.trial.number for each in chosen] == [4, 3, 1]
    assert "surely inside" in chosen[1].why
    # Of networks that are not pruned the fastest is taken, as of others that are much slower.
    slower = long.model_copy(update={"score": Estimate(value=2.8)})
    assert [each.trial.number for each in choose([whole, short, slower, harder], BAR, 3)] == [4, 2, 1]


def test_where_certainty_is_wanted_the_lowest_bound_is_a_finalist() -> None:
    """By what they lose it is behind the second one, whose loss may be large by its bound."""
    trials = [trial(1, 3.0, 0.004, 0.02), trial(2, 2.5, 0.0, 0.015), trial(3, 1.9, 0.0, 0.011)]
    slower = trial(4, 1.0, 0.0, 0.011)
    assert [each.trial.number for each in choose([*trials, slower], BAR, 2)] == [1, 2]
    chosen = choose([*trials, slower], BAR, 2, certain=True)
    assert [each.trial.number for each in chosen] == [1, 3]
    assert "upper bound" in chosen[1].why


def test_there_are_at_most_so_many_and_none_twice() -> None:
    trials = [trial(n, 3.0 - 0.1 * n, 0.009 - 0.0005 * n) for n in range(12)]
    chosen = choose(trials, BAR, 5)
    assert len(chosen) == 5
    assert len({each.trial.number for each in chosen}) == 5
    again = trials[0].model_copy(update={"number": 99})
    assert 99 not in [each.trial.number for each in choose([*trials, again], BAR, 5)]


def test_of_trials_that_are_alike_one_is_enough() -> None:
    """Each finalist more makes the bounds of all of them wider."""
    trials = [trial(n, 3.0 - 0.01 * n, 0.0095 - 0.0001 * n) for n in range(5)]
    chosen = choose([*trials, trial(9, 1.0, 0.0)], BAR, 5)
    assert [each.trial.number for each in chosen] == [0, 9]


def test_the_order_of_the_trials_changes_nothing() -> None:
    trials = [trial(n, 3.0 - 0.1 * n, 0.009 - 0.0005 * n) for n in range(12)]
    expected = [each.trial.number for each in choose(trials, BAR, 4)]
    assert [each.trial.number for each in choose(trials[::-1], BAR, 4)] == expected


def test_the_front_has_what_nothing_beats_in_both() -> None:
    trials = [trial(1, 3.0, 0.008), trial(2, 2.0, 0.009), trial(3, 2.5, 0.004), trial(4, 1.0, 0.0)]
    assert [each.number for each in front(trials)] == [1, 3, 4]


def test_an_optimistic_finalist_does_not_win() -> None:
    """Inside the bar on validation samples, rejected on those that the search never saw."""
    judged = [finalist("overfitted", 5.0, "reject"), finalist("honest", 2.0)]
    winner = won_by(judged)
    assert winner is not None
    assert winner.variant == "honest"


def test_what_is_surely_inside_comes_before_what_is_faster() -> None:
    winner = won_by([finalist("lucky", 5.0), finalist("sure", 2.0, certain=True)])
    assert winner is not None
    assert winner.variant == "sure"


def losing(name: str, score: float, loss: float) -> Finalist:
    return finalist(name, score).model_copy(update={"loss": loss})


def test_where_nothing_is_sure_what_uses_up_the_bar_does_not_win() -> None:
    """Too few samples for any bound to lie inside: a loss of nearly the bar is outside on others."""
    edge, careful, slow = losing("edge", 5.0, 0.009), losing("careful", 3.0, 0.002), losing("s", 1.0, 0)
    winner = won_by([edge, careful, slow], BAR)
    assert winner is not None
    assert winner.variant == "careful"
    winner = won_by([edge, losing("near", 4.0, 0.006)], BAR)
    assert winner is not None
    assert winner.variant == "near", "the one that loses least"
    sure = edge.model_copy(update={"certain": True})
    winner = won_by([sure, careful], BAR)
    assert winner is not None
    assert winner.variant == "edge"


def test_nobody_wins_where_none_is_accepted() -> None:
    assert won_by([finalist("a", 2.0, "reject"), finalist("b", 1.0, "inconclusive")]) is None


def test_a_finalist_without_a_fit_row_does_not_win_by_speed() -> None:
    judged = [finalist("noisy", 9.0).model_copy(update={"score": None}), finalist("quiet", 2.0)]
    winner = won_by(judged)
    assert winner is not None
    assert winner.variant == "quiet"
    nothing = [each.model_copy(update={"score": None}) for each in judged]
    winner = won_by(nothing)
    assert winner is not None
    assert winner.variant == "noisy", "the first, as the search ordered them"
