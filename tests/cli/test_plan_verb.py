"""`optcli plan`: exit codes, forms, files, and what is said over bad input."""

from __future__ import annotations

import json

import pytest

from optcli.cli import run
from optcli.results.loadtest import Calibration

pytestmark = pytest.mark.usefixtures("hurried_plans")

AFFINE = ("--curve", "6ms+4ms*b", "--rate", "200")


@pytest.mark.slow
def test_a_promise_that_is_kept_is_a_configuration_in_words(capsys):
    assert run(["plan", *AFFINE, "--slo", "p95=120ms"]) == 0
    said = capsys.readouterr().out
    assert "Serve batches of at most 8, waiting at most 10 ms on 2 instances" in said
    assert "in flight     at most 48, of which 32 wait" in said
    assert "p95 against the rate, promised 120 ms" in said


@pytest.mark.slow
def test_the_json_is_public_and_the_page_stands_alone(capsys, tmp_path):
    page = tmp_path / "plan.html"
    code = run(["plan", *AFFINE, "--slo", "p95=120ms", "--price", "1.2", "--json", "--html", str(page)])
    assert code == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["schema"] == 2
    names = "batch wait_ms instances concurrency semantics p50_ms p95_ms p99_ms utilisation"
    names += " max_rate_per_s queue_cap max_in_flight"
    assert set(names.split()) <= set(plan["recommended"])
    assert plan["recommended"]["instances"] == 2
    low, high = plan["recommended"]["p95_interval_ms"]
    assert low < plan["recommended"]["p95_ms"] < high
    assert all(each["text"] for each in plan["notes"])
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "<script" not in text
    assert "promised 120 ms" in text
    assert "p95 against the rate" in text


