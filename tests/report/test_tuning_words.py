"""A search in words: the answer, what paid and what did not, tables and the picture."""

from typing import Any

import pytest

from optcli.report import html, terminal, tuning_findings
from optcli.report import tuning as of_tuning
from optcli.results import Estimate
from optcli.results.tuning import Finalist, Tuning, TuningTrial, geometric_mean


def trial(number: int, precision: str, score: float, loss: float, **more: Any) -> TuningTrial:
    parameters = {"runtime": "openvino", "precision": precision, **more.pop("parameters", {})}
    given: dict[str, Any] = {
        "stage": "inside" if loss <= 0.01 else "outside",
        "loss": Estimate(value=loss),
        "score": Estimate(value=score),
        "p50_ms": {1: 2.0 / score, 8: 9.0 / score},
        "operators": 30 if precision == "int8" else None,
        "size_bytes": 1000 * number + 500,
        "seconds": 60.0,
    }
    return TuningTrial(
        number=number,
        label=f"openvino {precision}",
        why="a rule",
        parameters=parameters,
        passes=(("to_openvino", {}),),
        **{**given, **more},
    )


def tuning(*trials: TuningTrial, **more: Any) -> Tuning:
    given: dict[str, Any] = {
        "recipe": "r",
        "path": "",
        "objective": "p50",
        "batch_sizes": (1, 8),
        "reference": "openvino fp32",
        "bar": 0.01,
        "validation": "data.validation",
        "minutes": 15.0,
        "seconds": 800.0,
        "baseline": "eager",
        "isa": "avx512_vnni",
        "stopped_because": "the time is used up",
    }
    return Tuning(trials=trials, **{**given, **more})


def test_a_gain_is_told_with_its_price() -> None:
    cut = trial(3, "int8", 4.0, 0.008, trains=True, parameters={"blocks": 0.5})
    said = list(
        tuning_findings.findings(
            tuning(
                trial(0, "fp32", 1.0, 0.0),
                trial(1, "bf16", 1.5, 0.001),
                trial(2, "int8", 2.5, 0.004),
                cut,
            )
        )
    )
    assert "INT8 over fp32: 2.50 times as fast, 0.40 points more lost." in said
    assert "INT8 over bf16: 1.67 times as fast, 0.30 points more lost." in said
    expected = "Pruning and training the network over leaving it unpruned: 1.60 times as fast"
    assert f"{expected}, 0.40 points more lost, for 1.0 minutes of training." in said


def test_what_bought_nothing_is_not_worth_it() -> None:
    said = list(
        tuning_findings.findings(tuning(trial(0, "bf16", 1.5, 0.0), trial(1, "int8", 1.515, 0.006)))
    )
    assert "INT8 over bf16: 1.01 times as fast, 0.60 points more lost: not worth it." in said


@pytest.mark.parametrize(
    ("scores", "losses", "ending"),
    [
        ((1.0, 1.5, 1.4, 1.52), (0, 0, 0, 0), "none was better at its end. More time is unlikely"),
        ((1.0, 1.5, 1.4, 1.9), (0, 0, 0, 0), "; at its end, 1.90 times. More time is likely"),
        ((1.0, 1.5, 1.4, 9.9), (0, 0, 0, 0.5), "none was better at its end"),
        ((1.0, 1.5, 1.4, 1.9), (0.5, 0.5, 0, 0), "no network was inside the bar; at its end, one was"),
    ],
)
def test_the_later_half_of_the_time_says_what_more_of_it_would_bring(
    scores: tuple[float, ...], losses: tuple[float, ...], ending: str
) -> None:
    trials = [trial(i, "bf16", *each) for i, each in enumerate(zip(scores, losses, strict=True))]
    (said,) = [each for each in tuning_findings.findings(tuning(*trials)) if "half" in each]
    assert ending in said


@pytest.mark.parametrize(("share", "is_said"), [(None, False), (0.04, False), (0.34, True)])
def test_work_of_others_is_told_where_it_costs_much(share: float | None, is_said: bool) -> None:
    found = tuning(trial(0, "fp32", 1.0, 0.0), others_share=share)
    said = [each for each in tuning_findings.findings(found) if each.startswith("Other programs")]
    assert bool(said) == is_said
    assert all("34 % of this machine's processor time" in each for each in said)


