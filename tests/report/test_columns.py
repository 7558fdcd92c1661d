"""One entry is one column: in the terminal's layouts, Markdown, HTML and CSV."""

import csv
import io

import pytest
from example import TOO_FEW, accuracy, both, latency, report, variant
from report_forms import details, markdown, page, results, text

from optcli.report import columns, csv_text, markdown_text, terminal, wording
from optcli.report.changes import compare, document
from optcli.report.changes import tables as of_changes
from optcli.report.columns import Figure
from optcli.report.csv_text import csv_of_changes
from optcli.report.html import html
from optcli.report.rows import rows
from optcli.results import Operations, Share
from optcli.results.document import Cell, Column, Layout
from optcli.results.outcomes import LayerError, Layers

WIDTHS = {Layout.ONE_LINE: None, Layout.TWO_LINES: 150, Layout.THREE_LINES: 120, Layout.NARROW: 80}


def stacks_of(report, layout):
    shown = columns.of_results(report, rows(report, 1))
    return [
        [[each.name for each in line] for line in stack] for stack in terminal.stacked(shown, layout)
    ]


@pytest.fixture
def power(monkeypatch):
    """A column more, of watts."""
    watts = {"eager": 31.5, "onnx": 27.25}
    added = Figure(
        "W",
        lambda row: Cell(f"{watts.get(row.name, 20.0):.2f}", interval="[1, 99]", short="~W"),
        lambda row: {"power_w": watts.get(row.name)},
    )
    monkeypatch.setattr(columns, "COLUMNS", (*columns.COLUMNS, added))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.usefixtures("power")
def test_a_column_more_is_in_every_layout_of_the_terminal(layout):
    lines = text(report(), WIDTHS[layout]).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("variant"))
    rule = next(place for place, line in enumerate(lines) if line.startswith("──"))
    assert rule - start == layout.lines, "this width has another layout by now"
    assert ("±95 %" in lines[start]) == (layout == Layout.NARROW)
    assert "W" in " ".join(lines[start:rule]).split()
    eager = next(line for line in lines if line.startswith("eager"))
    assert ("~W" if layout == Layout.NARROW else "31.50 [1, 99]") in eager


@pytest.mark.usefixtures("power")
def test_a_column_more_is_in_markdown_html_and_csv():
    lines = markdown(report()).splitlines()
    assert "| change | W | verdict |" in next(line for line in lines if line.startswith("| variant"))
    assert any("| 27.25 [1, 99] | accept |" in line for line in lines)
    shown = results(report())
    assert '<th scope="col">W</th>' in shown
    assert "<td>27.25<small>[1, 99]</small></td>" in shown
    cells = list(csv.DictReader(io.StringIO(csv_text(report()))))
    assert {row["variant"]: row["power_w"] for row in cells}["onnx"] == "27.25"
    assert cells[0]["p50_ms"]


def test_a_column_more_is_in_every_view_of_a_comparison(monkeypatch):
    added = Column(
        "W", lambda row: Cell(f"{row.variant.name} W"), lambda row: {"power_w": row.variant.name}
    )
    monkeypatch.setattr(of_changes, "COLUMNS", (*of_changes.COLUMNS, added))
    found = [compare(("before", report()), ("after", report()))]
    assert "eager W" in terminal.text(document(found))
    assert "| accuracy | W |" in markdown_text.markdown(document(found))
    assert "| eager W |" in markdown_text.markdown(document(found))
    assert "<td>eager W</td>" in html(document(found))
    assert csv_of_changes(found).splitlines()[0].endswith(",settings,power_w")


def test_names_are_used_once():
    names = [column.name for column in columns.COLUMNS]
    assert len(names) == len(set(names))
    below = {name for one in columns.COLUMNS for layout in Layout for name in one.above(layout)}
    assert below <= set(names)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (
            Layout.TWO_LINES,
            [
                [["variant"], ["runtime"]],
                [["precision"], ["size"]],
                [["p50 ms"], ["images/s"]],
                [["p95 ms"], ["p99 ms"]],
                [["speed-up"], ["vs fp32"]],
                [["accuracy"], ["change"]],
                [["verdict"]],
            ],
        ),
        (
            Layout.NARROW,
            [
                [["variant"], ["runtime"], ["precision", "size"]],
                [["p50 ms"], ["p95 ms"], ["p99 ms"]],
                [["speed-up"], ["vs fp32"], ["images/s"]],
                [["accuracy"], ["change"]],
                [["verdict"]],
            ],
        ),
    ],
)
def test_columns_share_one_where_lines_are_left(layout, expected):
    assert stacks_of(report(), layout) == expected


