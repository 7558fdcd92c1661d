"""`optcli verify-accuracy --set` on a build: another bar and policy, without evaluating again."""

import json

import pytest
from tiny_project import DATA


@pytest.fixture
def built(place):
    """The last build with a drop of two samples of ten put into its report."""
    place.recipe("  plain: []\n  other: [optimize_onnx]\n", data=DATA)
    place.build()
    path = place.artifacts / "tiny" / "report.json"
    report = json.loads(path.read_text())
    lost = {"value": 0.6, "baseline": 0.8, "regressed": 2, "improved": 0, "samples": 10}
    lost |= {"drop": {"value": 0.2, "low": 0.0, "high": 0.5}}
    lost |= {"bounds": {"value": 0.2, "low": 0.05, "high": 0.45}}
    report["variants"]["other"]["accuracy"] |= lost
    path.write_text(json.dumps(report))
    return place


def verdict(said):
    assert said.out, said.err
    found = json.loads(said.out)["variants"]["other"]["verdicts"]
    return next(each for each in found if each["name"] == "accuracy")


@pytest.mark.slow
def test_another_bar_or_policy_is_judged_anew(built, optcli):
    def judged(*more):
        return optcli("verify-accuracy", "--json", *(word for each in more for word in ("--set", each)))

    kept = judged()
    assert (kept.code, verdict(kept)["limit"]) == (0, 0.5)
    strict = judged("accuracy.max_drop=0.1")
    assert (strict.code, verdict(strict)["outcome"], verdict(strict)["limit"]) == (1, "reject", 0.1)
    doubtful = judged("accuracy.max_drop=0.3", "accuracy.policy=non-inferiority")
    assert (doubtful.code, verdict(doubtful)["outcome"]) == (5, "inconclusive")
    assert verdict(doubtful)["samples_needed"] > 10
    ratio = judged("accuracy.max_drop=null", "accuracy.preset=mlperf-99")
    assert verdict(ratio)["limit"] == pytest.approx(0.008)
    assert all(said.err.count("built") == 0 for said in (kept, doubtful))


@pytest.mark.slow
def test_what_only_a_build_can_work_out_is_refused(built, optcli):
    for change, says in (
        ("accuracy.confidence=0.9", "intervals are for a confidence of 0.95, wanted 0.9"),
        ("accuracy.metric=top5", "the build judged by top1, wanted top5"),
        ("accuracy=null", "the build judged by top1, wanted nothing"),
    ):
        said = optcli("verify-accuracy", "--set", change)
        assert said.code == 2
        assert says in said.err
        assert "optcli build" in said.err
    assert optcli("verify-accuracy", "--set", "latency.threads=2").code == 0
