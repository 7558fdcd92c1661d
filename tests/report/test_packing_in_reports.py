"""Weights that are packed on every call: said below the table, and not where none are."""

from example import latency, report, variant
from report_forms import markdown

from optcli.report.notes import notes
from optcli.results import StepSummary


def built(facts, name="aot_inductor"):
    step = StepSummary(name=name, key="key", status="built", facts=facts)
    made = variant(900, [latency(2.0, 0.5)], runtime="aoti").model_copy(update={"steps": (step,)})
    return report({"eager": variant(1000, [latency(1, 1)], runtime="torch"), "aoti": made})


def packs(weights, share_of_time):
    return {"weights": weights, "share": 0.5, "share_of_time": share_of_time}


def test_it_is_said_with_batch_sizes_and_what_to_do():
    found = built({"packs_each_call": {"1": packs(53, 1.0), "8": packs(0, 0), "16": packs(4, 0.1)}})
    said = notes(found)["Verdicts"]
    assert said == [
        "aoti: weights are packed on every call at batch size 1 (53 of them) and 16 (4 of them);"
        " fix the batch, or set `shapes: auto`"
    ]
    assert "packed on every call" in markdown(found)


def test_the_remedy_is_that_of_the_pass():
    found = built({"packs_each_call": {"8": packs(20, 0.2)}}, name="torch_compile")
    assert notes(found)["Verdicts"] == [
        "aoti: weights are packed on every call at batch size 8 (20 of them); set `dynamic: false`"
    ]


def test_where_the_batch_is_fixed_already_nobody_is_told_to_fix_it():
    known = {"packs_each_call": {"1": packs(13, 0.3), "8": packs(13, 0.2)}}
    both = notes(built({**known, "routes": {"fixed": [1, 8]}}))["Verdicts"]
    assert both[0].endswith("; a fixed batch does not change that")
    one = notes(built({**known, "routes": {"fixed": [8]}}))["Verdicts"]
    assert one[0].endswith("; fix the batch, or set `shapes: auto`")
    for odd in ([1, 8], {"fixed": 1}, {"fixed": {}}, None):
        assert "fix the batch" in notes(built({**known, "routes": odd}))["Verdicts"][0]


def test_nothing_is_said_where_it_costs_nothing_or_nothing_is_known():
    assert (
        notes(built({"packs_each_call": {"1": packs(1, 0.001), "8": None}})).get("Verdicts", []) == []
    )
    assert notes(built({})).get("Verdicts", []) == []


def test_facts_that_are_no_such_record_say_nothing():
    """A report may come from elsewhere."""
    odd = {"1": {}, "x": packs(1, 0.5), "9" * 5000: packs(1, 0.5), "2": 3, "4": packs("many", 0.5)}
    odd["8"] = {"weights": 1, "share": "half", "share_of_time": None}
    for facts in (odd, [], "all", None):
        assert notes(built({"packs_each_call": facts})).get("Verdicts", []) == []