def test_the_rate_moves_where_the_speed_up_has_a_line_left():
    plain = report({"eager": variant(1000, both(2.0, 1), accuracy()), "onnx": variant(900, both(1, 2))})
    stacks = stacks_of(plain, Layout.TWO_LINES)
    assert [["p50 ms"]] in stacks
    assert [["speed-up"], ["images/s"]] in stacks


def test_what_the_same_at_every_size_is_stands_in_the_first_table():
    names = [each.name for each in columns.of_results(report(), rows(report(), 8), first=False)]
    assert names[-1] == "vs fp32"
    assert {"accuracy", "change", "verdict"}.isdisjoint(names)


def test_a_missing_figure_says_why_in_html():
    def why(row, name):
        shown = results(report({"eager": variant(1000, [latency(1, 1)]), "onnx": row}))
        line = shown.split("<tr>")[-1]
        heads = shown.split('scope="col"')[1:]
        place = [head.split(">")[1].split("<")[0] for head in heads].index(name)
        found = line.split("<td")[place].split('title="')
        return found[1].split('"')[0] if len(found) > 1 else None

    few = variant(900, [latency(0.5, 2.0, flags=(TOO_FEW,))])
    assert why(few, "p99 ms") == "n=128, needs 368"
    assert why(few, "p95 ms") is None
    alone = latency(0.5, 2.0).model_copy(update={"speedup": None, "p99_ms": None})
    assert why(variant(900, [alone]), "p99 ms") == "not known"
    assert (
        why(variant(900, [alone]), "speed-up")
        == "not measured beside it, or the other one was disturbed"
    )
    disturbed = variant(900, [alone.model_copy(update={"fit": False})])
    assert why(disturbed, "speed-up").startswith("other work disturbed it")
    assert why(variant(900, []), "p50 ms") == why(variant(900, []), "speed-up") == "not measured"
    assert why(variant(900, []), "size") is None


def test_what_was_not_timed_on_the_device_says_so_in_html():
    timed = latency(0.1, 2.0).model_copy(update={"region": "device"})
    on_gpu = variant(900, [latency(0.5, 2.0), timed])
    shown = results(report({"eager": variant(1000, [latency(1, 1)]), "engine": on_gpu}))
    assert shown.count('<abbr title="not timed on the device">n/a</abbr>') == 1


def test_an_entry_of_csv_alone_is_in_no_table():
    heads = [each.name for each in columns.of_results(report(), rows(report(), 1))]
    assert "launches" not in heads
    assert "launches" in csv_text(report()).splitlines()[0].split(",")


def test_more_figures_have_a_row_for_each_measurement():
    shown = details(report())
    heads = ["variant", "batch", "threads", "calls", "mean ms", "CPU ms", "import ms", "load ms"]
    heads += ["first ms", "memory", "flags"]
    assert [part.split("</th>")[0].split(">")[-1] for part in shown.split('scope="col"')[1:]] == heads
    assert shown.count('scope="row"') == 8
    assert '<td class="left wraps">fluctuating (IQR/median 14 %)</td>' in shown
    assert details(report({"eager": variant(1000, [])})) == ""


def test_without_labels_there_is_no_change_and_without_accuracy_no_column():
    unlabelled = accuracy().model_copy(update={"metric": None, "value": None, "drop": None})
    by_outputs = report({"eager": variant(1000, both(1, 1), unlabelled)})
    shown = columns.of_results(by_outputs, rows(by_outputs, 1))
    assert [each.heading() for each in shown][-2:] == ["SQNR", "verdict"]
    nothing = report({"eager": variant(1000, both(1, 1))})
    assert columns.of_results(nothing, rows(nothing, 1))[-2].name == "speed-up"