@pytest.mark.parametrize(
    ("score", "loss", "calibrated", "said"),
    [
        (
            2.0,
            0.002,
            0.017,
            "for 6.0 minutes of training: inside the bar, unlike",
        ),
        (2.0, 0.002, 0.005, "0.30 points fewer lost, for 6.0 minutes of training."),
        (1.8, 0.002, 0.005, "0.90 times as fast, 0.30 points fewer lost, for 6.0 minutes of training."),
        (2.0, 0.005, 0.005, "the same loss, for 6.0 minutes of training: not worth it."),
        (2.0, 0.007, 0.005, "0.20 points more lost, for 6.0 minutes of training: not worth it."),
    ],
)
def test_training_that_saves_accuracy_is_worth_something_at_the_same_speed(
    score: float, loss: float, calibrated: float, said: str
) -> None:
    aware = trial(2, "int8", score, loss, trains=True, seconds=360.0, parameters={"aware_s": 300})
    found = tuning(trial(0, "fp32", 1.0, 0.0), trial(1, "int8", 2.0, calibrated), aware)
    (told,) = [each for each in tuning_findings.findings(found) if each.startswith("Quantization-")]
    assert said in told
    assert "quantizing after training" in told


@pytest.mark.parametrize(
    ("isa", "more", "cause"),
    [
        ("avx2", {}, "avx2"),
        ("avx512_vnni", {"operators": 2}, "only 2 operators"),
        ("avx512_vnni", {"p50_ms": {1: 0.2}}, "a call takes 0.200 ms"),
        ("avx512_vnni", {}, "optcli profile"),
    ],
)
def test_int8_that_does_not_pay_has_a_cause(isa: str, more: Any, cause: str) -> None:
    found = tuning(trial(0, "fp32", 1.0, 0.0), trial(1, "int8", 0.9, 0.0, **more), isa=isa)
    (said,) = [each for each in tuning_findings.findings(found) if "does not pay" in each]
    assert cause in said
    better = tuning(trial(0, "fp32", 1.0, 0.0), trial(1, "int8", 2.0, 0.0, **more), isa=isa)
    assert not [each for each in tuning_findings.findings(better) if "does not pay" in each]


def test_int8_that_is_no_faster_than_bf16_does_not_pay_either() -> None:
    whole = (trial(0, "fp32", 1.0, 0.0), trial(1, "int8", 1.515, 0.006))
    (said,) = [
        each
        for each in tuning_findings.findings(tuning(*whole, trial(2, "bf16", 1.5, 0.0)))
        if "does not pay" in each
    ]
    assert said.startswith("INT8 does not pay over bf16 here: ")
    outside = trial(2, "bf16", 1.5, 0.02)
    told = list(tuning_findings.findings(tuning(*whole, outside)))
    assert not [each for each in told if "does not pay" in each], "bf16 may not be taken"


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        (
            (("fp32", 1.0, {}), ("int8", 2.5, {})),
            "The largest gain came from the precision (int8): 2.50 times as fast.",
        ),
        (
            (("fp32", 1.0, {}), ("int8", 1.2, {}), ("int8", 2.4, {"blocks": 0.5})),
            "The largest gain came from pruning and training the network: 2.00 times as fast.",
        ),
        ((("fp32", 1.0, {}), ("int8", 1.01, {})), None),
    ],
)
def test_what_gained_most_is_told(trials: Any, said: str | None) -> None:
    made = [
        trial(number, precision, score, 0.0, parameters=parameters)
        for number, (precision, score, parameters) in enumerate(trials)
    ]
    found = [each for each in tuning_findings.findings(tuning(*made)) if "largest gain" in each]
    assert found == ([said] if said else [])


def test_the_answer_says_what_is_not_known() -> None:
    speedup = {1: Estimate(value=3.0, low=2.8, high=3.2), 8: Estimate(value=4.0, low=3.9, high=4.1)}
    one = Finalist(
        variant="a",
        trial=1,
        why="",
        outcome="accept",
        loss=0.005,
        validation_loss=0.003,
        speedup=speedup,
    )
    won: dict[str, Any] = {"finalists": (one,), "winner": "a", "outcome": "faster"}
    found = tuning(trial(1, "int8", 3.0, 0.003), **won, confidence=0.95)
    said = of_tuning.answer(found)
    first = "Serve a: 3.00x as fast as eager [2.80, 3.20] at batch size 1"
    assert f"{first} and 4.00x [3.90, 4.10] at batch size 8, 0.50 points lost" in said
    assert "too few" in said
    assert "Set accuracy.policy: non-inferiority to accept only variants" in said
    no_metric = of_tuning.answer(found.model_copy(update={"confidence": None}))
    assert "another largest output on 0.50 % of the evaluation samples" in no_metric
    assert "non-inferiority" not in no_metric
    sure = found.model_copy(update={"finalists": (one.model_copy(update={"certain": True}),)})
    assert "too few" not in of_tuning.answer(sure)
    slow = found.model_copy(update={"outcome": "accurate"})
    assert "not known to be faster" in of_tuning.answer(slow)
    assert "No finalist is accepted" in of_tuning.answer(found.model_copy(update={"winner": None}))
    assert "No trial of 1" in of_tuning.answer(tuning(trial(0, "int8", 1.0, 0.5)))


