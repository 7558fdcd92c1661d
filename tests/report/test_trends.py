"""The gate's history as text and as a page: every figure, its steps, and no word too sure."""

from html.parser import HTMLParser

import pytest

from optcli.report import html, terminal, trends
from optcli.results.gate import HistoryEntry, Trend


def trend(values, steps=(), unit="ms", variant="onnx"):
    entries = tuple(
        HistoryEntry(
            at=f"2026-01-{day + 1:02d}T00:00:00+00:00", recipe="r", commit="c0ffee" * 6, baseline="b",
            variant=variant, metric="p50", unit=unit, value=value, outcome="accept", machine="m" * 12,
        )
        for day, value in enumerate(values)
    )  # fmt: skip
    return Trend("r", variant, "p50", None, unit, "m" * 12, entries, tuple(steps))


STEP = trend([1.0, 1.0, 1.0, 1.1, 1.1, 1.1], steps=[3])


def text(found):
    return terminal.text(trends.document(found))


def page(found):
    return html.html(trends.document(found))


def test_the_terminal_shows_latest_trend_and_steps():
    shown = text([STEP, trend([2e6] * 3, unit="bytes", variant="int8")])
    assert "1.10 ms" in shown
    assert "▁▁▁███" in shown
    assert "+10.0 % since 2026-01-04 at c0ffeec0" in shown
    assert "2.00 MB" in shown
    assert "For information" in shown
    assert text([]).endswith("\nthe history has no such figure\n")


@pytest.mark.parametrize(
    ("values", "bars"), [([1, 2, 3], "▁▅█"), ([5, 5], "▁▁"), (list(range(50)), None)]
)
def test_spark_lines(values, bars):
    found = trends.spark([float(value) for value in values])
    assert len(found) == min(len(values), 40)
    assert bars in (None, found)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_has_a_point_for_every_run():
    shown = page([STEP, trend([3.0], variant="<b>&")])
    parser = Tags()
    parser.feed(shown)
    assert parser.open == []
    classes = [attributes.get("class") for _, attributes in parser.seen]
    assert classes.count("curve") == 2  # of one trend, for wide pages and for phones
    assert classes.count("budget") == 2
    assert sum(tag == "circle" for tag, _ in parser.seen) == 2 * 7
    assert "<b>" not in shown
    assert "http" not in shown.replace("http-equiv", "")


def test_two_runs_are_too_few_to_say_no():
    (entries,) = {trend([1.0, 1.44]).entries}
    few = Trend("r", "onnx", "p50", None, "ms", "m" * 12, entries, (), fewest=6)
    for shown in (text([few]), page([few])):
        assert "cannot tell yet, 2 of 6 runs: +44.0 % since the first" in shown
    calm = [1.0] * 7
    assert text([trend(calm)]).splitlines()[4].endswith(" no")
    entries = trend([*calm, 1.44]).entries
    leaving = Trend("r", "onnx", "p50", None, "ms", "m" * 12, entries, (), fewest=6, latest=0.44)
    assert "cannot tell yet: the last run +44.0 %" in text([leaving])