def test_in_several_lines_the_interval_of_a_share_has_its_own():
    share = Share(
        batch_size=1,
        precision="fp32",
        bound="compute",
        achieved_per_s=1e11,
        limit_per_s=2e11,
        share=0.05,
        low=0.04,
        high=0.125,
    )
    work = Operations(
        per_image=1_500_000_000,
        weight_bytes=1,
        input_output_bytes_per_image=1,
        counted_in="export_onnx",
        shares=(share,),
    )
    counted = report({"eager": variant(1000, both(1, 1), operations=work)})
    of_peak = next(each for each in columns.COLUMNS if each.name == "of peak")
    first, second = rows(counted, 1)[0], rows(counted, 8)[0]
    assert of_peak.text(first) == "5.0 % (compute) [4.0, 12]"
    assert of_peak.text(second) == "n/a"
    for layout in (Layout.TWO_LINES, Layout.THREE_LINES, Layout.NARROW):
        assert of_peak.text(first, layout) == "5.0 % (compute)\n[4.0, 12]"


def test_rows_of_html_are_marked_by_what_was_decided():
    broken = variant(900, [], status="failed", reason="it hung")
    shown = results(report({**report().variants, "broken": broken}))
    assert '<tr class="best"><th scope="row" class="left">onnx-int8</th>' in shown
    assert shown.count('class="best"') == 1
    assert '<span class="chip none">baseline</span>' in shown
    assert '<span class="chip accept">✓ accept</span>' in shown
    assert '<span class="chip reject">✕ reject: accuracy</span>' in shown
    assert shown.count('<span class="chip reject">✕ failed</span>') == 1  # aoti was not built


def test_more_figures_have_their_units_and_sides():
    row = latency(1, 1).model_copy(
        update={"threads": 7, "launches": 5, "peak_memory_bytes": 12_345_678}
    )
    shown = details(report({"eager": variant(1000, [row])}))
    assert '<th scope="col" class="left">flags</th>' in shown
    assert "<td>7</td>" in shown
    assert "<td>12.3 MB</td>" in shown


def test_layers_stand_left_where_they_are_text():
    worst = LayerError(
        tensor="t",
        node="conv",
        operator="Conv",
        shape=(1, 8),
        kind="weight",
        own_db=3.2,
        sqnr_db=5.0,
        advice="leave it",
    )
    found = variant(900, both(1, 2), layers=Layers(rows=(worst,), compared=1, samples=8))
    shown = page(report({"eager": variant(1000, both(1, 2)), "int8": found}))
    assert '<td>5.0 dB</td><td class="left">weight</td><td class="left">conv</td>' in shown
    assert '<th scope="col" class="left">own</th>' in shown
    assert '<th scope="col" class="left">try</th>' in shown


def test_a_comparison_names_size_and_accuracy_once_and_colours_verdicts():
    found = report()

    def after(rows):
        made = variant(5_000_000, rows, accuracy())
        other = made.artifact.model_copy(update={"key": "other"})
        return report({**found.variants, "onnx": made.model_copy(update={"artifact": other})})

    changed = [compare(("before", found), ("after", after(both(1.8, 1.3))))]
    lines = terminal.text(document(changed)).splitlines()
    onnx = next(place for place, line in enumerate(lines) if line.lstrip().startswith("onnx "))
    assert "2.48 MB → 5.00 MB" in lines[onnx]
    assert "98.89 %, unchanged" in lines[onnx]
    assert "MB" not in lines[onnx + 1]
    assert "%, unchanged" not in lines[onnx + 1]
    shown = html(document(changed))
    assert "chip reject" in shown
    assert "chip none" in shown
    row = latency(1.8, 1.3)
    unknown = row.model_copy(update={"p50_ms": row.p50_ms.model_copy(update={"low": None})})
    shown = html(document([compare(("before", found), ("after", after([unknown])))]))
    assert '<span class="chip inconclusive">? not known</span>' in shown


def test_points_have_no_negative_zero():
    assert [wording.points(each) for each in (-0.00001, 0.0, -0.0123)] == ["+0.00", "+0.00", "-1.23"]