@pytest.mark.slow
def test_a_promise_that_nothing_keeps_is_code_1_and_says_why(capsys, tmp_path):
    page = tmp_path / "plan.html"
    assert run(["plan", *AFFINE, "--slo", "p95=9ms", "--html", str(page)]) == 1
    said = capsys.readouterr().out
    assert "No configuration keeps p95 <= 9 ms" in said
    assert "nothing keeps the promise" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--curve", "1:25ms,2:20ms", "--rate", "9"), "the curve falls"),
        (("--curve", "4:25ms", "--rate", "9"), "--curve: the curve has one point only"),
        (("--curve", "12ms", "--rate", "0"), "--rate: rate_per_s: found 0"),
        (
            ("--curve", "12ms", "--rate", "9", "--utilisation", "1.2"),
            "--utilisation: utilisation: found",
        ),
        (("--curve", "12ms", "--rate", "fast"), "--rate: found 'fast', wanted a number"),
        (("--curve", "12ms", "--rate", "9", "--wait", "5ms,x"), "--wait: found 'x', wanted a time"),
        (("--curve", "12ms", "--rate", "9", "--arrivals", "weekly"), "--arrivals: 'weekly' is no kind"),
        (("--curve", "12ms", "--rate", "9", "--variant", "a"), "found curve beside variant"),
        (("--rate", "9"), "--curve: the plan has no curve, and there is no report of a build here"),
    ],
)
def test_bad_input_is_code_2_with_one_sentence_and_a_hint(
    capsys, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "--slo", "p95=120ms", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "hint: " in said


@pytest.fixture
def calibration(tmp_path):
    """A server whose ingress works 2 ms for each request, and its replica 1 ms beside the model."""
    known = Calibration(
        model="m",
        measured="now",
        points_ms={1: 5.0, 8: 12.0},
        calls={1: 9, 8: 9},
        overhead_ms=7.0,
        ingress_ms=2.0,
        ingress_cv2=1.5,
        replica_ms=1.0,
        own_processors=True,
    )
    path = tmp_path / "calibration.json"
    path.write_text(known.to_json())
    return str(path)


@pytest.mark.slow
def test_a_plan_for_a_server_that_was_calibrated(capsys, calibration):
    common = ("--slo", "p95=120ms", "--target", "ray", "--json")
    assert run(["plan", "--calibration", calibration, "--rate", "200", *common]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["curve"]["points_ms"] == {"1": 6.0, "8": 20.0}
    assert plan["asked"]["overhead"]["ingress_ms"] == 2.0
    # Each process of the ingress carries at most 500 a second.
    assert plan["recommended"]["ingresses"] == 1
    assert plan["recommended"]["max_rate_per_s"] < 500
    assert run(["plan", "--calibration", calibration, "--rate", "600", *common]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["recommended"]["ingresses"] == 3


@pytest.mark.slow
def test_waits_are_compared_side_by_side(capsys):
    asked = ["plan", *AFFINE, "--slo", "p95=120ms", "--target", "ray", "--wait", "0,5ms,25ms"]
    assert run(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("Waits") + 1 :][:5]
    assert [line.split()[0] for line in table if "─" not in line] == ["wait", "0", "5", "25"]
    assert table[2].endswith("breaks it")
    assert table[4].endswith("keeps it")


def test_a_question_without_a_rate_or_a_curve_is_answered(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "--freshness", "8h", "--slo", "p95=200ms"]) == 0
    assert "Hybrid: a part is promised within 200 ms" in capsys.readouterr().out
    assert run(["plan", "--curve", "1:6.2ms,4:9.1ms,16:21ms,64:74ms", "--slo", "p95=30ms"]) == 0
    assert "within 30 ms is 16: one instance carries 762 a second" in capsys.readouterr().out
    assert run(["plan", "--curve", "12ms", "--slo", "p95=5ms"]) == 1


@pytest.mark.parametrize("beside", [("--curve", "12ms"), ("--overhead", "3ms")])
def test_a_calibration_says_the_curve_and_the_overhead(capsys, calibration, beside):
    arguments = ["plan", "--calibration", calibration, *beside, "--rate", "9", "--slo", "p95=120ms"]
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert f"found {beside[0]} beside --calibration" in said
    assert "leave one of them out" in said


@pytest.mark.slow
def test_a_plan_file_and_options_say_the_same(capsys, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text('name: api\ncurve: "6ms+4ms*b"\nrate_per_s: 20\nslo: {p95_ms: 120}\nheadroom: 0\n')
    assert run(["plan", str(path), "--rate", "200", "--headroom", "20%", "--json"]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert run(["plan", *AFFINE, "--slo", "p95=120ms", "--json"]) == 0
    by_options = json.loads(capsys.readouterr().out)
    assert by_file["name"] == "api"
    assert by_file["recommended"] == by_options["recommended"]
    path.write_text(path.read_text() + "haedroom: 0.1\n")
    assert run(["plan", str(path)]) == 2
    assert "plan.yaml:6:1: unknown key 'haedroom'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_curve_is_that_of_the_report_of_a_build(place, optcli):
    planned = optcli(
        "plan",
        place.artifacts / "tiny",
        *("--variant", "copied", "--rate", "20", "--slo", "p95=5s", "--json"),
    )
    assert planned.code in (0, 5), planned.err
    plan = json.loads(planned.out)
    assert plan["curve"]["source"] == "the table of copied in tiny"
    assert plan["recommended"]["p95_ms"] < 5000
    wrong = optcli(
        "plan",
        place.artifacts / "tiny" / "report.json",
        *("--variant", "copeid", "--rate", "20", "--slo", "p95=5s"),
    )
    assert wrong.code == 2
    assert "did you mean 'copied'?" in wrong.err


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--curve", "--calibration"])
def test_a_curve_beside_a_report_names_the_option_that_has_it(place, optcli, calibration, option):
    given = calibration if option == "--calibration" else "12ms"
    wrong = optcli(
        "plan",
        place.artifacts / "tiny",
        *(option, given, "--rate", "20", "--slo", "p95=5s"),
    )
    assert wrong.code == 2
    assert f"{option}: found a report and a curve" in wrong.err
    assert "leave one out" in wrong.err


def test_both_schemas_are_printed(capsys):
    assert run(["schema", "plan-file"]) == 0
    assert "rate_per_s" in json.loads(capsys.readouterr().out)["properties"]
    assert run(["schema", "plan"]) == 0
    assert "recommended" in json.loads(capsys.readouterr().out)["properties"]
