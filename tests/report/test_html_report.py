"""The HTML report: well-formed, self-contained, complete, safe, and there whatever is missing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from example import accuracy, both, latency, report, variant, verdict
from report_forms import page

from optcli.report.accuracy import table_of_classes
from optcli.report.html.distributions import density
from optcli.report.html.tags import Markup, tag
from optcli.report.html.tradeoff import PlottedVariant, frontier
from optcli.results import (
    Budget,
    Estimate,
    OutputError,
    Sweep,
    SweepFit,
    SweepPoint,
    VariantReport,
    flags,
)
from optcli.results.outcomes import ClassFigure

CHARTS = (
    "latency-of-each-artifact",
    "operating-curve",
    "top-1-against-latency",
    "where-the-time-went",
)
VOID = {"meta", "br", "img"}
QUANTILES = {
    "eager": {1: [2.0 + 0.01 * i for i in range(201)], 8: [8.0 + 0.01 * i for i in range(201)]},
    "onnx": {1: [0.9 + 0.001 * i for i in range(201)]},
}


class Parsed(HTMLParser):
    """Every element with its attributes, its text, and whether all were closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open:
            self.texts.append((self.open[-1], data))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for one, attributes in self.elements if one == name]

    def said(self, *names: str) -> str:
        return " ".join(text for name, text in self.texts if not names or name in names)


def sections(page: str) -> set[str | None]:
    return {each.get("id") for each in Parsed(page).all("section")}


