"""Progress on a terminal: the line of the running step never breaks, whatever it says."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import unicodedata

import pytest
from tiny_project import DATA

from optcli.cli.progress import Progress, shortened


class Screen:
    """As much of a terminal as is needed: what its lines show in the end, and if one overflowed."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[str] = []
        self.overflowed = False

    def feed(self, text: str) -> None:
        line = ""
        for part in re.split(r"(\r\n|\r\x1b\[K|\n)", re.sub(r"\x1b\[[0-9;]*m", "", text)):
            if part in ("\r\n", "\n"):
                self.lines.append(line)
                line = ""
            elif part == "\r\x1b[K":
                self.overflowed = self.overflowed or width(line) >= self.columns
                line = ""
            else:
                line += part
        self.lines.append(line)


def width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def on_a_terminal(*arguments: str, folder, columns: int = 60, **environment: str) -> tuple[int, str]:
    """Run optcli with stderr (and stdout) on a terminal; its exit code and all that was written."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "optcli", *arguments],
        cwd=folder,
        env={**variables, "TERM": "xterm", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        found += part
    os.close(ours)
    return process.wait(60), found.decode()


@pytest.mark.slow
def test_a_build_on_a_terminal(place):
    long = "n" * 70
    place.recipe(f'  plain: []\n  {long}: [{{"./fakes.py:Copy": {{note: t}}}}]\n', data=DATA)
    code, text = on_a_terminal("build", "recipe.yaml", folder=place.folder)
    assert code == 0, text
    screen = Screen(60)
    screen.feed(text)
    assert not screen.overflowed
    assert "…" in text
    steps = [line for line in screen.lines if line.startswith("  built")]
    assert any(line.startswith(f"  built   {long} › ") for line in steps), "a finished line is whole"
    assert any("  latency" in line for line in screen.lines)
    assert "\x1b[1m" in text, "the table has its headings in bold"
    assert not any("opening" in line for line in screen.lines), "the live line is gone in the end"


@pytest.mark.slow
def test_no_color_is_respected_and_a_dumb_terminal_spared(place):
    code, text = on_a_terminal("compare", folder=place.folder, NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[3\dm", text)
    code, text = on_a_terminal("build", "recipe.yaml", folder=place.folder, TERM="dumb")
    assert code == 0
    assert "\x1b" not in text


@pytest.fixture
def terminal(monkeypatch, capsys):
    # Of the class: pytest has another stream in each phase of a test.
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    return capsys


def test_words_of_a_pass_cannot_move_the_cursor(terminal):
    with Progress() as progress:
        progress.started("a step")
        progress.progress("a step", 0.5, "one\ntwo\rthree\x1b[2J\x1b]0;title\x07 \x9b31m" + "x" * 200)
        progress.warned("a step", "first\nsecond\x1b[31m red\r")
        progress.failed("a step", "it\tbroke\x08\x08")
    said = terminal.readouterr().err
    plain = said.replace("\r\x1b[K", "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", plain)
    assert "  note    a step: first\n          second red\n" in plain
    assert "  FAILED  a step: it broke\n" in plain
    screen = Screen(30)
    screen.feed(said)
    assert not screen.overflowed


def test_without_a_terminal_there_are_lines_only(capsys):
    with Progress() as progress:
        progress.started("a step")
        progress.progress("a step", None, "working")
        progress.finished("a step", 1.25)
    assert capsys.readouterr().err == "  built   a step  (1.2 s)\n"


def test_without_a_terminal_a_long_step_says_how_far_it_is_every_30_seconds(capsys):
    now = 0.0
    progress = Progress(clock=lambda: now)
    progress.started("a step")
    progress.progress("another step", 0.5, "that nobody has heard begin")
    for _ in range(140):
        now += 0.5
        progress.progress("a step", now / 100, f"epoch 1 of 4: loss 0.5, {now:g} s\nspent")
    progress.progress("another step", 0.75, "later\x1b[2J")
    progress.finished("a step", 70)
    assert capsys.readouterr().err == (
        "  …       a step  30% epoch 1 of 4: loss 0.5, 30 s\n          spent\n"
        "  …       a step  60% epoch 1 of 4: loss 0.5, 60 s\n          spent\n"
        "  …       another step  75% later\n"
        "  built   a step  (70.0 s)\n"
    )


def test_on_a_terminal_the_line_is_kept_up_to_date_instead(terminal):
    now = 0.0
    with Progress(clock=lambda: now) as progress:
        progress.started("a step")
        now = 100.0
        progress.progress("a step", 0.5, "working")
    said = terminal.readouterr().err
    assert said == "a step …\r\x1b[Ka step  50% working\r\x1b[K"


@pytest.mark.parametrize(
    ("text", "columns", "wanted"),
    [
        ("short", 10, "short"),
        ("exactly10c", 10, "exactly10c"),
        ("eleven char", 10, "eleven ch…"),
        ("目录目录目录", 12, "目录目录目录"),
        ("目录目录目录", 11, "目录目录目…"),
        ("目录目录目录", 10, "目录目录…"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
        ("anything", 0, ""),
        ("anything", 1, "…"),
    ],
)
def test_shortened_counts_columns(text, columns, wanted):
    assert shortened(text, columns) == wanted
    assert width(shortened(text, columns)) <= columns
