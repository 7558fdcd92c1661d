"""Canaries: agreement, latency and errors of two servers, on synthetic figures and small servers."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from oip_server import serving

from optcli import cli
from optcli.results import Estimate
from optcli.results.loadtest import Agreement, Canary, CanarySide
from optcli.serving.loadtest import agreement, canary, payloads, verdicts
from optcli.serving.loadtest.canary import Shadow
from optcli.serving.loadtest.load_options import Options
from optcli.serving.loadtest.messages import Setup
from optcli.serving.loadtest.records import Records, share_interval
from optcli.serving.loadtest.verdicts import LoadTerms

pytestmark = pytest.mark.usefixtures("hurried_loads")

SURE = Agreement(
    samples=100,
    agreeing=100,
    share=Estimate(value=1.0, low=0.96, high=1.0),
    largest_difference=0.0,
)
FASTER = Estimate(value=0.9, low=0.85, high=0.95)


def side(**options):
    given = {
        "target": "a",
        "requests": 5000,
        "failed": 0,
        "checked": 5000,
        "wrong": 0,
        "lateness_p99_ms": 1.0,
        "p95_ms": Estimate(value=50, low=45, high=55),
    }
    return CanarySide(**{**given, **options})


def decided(second=None, *, agreement=SURE, ratio=FASTER, terms=None, **options):
    found = judged(second, agreement, ratio, terms, **options)
    return {each.name: each.outcome for each in found}


def judged(second=None, agreement=SURE, ratio=FASTER, terms=None, **options):
    given = {"promise_asked": False, "late_ms": 1.0, "short": False, **options}
    sides = (side(), second or side())
    return list(canary.judged(sides, agreement, ratio, terms or LoadTerms({}), Shadow(), **given))


def test_all_must_accept_to_promote():
    assert set(decided().values()) == {"accept"}
    assert list(decided()) == ["answers", "agreement", "errors", "latency"]


def test_agreement_is_held_with_its_interval():
    def of(agreeing, samples):
        low, high = share_interval(agreeing, samples)
        share = Estimate(value=agreeing / samples, low=low, high=high)
        return Agreement(samples=samples, agreeing=agreeing, share=share, largest_difference=0.1)

    assert decided(agreement=of(64, 64))["agreement"] == "accept"
    assert decided(agreement=of(16, 16))["agreement"] == "inconclusive"  # too few samples
    assert decided(agreement=of(60, 64))["agreement"] == "inconclusive"
    assert decided(agreement=of(40, 64))["agreement"] == "reject"


def outcomes_of(samples, true_share):
    """The chance of each outcome where each sample agrees with this probability: exact, no drawing."""
    from scipy.special import comb

    chances = dict.fromkeys(("accept", "inconclusive", "reject"), 0.0)
    for agreeing in range(samples + 1):
        low, high = share_interval(agreeing, samples)
        share = Estimate(value=agreeing / samples, low=low, high=high)
        of = Agreement(samples=samples, agreeing=agreeing, share=share, largest_difference=0.0)
        chance = (
            comb(samples, agreeing) * true_share**agreeing * (1 - true_share) ** (samples - agreeing)
        )
        chances[agreement.verdict(of, Shadow().agreement).outcome] += chance
    return chances


def test_300_samples_promote_a_model_that_agrees_on_97_percent_and_none_of_85_percent():
    assert outcomes_of(300, 0.97)["accept"] > 0.95
    assert outcomes_of(300, 0.85)["accept"] < 1e-4
    # The samples of a bundle alone are too few for it.
    assert outcomes_of(64, 0.97)["accept"] < 0.5
    assert outcomes_of(64, 0.97)["reject"] < 1e-6
    assert sum(outcomes_of(300, 0.97).values()) == pytest.approx(1)


def test_a_verdict_that_cannot_tell_says_how_many_samples_would():
    def of(agreeing, samples):
        low, high = share_interval(agreeing, samples)
        share = Estimate(value=agreeing / samples, low=low, high=high)
        found = Agreement(samples=samples, agreeing=agreeing, share=share, largest_difference=0.1)
        return agreement.verdict(found, 0.9)

    unsure = of(62, 64)
    assert unsure.outcome == "inconclusive"
    assert f"about {unsure.samples_needed} samples would decide" in unsure.reason
    assert "--recipe" in unsure.reason
    # So many decide in four of five runs where the share that agrees is the one that was seen.
    assert outcomes_of(unsure.samples_needed, 62 / 64)["accept"] >= 0.75
    assert of(16, 16).samples_needed == 36  # where all agree
    assert of(36, 36).outcome == "accept"
    assert of(300, 300).samples_needed is None
    assert of(90, 100).samples_needed is None  # at the bound no number of samples decides


def test_errors_and_wrong_answers_of_the_second_reject():
    assert decided(side(failed=50))["errors"] == "reject"
    assert decided(side(failed=6))["errors"] == "inconclusive"
    assert decided(side(failed=5))["errors"] == "accept"  # the budget
    assert decided(side(wrong=1))["answers"] == "reject"


def test_latency_is_held_to_the_promise_or_to_the_first_server():
    assert decided(ratio=Estimate(value=1.3, low=1.2, high=1.4))["latency"] == "reject"
    assert decided(ratio=Estimate(value=1.1, low=0.9, high=1.3))["latency"] == "inconclusive"
    assert decided(ratio=None)["latency"] == "inconclusive"
    promise = LoadTerms({"p95": 60.0})
    slow = Estimate(value=1.3, low=1.2, high=1.4)
    assert decided(ratio=slow, terms=promise, promise_asked=True)["latency"] == "accept"
    # The promise of the first server's plan does not make a slower second one good.
    assert decided(ratio=slow, terms=promise)["latency"] == "reject"
    assert decided(terms=promise)["latency"] == "accept"
    assert decided(terms=LoadTerms({"p95": 50.0}))["latency"] == "inconclusive"
    assert decided(terms=LoadTerms({"p95": 40.0}))["latency"] == "reject"
    assert decided(late_ms=9.0)["latency"] == "inconclusive"
    assert decided(short=True)["latency"] == "inconclusive"


def test_errors_and_latencies_are_said_with_their_intervals():
    said = {each.name: each for each in judged(side(failed=50), terms=LoadTerms({"p95": 60.0}))}
    low, high = share_interval(50, 5000)
    assert said["errors"].interval == (low, high)
    assert f"by the second server [{low:.2%}, {high:.2%}]" in said["errors"].reason
    assert "p95 50 ms [45, 55] of 60 ms; p95 0.9 times the first's [0.85" in said["latency"].reason


def test_classes_agree_where_the_largest_score_is_the_same():
    one = {"scores": np.array([[1.0, 0.0], [0.2, 0.3], [0.5, 0.4]])}
    other = {"scores": np.array([[0.9, 0.1], [0.3, 0.2], [0.5, 0.45]]), "more": np.zeros(3)}
    found = agreement.agreed(one, other, {"scores"})
    assert (found.agreeing, found.samples) == (2, 3)
    assert found.largest_difference == pytest.approx(0.1)
    assert (found.share.low, found.share.high) == share_interval(2, 3)
    assert agreement.agreed({"ids": np.array([1, 2])}, {"ids": np.array([1, 3])}).agreeing == 1
    near = agreement.agreed({"y": np.array([[100.0], [1.0]])}, {"y": np.array([[104.0], [90.0]])})
    assert near.agreeing == 1
    assert agreement.agreed({"y": np.zeros((2, 3))}, {"y": np.zeros((2, 4))}).agreeing == 0


def test_values_that_moved_are_not_the_same_for_keeping_their_order():
    """A regressor, an embedding and the scores of a detector's boxes have the shape of class scores."""
    values = np.random.default_rng(0).uniform(0.1, 1, (64, 8))
    moved = 1.2 * values
    assert (values.argmax(1) == moved.argmax(1)).all()
    found = agreement.agreed({"y": values}, {"y": moved})
    assert (found.agreeing, found.rules) == (0, {"y": "near"})
    assert decided(agreement=found)["agreement"] == "reject"
    found = agreement.agreed({"y": values}, {"y": moved}, {"y"})
    assert (found.agreeing, found.rules) == (64, {"y": "class"})


