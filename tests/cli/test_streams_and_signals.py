"""Readers that go away, streams that are closed or full, and signals: the exit code says what was."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid

import click
import psutil
import pytest
from tiny_project import DATA

from optcli.store import Store

OPTCLI = [sys.executable, "-m", "optcli"]


def shell(line: str, folder) -> subprocess.CompletedProcess[str]:
    """A line for bash in which `optcli` is this one, and the exit code is that of optcli."""
    program = f'optcli() {{ {sys.executable} -m optcli "$@"; }}\n{line}\nexit ${{PIPESTATUS[0]}}'
    return subprocess.run(
        ["bash", "-c", program], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["compare", "passes", "schema", "cache ls", "build recipe.yaml --json"]
)
def test_a_reader_that_goes_away_changes_nothing(place, verb):
    done = shell(f"optcli {verb} | head -c 5", place.folder)
    assert done.returncode == 0
    assert len(done.stdout) == 5
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_the_verdict_holds_though_nobody_reads_the_table(place):
    head = "version: 1\nname: strict\n"
    bad = '  plain: []\n  bad: [{"./fakes.py:Misbehave": {way: raise}}]\n'
    recipe = place.recipe(bad, data=DATA)
    recipe.write_text(recipe.read_text().replace("version: 1\nname: tiny\n", head))
    for line in ("optcli build recipe.yaml | true", "optcli build recipe.yaml 2>&1 | true"):
        done = shell(line, place.folder)
        assert done.returncode == 4, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("closed", "data"), [(">&-", ""), ("2>&-", ""), ("<&-", ""), ("<&- >&- 2>&-", DATA)]
)
def test_closed_streams_do_no_harm(place, closed, data):
    place.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n' if data else "  plain: []\n", data=data)
    fresh = f"optcli build recipe.yaml --store {place.folder}/fresh {closed}"
    done = shell(fresh, place.folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert Store(place.folder / "fresh").verify() == []


@pytest.mark.slow
@pytest.mark.needs("device file", "full")
@pytest.mark.parametrize("verb", ["compare", "build recipe.yaml", "--help", "schema"])
def test_a_full_stdout_is_said(place, verb):
    done = shell(f"optcli {verb} > /dev/full", place.folder)
    assert done.returncode == 4
    assert "No space left on device\n  hint: " in done.stderr
    assert "Traceback" not in done.stderr


def living(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["pid"]):
        try:
            if process.environ().get("OPTCLI_TEST_MARK") == mark and process.status() != "zombie":
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (signal.SIGINT, 130, "interrupted: what was finished is kept"),
        (signal.SIGTERM, 143, "ended by SIGTERM: what was finished is kept"),
        (signal.SIGHUP, 129, "ended by SIGHUP: what was finished is kept"),
    ],
)
def test_a_signal_ends_the_build_cleanly(place, nothing_lost, number, code, says):
    mark = uuid.uuid4().hex
    place.recipe('  plain: []\n  hang: [{"./fakes.py:Misbehave": {way: hang}}]\n', data=DATA)
    build = subprocess.Popen(
        [*OPTCLI, "build", "recipe.yaml"],
        cwd=place.folder,
        env={**os.environ, "OPTCLI_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background or under nohup inherit ignored signals.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    below = psutil.Process(build.pid)
    # The step's own child hangs as well. Environments of all processes cost a tenth of a second.
    while len(below.children(recursive=True)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(living(mark)) >= 4
    build.send_signal(number)
    out, err = build.communicate(timeout=30)
    assert build.returncode == code, err
    assert out == ""
    assert says in err
    assert "Traceback" not in err
    assert "memory ran out" not in err, "what we killed ourselves is no failure"
    deadline = time.monotonic() + 10
    while living(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not living(mark)
    nothing_lost()


@pytest.mark.slow
def test_nohup_is_respected(place):
    done = shell("trap '' HUP; optcli build recipe.yaml --dry-run --json", place.folder)
    assert done.returncode == 0
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "import sys; sys.argv = ['optcli', 'passes', '--json']\n"
        "from optcli import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.slow
def test_a_signal_that_turned_into_another_error_is_no_bug(place, optcli, monkeypatch):
    """Python's import system makes an ImportError of an interrupt within an extension module."""
    from optcli import cli
    from optcli.pipeline import preview

    def importing(*_: object, **__: object) -> None:
        try:
            cli._end(signal.SIGTERM, None)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    monkeypatch.setattr(cli, "_received", [])
    monkeypatch.setattr(preview, "preview", importing)
    said = optcli("build", "recipe.yaml", "--dry-run")
    assert said.code == 143
    assert said.err.startswith("ended by SIGTERM")


def test_nothing_that_is_shown_controls_the_terminal(monkeypatch):
    from optcli import cli
    from optcli.cli import streams
    from optcli.results.document import Document, Items, Section

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    name = "cat\x1b]0;title\x07\x9b2J\r\u202egnp.exe"
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", streams.patient(screen, 1))
    click.echo(f"{name}\ttab\nline")
    plain = screen.getvalue()
    assert plain == "cat\ufffd]0;title\ufffd\ufffd2J\ufffd\ufffdgnp.exe\ttab\nline\n"
    sections = [Section(name, [Items([name])])]
    cli.show(None, Document(name, sections, answer=name, outcome="reject"))
    drawn = screen.getvalue().removeprefix(plain)
    assert "\x1b[" in drawn, "the answer has its colour"
    assert not {"\x07", "\x9b", "\r", "\u202e"} & set(drawn)
    assert "\x1b]0" not in drawn
