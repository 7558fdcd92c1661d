"""The pages for the next engineer, taken by the letter: their files and their commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import Said, optcli_process

REPOSITORY = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"<!-- file: (?P<name>\S+) -->\n```\w+\n(?P<text>.*?)\n```\n", re.DOTALL)
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


class Checkout:
    """A copy of the project in a folder, as somebody who adds a file to it has one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("optcli", "recipes"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
        (folder / "tests").mkdir()
        shutil.copyfile(REPOSITORY / "tests" / "configured.py", folder / "tests" / "configured.py")

    def add(self, page: Page, *names: str) -> None:
        """Write files of a page where it says."""
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page.files[name], encoding="utf-8")

    def run(self, command: str, *import_path: Path) -> Said:
        """Carry out `optcli ...` with this copy of the package."""
        program, *arguments = shlex.split(command)
        assert program == "optcli", command
        path = os.pathsep.join(map(str, (self.folder, *import_path)))
        return optcli_process(*arguments, folder=self.folder, PYTHONPATH=path)

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
