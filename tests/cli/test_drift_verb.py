"""`optcli loadtest --drift`: every form of the answer, exit codes, and what it cannot read."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from drifting import described, normalized, photographs, seen

from optcli.results.loadtest import DRIFT_SCHEMA, Drift
from optcli.serving.drift.input_statistics import Statistics

FORMS = {"report.json", "report.html", "report.md", "junit.xml"}


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Statistics:
    return described(tmp_path_factory.mktemp("made"), {"image": normalized(photographs(300, 0))})


@pytest.fixture
def server() -> Iterator[Callable[[dict[str, tuple[int, bytes]]], str]]:
    """A server with some pages beside those of the protocol."""
    running: list[http.server.ThreadingHTTPServer] = []
    tensor = {"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}
    about = {"name": "net", "inputs": [tensor], "outputs": [{**tensor, "name": "out"}]}

    def start(pages: dict[str, tuple[int, bytes]]) -> str:
        known = {
            "/v2": (200, b'{"name": "test"}'),
            "/v2/health/ready": (200, b""),
            "/v2/models/net": (200, json.dumps(about).encode()),
            **pages,
        }

        class Pages(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = known.get(self.path, (404, b""))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        one = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        running.append(one)
        threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{one.server_address[1]}"

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


@pytest.fixture
def seeing(server: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a server that gives these statistics of its inputs, or this content; gives its URL."""
    monkeypatch.chdir(tmp_path)

    def start(found: Statistics | bytes) -> str:
        content = found if isinstance(found, bytes) else found.packed()
        return server({"/v2/models/net/inputs": (200, content)}) + "/v2/models/net"

    return start


def test_a_drift_is_told_in_every_form(seeing, optcli, calibration, tmp_path):
    url = seeing(seen(calibration, {"image": normalized(photographs(200, 1) + 40)}))
    said = optcli("loadtest", url, "--drift", "--out", "shown", "--json")
    assert said.code == 1, said.err
    found = Drift.model_validate_json(said.out)
    assert json.loads(said.out)["schema"] == DRIFT_SCHEMA
    assert (found.model, found.target, found.kept, found.seen) == ("net", url, 200, 200)
    assert found.inputs[0].drifted > 0
    shown = tmp_path / "shown"
    assert {each.name for each in shown.iterdir()} == FORMS
    assert json.loads((shown / "report.json").read_text()) == json.loads(said.out)
    page = (shown / "report.html").read_text()
    assert "DRIFTED" in page
    assert "calibration sd higher" in page
    markdown = (shown / "report.md").read_text()
    assert markdown.startswith("## optcli loadtest --drift: net")
    assert "| image | mean | channel" in markdown
    suite = ElementTree.parse(shown / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    words = optcli("loadtest", url, "--drift")
    assert words.code == 1
    assert "reject: drift of image: channel" in words.out
    assert "What drifted" in words.out


def test_no_drift_and_too_few_have_their_codes(seeing, optcli, calibration):
    def asked(count: int, seed: int, *more: str) -> Any:
        url = seeing(seen(calibration, {"image": normalized(photographs(count, seed))}))
        return optcli("loadtest", url, "--drift", *more)

    said = asked(200, 2)
    assert (said.code, "accept: drift of image: none of 12" in said.out) == (0, True)
    assert "What drifted" not in said.out
    said = asked(20, 1, "--out", "shown")
    assert (said.code, "20 different inputs are too few" in said.out) == (5, True)
    suite = ElementTree.parse(Path("shown") / "junit.xml").getroot()[0]
    assert suite.get("skipped") == "1"
    assert asked(0, 1).code == 5


def test_a_folder_has_no_statistics(optcli, tmp_path):
    said = optcli("loadtest", str(tmp_path), "--drift")
    assert (said.code, "name the URL of the running server" in said.err) == (2, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: b"PK",
        lambda found: Statistics({**found.about, "schema": 7}, found.reference).packed(),
        lambda found: Statistics({**found.about, "model": "\x1b[2J"}, found.reference).packed(),
        lambda found: Statistics(
            {**found.about, "periods": [{"begun": 1e300, "seen": 1, "missed": 0}]},
            found.reference,
            [[found.reference[0]]],
        ).packed(),
    ],
)
def test_a_broken_answer_is_named(seeing, optcli, calibration, change):
    url = seeing(change(calibration))
    said = optcli("loadtest", url, "--drift")
    assert said.code == 2
    assert f"{url}/inputs" in said.err
    assert "holds no statistics of inputs" in said.err
    assert "\x1b" not in said.err


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (("--rate", "5"), "--rate"),
        (("--seconds", "3"), "--seconds"),
        (("--find-limit",), "--find-limit"),
        (("other",), "[SECOND]"),
    ],
)
def test_what_sends_traffic_does_not_go_with_it(optcli, option, named):
    said = optcli("loadtest", "deployed", "--drift", *option)
    assert said.code == 2
    assert f"{named}: --drift sends no traffic" in said.err


@pytest.mark.slow
def test_a_server_is_asked_over_http(optcli, server, calibration):
    found = seen(calibration, {"image": normalized(photographs(200, 2))})
    url = server({"/v2/models/net/inputs": (200, found.packed())})
    said = optcli("loadtest", f"{url}/v2/models/net", "--drift", "--json")
    assert said.code == 0, said.err
    assert Drift.model_validate_json(said.out).kept == 200
    assert optcli("loadtest", url, "--model", "net", "--drift").code == 0


@pytest.mark.slow
def test_a_server_that_keeps_nothing_or_something_else(optcli, server):
    for status, body, sentence in (
        (404, b"", "keeps no statistics of its inputs"),
        (500, b"", "it says 500"),
        (200, b"<html>", "holds no statistics of inputs"),
    ):
        url = server({"/v2/models/net/inputs": (status, body)})
        said = optcli("loadtest", f"{url}/v2/models/net", "--drift")
        assert said.code == 2
        assert sentence in said.err
        assert "hint:" in said.err