def test_a_page_is_well_formed_and_needs_nothing_else():
    shown = page(report(), QUANTILES)
    parsed = Parsed(shown)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", shown)
    assert not {"script", "link", "img", "iframe"} & {name for name, _ in parsed.elements}
    assert all(not key.startswith("on") for _, given in parsed.elements for key in given)
    policy = [each for each in parsed.all("meta") if each.get("http-equiv")]
    assert policy[0]["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert any(each.get("name") == "viewport" for each in parsed.all("meta"))
    assert "prefers-color-scheme: dark" in parsed.said("style")


def test_every_variant_has_a_row_and_what_is_missing_its_reason():
    parsed = Parsed(page(report(), QUANTILES))
    heads = [text for name, text in parsed.texts if name == "th"]
    assert {"eager", "onnx", "onnx-int8", "pruned-onnx"} <= set(heads)
    items = parsed.said("li")
    assert "aoti failed: it was killed, most likely because memory ran out" in items
    assert "trt skipped: no NVIDIA GPU was found" in items
    assert next(each["title"] for each in parsed.all("abbr")) == "n=128, needs 368"


def test_the_recommendation_comes_first_with_its_figures():
    shown = page(report(), QUANTILES)
    first = shown[shown.index("<section") : shown.index("</section>")]
    assert "Serve onnx-int8: 5.85 times as fast as eager." in first
    assert "5.85x" in first
    assert "712 kB" in first


def test_without_a_recommendation_the_sentence_stands_alone():
    shown = page(report(recommended=None, recommendation="Nothing beats eager."))
    first = shown[shown.index("<section") : shown.index("</section>")]
    assert "Nothing beats eager." in first
    assert "figures" not in first


def test_all_charts_are_there_and_have_names():
    parsed = Parsed(page(report(), QUANTILES))
    assert {"answer", *CHARTS} <= {each.get("id") for each in parsed.all("section")}
    pictures = [each for each in parsed.all("svg") if each.get("role") == "img"]
    assert len(pictures) >= 10, "each for wide pages and for phones"
    assert len(parsed.all("title")) > len(pictures), "pictures and marks have tooltips"


HOSTILE = "<script>alert(1)</script>\"' onload=x & <b>"


def test_nothing_from_a_recipe_becomes_markup():
    variants = {
        HOSTILE: variant(1000, both(2, 1), accuracy(), runtime=HOSTILE, precision=HOSTILE),
        "b": variant(
            900,
            both(1, 2, flags=(flags.other(HOSTILE),)),
            accuracy(1),
            [verdict(HOSTILE, "reject", reason=HOSTILE)],
        ),
        "c": VariantReport(status="failed", reason=HOSTILE, log=HOSTILE),
    }
    found = report(
        variants,
        baseline=HOSTILE,
        recommended="b",
        recommendation=HOSTILE,
        environment={"cpu": {"model": HOSTILE}, HOSTILE: HOSTILE, "cores": 2},
    )
    found = found.model_copy(update={"recipe": found.recipe.model_copy(update={"name": HOSTILE})})
    shown = page(found, {HOSTILE: {1: [1.0, 2.0, 3.0]}})
    parsed = Parsed(shown)
    assert "<script" not in shown
    assert "<b>x" not in shown
    assert all("onload" not in given for _, given in parsed.elements)
    assert HOSTILE in parsed.said("h1")
    assert HOSTILE in parsed.said("th")


def test_text_and_attributes_are_escaped_once():
    assert (
        tag("p", "a & b", Markup("<i></i>"), title='"<') == '<p title="&quot;&lt;">a &amp; b<i></i></p>'
    )


def test_without_samples_the_percentiles_are_shown():
    shown = page(report())
    assert "latency-of-each-artifact" in sections(shown)
    assert 'class="area"' not in shown
    assert "the raw samples are not beside this report" in shown


def test_one_batch_size_is_said_instead_of_drawn():
    one = {
        "eager": variant(1000, [latency(2, 1)], accuracy()),
        "onnx": variant(900, [latency(1, 2)], accuracy()),
    }
    shown = page(report(one))
    assert "Only one batch size was measured" in shown


def test_without_accuracy_there_is_no_chart_of_it():
    shown = page(report({"eager": variant(1000, both(2, 1)), "onnx": variant(900, both(1, 2))}))
    assert not any(str(each).endswith("against-latency") for each in sections(shown))
    assert "top-1" not in shown


def test_without_labels_decibels_are_drawn_and_the_reference_is_named():
    def unlabelled(**figures):
        error = OutputError(finite=True, constant=False, **figures)
        return accuracy().model_copy(
            update={"metric": None, "value": None, "drop": None, "output_error": error}
        )

    found = {
        "eager": variant(1000, both(2, 1), unlabelled(max_abs=0.0)),
        "a": variant(900, both(1, 2), unlabelled(max_abs=0.1, sqnr_db=40.0)),
        "b": variant(900, both(0.5, 4), unlabelled(max_abs=0.3, sqnr_db=20.0)),
    }
    said = Parsed(page(report(found))).said()
    assert "SQNR against latency" in said
    assert "Not drawn: eager (the reference)." in said


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_a_report_without_any_measurement(status):
    found = report({"eager": VariantReport(status=status, reason="no luck")}, recommended=None)
    shown = page(found)
    assert {"answer", "failed-or-skipped", "where-the-time-went"} <= sections(shown)
    assert not {*CHARTS[:3]} & sections(shown)
    assert "no luck" in shown


def test_the_budget_is_drawn_and_said():
    limit = verdict("slo p99_ms").model_copy(update={"limit": 2.5})
    found = {
        "eager": variant(1000, both(2.4, 1), None, [limit]),
        "onnx": variant(900, both(0.5, 5), None, [limit]),
    }
    parsed = Parsed(page(report(found)))
    assert any(each.get("class") == "budget" for each in parsed.all("line"))
    said = parsed.said("li")
    assert "eager: no measured batch size surely keeps 2.5 ms (p99)" in said
    assert "onnx: up to batch size 1 inside 2.5 ms (p99): 2000 images a second" in said


def test_a_sweep_is_drawn_with_its_fit_and_its_sentence():
    def point(size):
        around = Estimate(value=0.5 + 0.1 * size, low=0.45 + 0.1 * size, high=0.55 + 0.1 * size)
        return SweepPoint(
            batch_size=size, p50_ms=around, throughput_per_s=size / around.value * 1e3, samples=50
        )

    line = SweepFit(
        fixed_ms=Estimate(value=0.5),
        per_image_ms=Estimate(value=0.1, low=0.09, high=0.11),
        largest_residual=0.01,
        linear=True,
    )
    swept = Sweep(points=tuple(map(point, (1, 2, 4, 32))), fit=line, stopped_because="enough")
    found = {
        "eager": variant(1000, [latency(2, 1)]),
        "onnx": variant(900, [latency(1, 2)], sweep=swept),
    }
    shown = page(report(found))
    assert "onnx, batch 32: p50 3.70 ms" in shown
    assert 'class="fitted"' in shown
    assert "onnx: t(B) = 0.500 ms + B * 0.100 [0.0900, 0.110] ms" in shown
    budget = Budget(p99_ms=3, batch_size=16, throughput_per_s=9, sentence="16 is the largest, they say")
    found["onnx"] = variant(900, [latency(1, 2)], sweep=swept.model_copy(update={"budget": budget}))
    assert "onnx: budget: 16 is the largest, they say" in page(report(found))


def test_where_the_time_went_has_each_step_once():
    shown = page(report(took_s={"latency": 83.0, "data": 0.01}))
    chart = shown[shown.index('id="where-the-time-went"') :]
    assert "measuring latency" in chart
    assert "1 min 23 s" in chart
    assert "reading and preparing data" not in chart, "what took no time is no bar"


def choice(name, ms, right):
    value = Estimate(value=right)
    return PlottedVariant(0, name, Estimate(value=ms), value, right, refused=False)


def test_the_frontier_holds_what_nothing_beats():
    found = [
        choice("slow", 5, 99),
        choice("worse", 2, 90),
        choice("fast", 1, 95),
        choice("twin", 1.5, 95),
    ]
    assert [each.name for each in frontier(found)] == ["fast", "slow"]


def test_the_density_keeps_two_modes_apart_and_its_mass():
    heights = density([100.0 + 0.1 * i for i in range(100)] + [300.0 + 0.1 * i for i in range(100)])
    valley = min(height for at, height in heights if 150 < at < 250)
    peaks = [max(height for at, height in heights if low < at < low + 100) for low in (50, 260)]
    assert valley < 0.01 * min(peaks)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.1)