def test_each_column_of_a_regressor_is_held_to_its_own_magnitude():
    """[samples, (a price, a grade)]: beside the price every change of the grade is small."""
    values = np.random.default_rng(0).uniform((5e4, 1), (5e5, 5), (64, 2))
    regraded = values + np.array([0, 1])
    assert agreement.agreed({"y": values}, {"y": regraded}).agreeing == 0
    assert agreement.agreed({"y": values}, {"y": values * 1.001}).agreeing == 64


def test_an_output_that_one_server_lacks_is_named_and_a_missing_one_rejects():
    one = {"scores": np.eye(64), "boxes": np.zeros((64, 5, 4)), "masks": np.zeros((64, 2, 2))}
    found = agreement.agreed(one, {"scores": np.eye(64), "embedding": np.eye(64)})
    assert (found.missing, found.added) == (("boxes", "masks"), ("embedding",))
    assert (found.agreeing, found.samples) == (64, 64)
    (verdict,) = [each for each in judged(agreement=found) if each.name == "agreement"]
    assert verdict.outcome == "reject"
    assert verdict.reason.startswith(
        "the second server lacks the outputs 'boxes', 'masks' of the first"
    )
    assert "only the second server gives the output 'embedding'" in verdict.reason
    more = agreement.agreed({"scores": np.eye(64)}, one)
    (verdict,) = [each for each in judged(agreement=more) if each.name == "agreement"]
    assert verdict.outcome == "accept"  # no client reads it yet
    assert "only the second server gives the outputs 'boxes', 'masks'" in verdict.reason


