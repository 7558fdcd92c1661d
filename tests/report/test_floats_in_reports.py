"""Operators that a quantizing pass left in floating point: said once for all variants, and shortly."""

import pytest
from example import latency, report, variant
from report_forms import markdown

from optcli.report.notes import notes
from optcli.results import StepSummary


def built(**tails):
    """A report of variants by what they keep."""
    variants = {}
    for name, tail in tails.items():
        facts = {"output_tail_in_floating_point": tail}
        step = StepSummary(name="quantize_nncf", key="key", status="built", facts=facts)
        variants[name] = variant(900, [latency(2.0, 0.5)]).model_copy(update={"steps": (step,)})
    return report({"eager": variant(1000, [latency(1, 1)], runtime="torch"), **variants})


def test_what_was_kept_is_named_once_for_the_variants_that_share_it():
    found = built(a=["boxes", "scores"], b=["boxes", "scores"], c=["n1", "n2", "n3", "n4", "n5"])
    said = notes(found)["Kept in floating point"]
    assert [line.partition(", behind")[0] for line in said] == [
        "a and b: boxes, scores",
        "c: n1, n2, n3 and 2 more",
    ]
    assert "Kept in floating point" in markdown(found)


def test_layers_that_integers_would_ruin_are_named_with_what_they_would_keep():
    facts = {"ruined_layers_in_floating_point": {"stem": 3.6, "head": 8.0}}
    step = StepSummary(name="quantize_onnxruntime", key="key", status="built", facts=facts)
    int8 = variant(900, [latency(2.0, 0.5)]).model_copy(update={"steps": (step,)})
    (line,) = notes(report({"eager": variant(1000, [latency(1, 1)]), "int8": int8}))[
        "Kept in floating point"
    ]
    assert line.startswith("int8: stem (3.6 dB), head (8.0 dB), ")


@pytest.mark.parametrize("odd", [[], None, "all", {"a": 1}, 3])
def test_nothing_is_said_where_nothing_was_kept_or_the_facts_are_others(odd):
    """A report may come from elsewhere."""
    found = built(a=odd)
    assert "Kept in floating point" not in notes(found)
    assert "Kept in floating point" not in markdown(found)