def test_all_calls_alike_are_still_a_curve():
    heights = density([50.0] * 201)
    assert max(height for _, height in heights) > 0
    shown = page(report(), {"eager": {1: [2.0] * 201}})
    assert 'class="area"' in shown


def test_tables_of_any_width_stay_in_their_own_box():
    """A wide table scrolls in its box: the shown does not grow with it, and nothing is cut off."""
    shown = page(report(), QUANTILES)
    parsed = Parsed(shown)
    boxes = [each for each in parsed.all("div") if each.get("class") == "scroll"]
    assert len(boxes) == len(parsed.all("table"))
    assert all(each.get("tabindex") == "0" for each in boxes), "by the keyboard too"
    style = shown.partition("<style>")[2].partition("</style>")[0]
    rule = style.partition("\n.scroll {")[2].partition("}")[0]
    assert "overflow-x: auto" in rule
    assert "var(--shade)" in rule, "a shade says that there is more"
    assert "position: sticky" in style.partition(".scroll th:first-child {")[2].partition("}")[0]
    width = int(style.partition("body > footer { max-width: ")[2].partition("px")[0])
    assert width >= 1400


def test_figures_of_classes_are_one_table_of_all_variants():
    def judged(*values):
        figures = [
            ClassFigure(label=label, samples=9, value=value, baseline=0.9)
            for label, value in enumerate(values)
        ]
        return accuracy().model_copy(update={"per_class": tuple(figures)})

    found = report(
        {
            "eager": variant(1000, [latency(2, 1)], judged(0.9, 0.9, 0.9)),
            "int8": variant(500, [latency(1, 2)], judged(0.9, 0.8, 0.95)),
            "fp16": variant(500, [latency(1, 2)], judged(0.9, 0.9, 0.5)),
        }
    )
    shown = page(found)
    assert shown.count("by class") == 2, "the table and its name"
    judged_ones = {name: each.accuracy for name, each in found.variants.items()}
    table = table_of_classes(judged_ones, "eager", 2)
    assert [each.name for each in table.columns] == ["class", "samples", "eager", "int8", "fp16"]
    # Of three classes the two in which a variant lost most.
    assert table.rows == [
        ("1", "9", "90.00 %", "80.00 % -10.00", "90.00 % +0.00"),
        ("2", "9", "90.00 %", "95.00 % +5.00", "50.00 % -40.00"),
    ]
