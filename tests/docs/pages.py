"""The pages for the next engineer, taken by the letter: their files and their commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commands import Said, hurried, optcli_process

REPOSITORY = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"<!-- file: (?P<name>\S+) -->\n```\w+\n(?P<text>.*?)\n```\n", re.DOTALL)
_STEP = re.compile(
    r"(?:<!-- file: (?P<name>\S+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)\n```$"
    r"|^    (?P<command>\S(?:[^\n]*\\\n)*[^\n]*)$",
    re.DOTALL | re.MULTILINE,
)
_CODES = re.compile(r" exit (\d+(?: or \d+)*)")
# A figure with its sign, a figure that could not be told or is in doubt, a digest, or a frame.
_VARIES = re.compile(r"[^A-Za-z]*|[^A-Za-z]*\d.*|n/a|disturbed|\(?[0-9a-f]{10,12}\)?")
# The last column of a build's table where it says how fast a variant is: a busy machine cannot tell.
_ON_SPEED = re.compile(r"(?<=\S)  +(?:accept|not compared|no clear gain over)\b.*$")
PROGRAMS = ("optcli", "python", "git")
_COMMAND = re.compile(r"^    (?:\$ )?(optcli .*?)(?:  +#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page of docs/: the files it shows, and the commands it gives."""

    files: dict[str, str]
    commands: list[str]

    @staticmethod
    def read(name: str) -> Page:
        text = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
        files = {match["name"]: match["text"] + "\n" for match in _FILE.finditer(text)}
        assert text.count("<!-- file:") == len(files), "a file is shown twice, or is not in a block"
        return Page(files, _COMMAND.findall(text))


@dataclass(frozen=True)
class Command:
    """A command line of a tutorial, the exit codes it may have, and lines that it prints."""

    line: str
    codes: frozenset[int]
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tutorial:
    """A page of docs/tutorials/ as its steps in order: files to write and commands to run.

    A step is `(NAME, TEXT)` for a file behind `<!-- file: NAME -->`, or a `Command` for each indented
    line. What a block of `text` shows belongs to the command before it. A comment such as `# exit 1`
    or `# exit 0 or 5` says which exit codes are right. Every block must be one of the three.
    """

    steps: list[tuple[str, str] | Command]
    in_checkout: bool

    @staticmethod
    def read(path: Path) -> Tutorial:
        """Take a page apart; raises AssertionError over a block that is no step."""
        text = path.read_text(encoding="utf-8")
        steps: list[tuple[str, str] | Command] = []
        covered = 0
        for match in _STEP.finditer(text):
            if match["command"]:
                line, _, comment = re.sub(r"\s*\\\n\s*", " ", match["command"]).partition("  #")
                assert line.split()[0] in PROGRAMS, f"{path.name}: {line}"
                said = _CODES.search(comment)
                codes = said[1].split(" or ") if said else ["0"]
                steps.append(Command(line.strip(), frozenset(map(int, codes))))
                continue
            covered += 1
            if match["name"]:
                steps.append((match["name"], match["text"] + "\n"))
                continue
            assert match["kind"] == "text", f"{path.name}: a block of {match['kind']} is no step"
            command = steps[-1] if steps else None
            assert isinstance(command, Command), f"{path.name}: no command prints {match['text']}"
            assert not command.shown, f"{path.name}: {command.line} prints two blocks"
            steps[-1] = replace(command, shown=tuple(match["text"].splitlines()))
        assert 2 * covered == text.count("```"), f"{path.name}: a block is not closed"
        return Tutorial(steps, "root of a checkout" in " ".join(text.split()))

    @property
    def commands(self) -> list[Command]:
        return [step for step in self.steps if isinstance(step, Command)]


def missing_lines(shown: Iterable[str], printed: str) -> list[str]:
    """The lines of a page that were not printed in this order.

    Numbers, digests and what is said of speed differ from machine to machine: a line is there where its
    other words are, in their order, in one line. `...` stands for what the page leaves out.
    """
    lines = iter(printed.splitlines())
    missing = []
    for line in shown:
        if line.strip() == "...":
            continue
        words = [word for word in _ON_SPEED.sub("", line).split() if not _VARIES.fullmatch(word)]
        assert words, f"the page shows {line!r}, which holds nothing but figures"
        pattern = re.compile(r"(?<!\S)" + r"(?!\S).*(?<!\S)".join(map(re.escape, words)) + r"(?!\S)")
        if not any(pattern.search(each) for each in lines):
            missing.append(line)
            lines = iter(())
    return missing


class Checkout:
    """A copy of the project in a folder, as somebody who adds a file to it has one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("optcli", "recipes"):  # with their byte code: the files keep their times
            shutil.copytree(REPOSITORY / name, folder / name)
        (folder / "tests").mkdir()
        shutil.copyfile(REPOSITORY / "tests" / "configured.py", folder / "tests" / "configured.py")

    def add(self, page: Page, *names: str) -> None:
        """Write files of a page where it says."""
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page.files[name], encoding="utf-8")

    def run(self, command: str, *import_path: Path) -> Said:
        """Carry out `optcli ...` with this copy of the package; a build measures little."""
        program, *arguments = shlex.split(command)
        assert program == "optcli", command
        path = os.pathsep.join(map(str, (self.folder, *import_path)))
        return optcli_process(*hurried(arguments), folder=self.folder, PYTHONPATH=path)

    def report(self, recipe: str) -> dict[str, Any]:
        """The report of the last build of a recipe."""
        path = self.folder / "artifacts" / recipe / "report.json"
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def generic_tests(self, file: str, name: str) -> None:
        """Have the generic tests of a room judge a class that was added to this copy."""
        shutil.copyfile(REPOSITORY / "tests" / file, self.folder / "tests" / Path(file).name)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-k", name, f"tests/{Path(file).name}"),
            ],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'tests'}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