def test_where_none_is_surely_inside_the_answer_asks_for_more_samples() -> None:
    few = Finalist(variant="a", trial=1, why="", outcome="inconclusive", loss=0.004)
    outside = few.model_copy(update={"variant": "b", "outcome": "reject", "loss": 0.03})
    found = tuning(trial(1, "int8", 3.0, 0.003), finalists=(few, outside), winner=None)
    said = of_tuning.answer(found, certain=True)
    assert "On these samples a loses no more than is allowed. The samples are too few" in said
    assert "too few" not in of_tuning.answer(found), "the machine may have been busy"
    none = found.model_copy(update={"finalists": (outside,)})
    assert "too few" not in of_tuning.answer(none, certain=True)


def test_the_optimism_of_the_choice_is_told() -> None:
    finalists = tuple(
        Finalist(variant=f"v{n}", trial=n, why="", outcome="accept", optimism=0.002) for n in range(2)
    )
    found = tuning(trial(0, "int8", 2.0, 0.0), finalists=finalists, confidence=0.975)
    said = " ".join(tuning_findings.findings(found))
    lose = "On average the 2 finalists lose 0.20 points more on the evaluation samples than there."
    assert f"The search chose by data.validation. {lose}" in said
    assert "holds with 97.50 % confidence, so all 2 hold together with the recipe's 95 %." in said
    alone = finalists[0].model_copy(update={"optimism": 0.0})
    said_of_one = " ".join(tuning_findings.findings(found.model_copy(update={"finalists": (alone,)})))
    assert "The finalist loses as much on the evaluation samples as there." in said_of_one
    none = " ".join(tuning_findings.findings(tuning(trial(0, "int8", 2.0, 0.1))))
    assert "The search chose by data.validation. " in none, "without a finalist, too"


@pytest.mark.parametrize(
    ("objective", "answer", "heads"),
    [
        ("size", "Serve a: its files take 1.20 MB, those of eager 4.80 MB", "times as small"),
        (
            "memory",
            "Serve a: its process takes 1.20 MB, that of eager 4.80 MB",
            "times as small in memory",
        ),
    ],
)
def test_an_objective_in_bytes_is_told_in_bytes(objective: str, answer: str, heads: str) -> None:
    one = Finalist(variant="a", trial=1, why="", outcome="accept", needed_bytes=1_200_000)
    slow = trial(1, "int8", 0.9, 0.003, size_bytes=1_200_000, memory_bytes=1_200_000)
    found = tuning(
        trial(0, "fp32", 1.0, 0.0),
        slow,
        objective=objective,
        finalists=(one,),
        winner="a",
        outcome="faster",
        baseline_bytes=4_800_000,
    )
    assert of_tuning.answer(found).startswith(answer)
    told = list(tuning_findings.findings(found))
    assert not [each for each in told if "does not pay" in each], "its causes are about speed"
    assert f"INT8 over fp32: 0.90 {heads}, 0.30 points more lost: not worth it." in told
    text = terminal.text(of_tuning.document(found))
    assert text.count("1.20 MB") == 2, "in both tables"
    assert heads in text
    assert f"{heads} as the reference" in html.html(of_tuning.document(found))


def test_the_text_and_the_page_have_every_trial() -> None:
    failed = TuningTrial(
        number=2, label="pytorch int8", why="", parameters={}, passes=(), reason="no <compiler> here"
    )
    found = tuning(trial(0, "fp32", 1.0, 0.0), trial(1, "int8", 2.0, 0.004), failed)
    text = terminal.text(of_tuning.document(found))
    assert "pytorch int8: no <compiler> here" in text
    page = html.html(of_tuning.document(found))
    assert page.count("<circle") == 2 * 2, "one for wide pages, one for narrow ones"
    assert "no &lt;compiler&gt; here" in page


def test_a_geometric_mean_has_bounds_where_all_have() -> None:
    both = [Estimate(value=2.0, low=1.0, high=4.0), Estimate(value=8.0, low=4.0, high=16.0)]
    mean = geometric_mean(both)
    assert mean is not None
    assert (mean.value, mean.low, mean.high) == pytest.approx((4.0, 2.0, 8.0))
    open_ended = geometric_mean([*both, Estimate(value=4.0)])
    assert open_ended is not None
    assert open_ended.low is None
    assert geometric_mean([]) is None