def test_expected_outputs_are_used_where_they_have_every_output(tmp_path):
    """An output that they lack would not be compared with the second server's."""
    np.savez(tmp_path / "expected.npz", scores=np.eye(4))
    setup = Setup("http://x", "m", (), ("scores", "boxes"), expected=tmp_path / "expected.npz")
    assert not payloads.expects_all(setup)
    assert payloads.expects_all(replace(setup, outputs=("scores",)))
    assert not payloads.expects_all(replace(setup, expected=None))


def boxes(seed=0):
    """[4 samples, 30 boxes, four coordinates and two scores]"""
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 600, (4, 30, 4))
    return np.concatenate([corners, random.uniform(0, 1, (4, 30, 2))], axis=2)


def test_boxes_agree_where_every_coordinate_and_score_is_near():
    one, moved, unsure = boxes(), boxes(), boxes()
    # The largest coordinate of each box stays the largest.
    moved[0, 3] *= 0.5
    unsure[1, 7, 5] -= 0.3
    nearly = one + np.random.default_rng(1).uniform(-0.01, 0.01, one.shape)
    for other, agreeing in ((one, 4), (nearly, 4), (moved, 3), (unsure, 3)):
        for axes in ((0, 1, 2), (0, 2, 1)):
            found = agreement.agreed({"boxes": one.transpose(axes)}, {"boxes": other.transpose(axes)})
            assert found.agreeing == agreeing
            assert found.rules == {"boxes": "near"}


def test_masks_agree_where_every_pixel_is_near():
    one = np.random.default_rng(0).uniform(0, 1, (3, 2, 8, 8))  # [samples, classes, height, width]
    # The largest of many nearly equal pixels may be another one.
    nearly = one + np.random.default_rng(1).uniform(-0.02, 0.02, one.shape)
    other = one.copy()
    other[2, 0, :4] += 0.5
    assert agreement.agreed({"mask": one}, {"mask": nearly}).agreeing == 3
    assert agreement.agreed({"mask": one}, {"mask": other}).agreeing == 2


def test_a_class_that_is_never_there_decides_nothing():
    one = boxes()
    one[..., 5] = 1e-6
    other = one.copy()
    other[..., 5] = 3e-6
    assert agreement.agreed({"boxes": one}, {"boxes": other}).agreeing == 4


def test_outputs_without_values_agree():
    none = {"boxes": np.zeros((3, 0, 4)), "ids": np.zeros((3, 0), int)}
    assert agreement.agreed(none, none).agreeing == 3


def test_the_report_says_when_an_output_counts_as_the_same():
    scores = np.array([[1.0, 0.0]])
    outputs = {"scores": scores, "ids": np.array([1]), "boxes": np.zeros((1, 3, 4)), "more": scores}
    found = agreement.agreed(
        outputs, {name: outputs[name] for name in ("scores", "ids", "boxes")}, {"scores"}
    )
    assert found.rules == {"boxes": "near", "ids": "equal", "scores": "class"}
    (reason,) = [each.reason for each in judged(agreement=found) if each.name == "agreement"]
    assert "boxes: within 5% of the largest magnitude" in reason
    assert "ids: equal numbers, scores: the same class" in reason


def test_the_second_is_compared_on_the_same_requests():
    def of(latency):
        planned = np.arange(100.0)
        zeros = np.zeros(100, np.int16)
        return Records(planned, planned, planned + latency, zeros, zeros.astype(bool))

    ratio = canary.slower([of(10), of(10), of(10)], [of(20), of(21), of(19)])
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low < 2.0 < ratio.high
    assert canary.slower([of(10)], [of(20)]) is None


