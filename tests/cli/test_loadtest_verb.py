"""`optcli loadtest` against a server at a URL: its answer in every form, its exit codes, bad input."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest
from oip_server import serving

from optcli import cli
from optcli.results.loadtest import LOADTEST_SCHEMA, LoadTest
from optcli.serving.loadtest import workflow

pytestmark = pytest.mark.usefixtures("hurried_loads")

FIRST = str(min(os.sched_getaffinity(0)))
QUICK = ("--model", "digits", "--seconds", "0.6", "--settle", "0s")


@pytest.fixture(scope="module")
def url():
    with serving(wait_ms=5, fixed_ms=2, per_image_ms=1, batch=8) as address:
        yield address


@pytest.fixture
def say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(each) for each in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def plan(say, tmp_path) -> Path:
    code, out, err = say(
        "plan", "--curve", "2ms+1ms*b", "--rate", "50", "--slo", "p95=60s", "--target", "ray",
        "--batch", "8", "--wait", "5ms", "--instances", "1", "--json",
    )  # fmt: skip
    assert code == 0, err
    path = tmp_path / "plan.json"
    path.write_text(out)
    return path


@pytest.mark.long
@pytest.mark.slow
def test_a_load_is_held_to_its_plan_and_told_in_every_form(url, say, plan, tmp_path):
    code, out, err = say(
        "loadtest", url, *QUICK, "--seconds", "3", "--plan", plan, "--out", "shown", "--json"
    )
    assert code == 5, err  # seconds of load accept nothing
    test = LoadTest.model_validate_json(out)
    assert json.loads(out)["schema"] == LOADTEST_SCHEMA
    assert test.slo_ms == {"p95": 60_000.0}
    assert test.promised_per_s == 50
    (point,) = test.points
    assert point.rate_per_s == 50
    assert [each.by for each in point.predicted] == ["plan"]
    assert point.checked > 20
    assert point.wrong == 0
    assert [each.name for each in test.verdicts if each.blocking] == ["answers", "load 50/s"]
    assert test.outcome == "inconclusive"
    assert "too short to accept" in test.sentence
    assert len(test.curve_ms["plan"]) > 5
    shown = tmp_path / "shown"
    assert json.loads((shown / "report.json").read_text()) == json.loads(out)
    page = (shown / "report.html").read_text()
    assert "promised 60000 ms" in page
    assert "predicted by the plan" in page
    assert "<svg" in page
    markdown = (shown / "report.md").read_text()
    assert markdown.startswith("## optcli loadtest: digits")
    assert "| p95 by the plan |" in markdown
    suite = ElementTree.parse(shown / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert int(suite.get("skipped")) >= 1


@pytest.mark.slow
def test_wrong_answers_fail_and_are_named(say):
    with serving(wrong_every=30) as url:
        code, out, err = say("loadtest", url, *QUICK, "--rate", "60")
    assert code == 1, err
    assert "compared answers are wrong, such as sample" in out
    assert "reject: answers" in out


@pytest.mark.slow
def test_without_a_promise_right_answers_are_enough(url, say):
    code, out, err = say("loadtest", url, *QUICK, "--rate", "40", "--arrivals", "gamma:4")
    assert code == 0, err
    assert "accept" in out
    assert "gamma:4" in out


@pytest.mark.long
@pytest.mark.slow
def test_several_rates(url, say):
    code, out, err = say("loadtest", url, *QUICK, "--rate", "20", "--rate", "40", "--json")
    assert code == 0, err
    assert [each.rate_per_s for each in LoadTest.model_validate_json(out).points] == [20, 40]


@pytest.mark.long
@pytest.mark.slow
def test_the_limit_of_a_server_that_breaks(say, monkeypatch):
    monkeypatch.setattr(workflow, "PRECISION", 0.2)  # one bisection
    # 25 ms a call and one row a call: 40 a second at most, whatever the machine.
    with serving(batch=1, wait_ms=0, fixed_ms=25, per_image_ms=0) as url:
        code, out, err = say(
            "loadtest", url, *QUICK, "--seconds", "1.2", "--find-limit",
            "--slo", "p50=60ms", "--rate", "60", "--json",
        )  # fmt: skip
    test = LoadTest.model_validate_json(out)
    assert test.points[0].purpose == "ramp"
    assert test.points[0].rate_per_s == 60
    assert test.points[0].breach
    assert code in (1, 5), err
    assert test.limit.broken_per_s is not None
    assert not test.limit.confirmed  # short windows confirm nothing


@pytest.mark.long
@pytest.mark.slow
def test_a_calibration_is_kept_and_predicts_the_next_test(url, say, plan, tmp_path):
    given = ("loadtest", url, *QUICK, "--plan", plan, "--calibration", "known.json")
    code, out, err = say(*given, "--calibrate")
    assert code == 0, err
    assert "calibrated t(B)" in out
    kept = json.loads((tmp_path / "known.json").read_text())
    assert kept["model"] == "digits"
    assert kept["points_ms"]["1"] >= 3
    code, out, err = say(*given, "--rate", "30", "--json")
    (point,) = LoadTest.model_validate_json(out).points
    assert [each.by for each in point.predicted] == ["plan", "calibration"]


@pytest.mark.long
@pytest.mark.slow
def test_a_golden_request_is_sent_and_its_answer_held_against_the_response(url, say, tmp_path):
    values = [float(each) for each in range(8)]
    about = {"name": "image", "datatype": "FP32", "shape": [1, 2, 4], "data": values}
    (tmp_path / "golden-request.json").write_text(json.dumps({"inputs": [about]}))
    right = {"name": "scores", "datatype": "FP32", "shape": [1, 4], "data": [0.0, 2.0, 4.0, 6.0]}
    (tmp_path / "golden-response.json").write_text(json.dumps({"outputs": [right]}))
    code, out, err = say("loadtest", url, *QUICK, "--rate", "40", "--golden", tmp_path)
    assert code == 0, err
    assert "the golden request of" in out
    right["data"][3] = 7.0
    (tmp_path / "golden-response.json").write_text(json.dumps({"outputs": [right]}))
    code, out, _ = say("loadtest", url, *QUICK, "--rate", "40", "--golden", tmp_path)
    assert code == 1
    assert "'scores' is 1 away" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "digts", "--rate", "5"], "has no model 'digts'"),
        (["--rate", "5"], "the model is not named"),
        (["--model", "digits"], "there is no rate"),
        (["--model", "digits", "--rate", "fast"], "wanted a number"),
        (["--model", "digits", "--rate", "0"], "wanted more than 0"),
        (["--model", "digits", "--rate", "1e999"], "too large"),
        (["--model", "digits", "--rate", "5", "--slo", "p95=0ms"], "wanted more than 0"),
        (["--model", "digits", "--rate", "5", "--error-budget", "150%"], "wanted at most 100%"),
        (["--model", "digits", "--rate", "5", "--slo", "p95:5"], "wanted p50, p95 or p99"),
        (["--model", "digits", "--find-limit"], "there is no promise"),
        (["--model", "digits", "--find-limit", "--slo", "p95=9ms"], "no prediction"),
        (
            ["--model", "digits", "--rate", "5", "--calibrate"],
            "no folder here to keep the calibration in",
        ),
        (["--model", "digits", "--rate", "5", "--encoding", "image"], "no images to send"),
        (["--model", "digits", "--rate", "5", "--arrivals", "often"], "no kind of arrivals"),
        (["--model", "digits", "--rate", "5", "--client-cpus", "x"], "wanted processors"),
        (["--model", "digits", "--rate", "5", "--model-cpus", "x"], "wanted processors"),
        (["--model", "digits", "--rate", "5", "--model-cpus", FIRST], "is not started here"),
        (["--model", "digits", "--rte", "5"], "No such option"),
    ],
)
def test_bad_input_is_named_before_anything_is_sent(url, say, arguments, said):
    code, out, err = say("loadtest", url, *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert "hint:" in err


def test_the_model_may_not_take_all_processors(say, tmp_path):
    every = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    code, _, err = say("loadtest", str(tmp_path), "--model-cpus", every)
    assert code == 2
    assert "leaves no processor for the ingress" in err


@pytest.mark.slow
def test_a_folder_without_images_and_a_plan_that_is_none(url, say, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.json").write_text("{}")
    code, _, err = say("loadtest", url, *QUICK, "--rate", "5", "--images", "empty")
    assert (code, "no JPEG or PNG" in err) == (2, True)
    code, _, err = say("loadtest", url, *QUICK, "--rate", "5", "--plan", "no.json")
    assert (code, "this is no plan" in err) == (2, True)
    code, _, err = say("loadtest", "http://127.0.0.1:1", *QUICK, "--rate", "5")
    assert (code, "nothing answers there" in err) == (2, True)


def test_something_that_speaks_no_http_is_named(say):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, _, err = say("loadtest", f"http://127.0.0.1:{other.getsockname()[1]}", "--rate", "5")
        thread.join()
    assert (code, "speaks no HTTP, or breaks off: 'SSH-2.0-OpenSSH'" in err) == (2, True)