@pytest.mark.long
@pytest.mark.slow
def test_two_servers_get_the_same_requests(capsys, tmp_path):
    with serving() as first, serving(wrong_every=30) as second:
        arguments = [
            "loadtest", f"{first}/v2/models/digits", f"{second}/v2/models/digits", "--rate", "60",
            "--seconds", "1.2", "--settle", "0s", "--shadow", "50%",
        ]  # fmt: skip
        code = cli.run([*arguments, "--json", "--out", str(tmp_path / "out")])
    found = Canary.model_validate_json(capsys.readouterr().out)
    assert code == 1
    assert found.decision == "reject"
    assert found.second.wrong >= 1
    assert 0 < found.second.requests < found.first.requests
    # The same samples at both, in which they agree when each is asked alone.
    assert (found.agreement.agreeing, found.agreement.samples) == (16, 16)
    assert found.agreement.rules == {"scores": "near"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.json", "report.html", "report.md", "junit.xml",
    }  # fmt: skip
    assert "reject" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["decision"] == "reject"
    assert verdicts.overall(found.verdicts) == "reject"


@pytest.mark.long
@pytest.mark.slow
def test_a_recipe_has_more_samples_and_says_which_output_of_two_urls_holds_scores_of_classes(
    capsys, tmp_path
):
    images = np.random.default_rng(0).random((300, 2, 4), np.float32)
    images[:, 0, 0] = np.arange(300) / 300
    np.savez(tmp_path / "set.npz", image=images)
    recipe = {
        "version": 1,
        "name": "digits",
        "model": {"source": "onnx:model.onnx"},
        "inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 2, 4]}],
        "data": {"evaluation": {"source": "npz:set.npz"}},
        "accuracy": {"metric": "top1"},
        "variants": {"onnx": []},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (tmp_path / "model.onnx").write_text("not opened")
    with (
        serving(outputs="scores,more") as first,
        serving(times=3, outputs="scores,other", other_below=0.0299) as second,
    ):
        cli.run(
            ["loadtest", f"{first}/v2/models/digits", f"{second}/v2/models/digits", "--rate", "60",
             "--seconds", "0.6", "--settle", "0s", "--shadow", "50%", "--json",
             "--recipe", str(tmp_path / "recipe.yaml")]
        )  # fmt: skip
    found = Canary.model_validate_json(capsys.readouterr().out)
    assert found.agreement.rules == {"scores": "class"}
    # 97 % of all samples of the recipe, which are enough to tell.
    assert (found.agreement.agreeing, found.agreement.samples) == (291, 300)
    assert found.agreement.share.low > 0.9
    assert (found.agreement.missing, found.agreement.added) == (("more",), ("other",))
    assert found.decision == "reject"


def test_a_bundle_is_compared_on_the_samples_of_its_recipe_where_that_is_still_there(
    tmp_path, monkeypatch
):
    recipe = tmp_path / "recipe.yaml"
    written = SimpleNamespace(recipe=SimpleNamespace(path=str(recipe)))
    monkeypatch.setattr(canary.bundle, "read", lambda folder: written)
    options = Options()
    assert canary._with_recipe("released", options).recipe is None
    recipe.write_text("version: 1")
    assert canary._with_recipe("released", options).recipe == recipe
    assert canary._with_recipe("http://127.0.0.1:1", options).recipe is None
    golden = Options(golden=tmp_path)
    assert canary._with_recipe("released", golden).recipe is None


@pytest.mark.slow
def test_what_does_not_fit_a_canary_is_refused(capsys):
    with serving() as url, serving(shape="3,3") as other:
        model = "/v2/models/digits"
        for arguments, said in (
            ([f"{url}{model}", "--shadow", "5%", "--rate", "5"], "no second server"),
            ([f"{url}{model}", f"{url}{model}", "--rate", "5", "--calibrate"], "for one server"),
            ([f"{url}{model}", f"{url}{model}"], "there is no rate"),
            ([f"{url}{model}", f"{url}{model}", "--rate", "5", "--rate", "6"], "has one rate"),
            ([f"{url}{model}", f"{other}{model}", "--rate", "5"], "the second server takes"),
            ([f"{url}{model}", f"{url}{model}", "--rate", "5", "--shadow", "0"], "more than 0"),
        ):
            assert cli.run(["loadtest", *arguments]) == 2
            assert said in capsys.readouterr().err
