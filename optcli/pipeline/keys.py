"""Which of optcli's own modules decide a result, found by walking imports: they belong to its key.

A step or a measurement names the modules that do its work. `code` gives these and every module that
they import, at the top, inside functions, or by a string that another process imports. `from room
import name` leads to the module of that name. Where there is none, it leads to the room's `__init__`;
otherwise that `__init__` does not count, although Python runs it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import optcli
from optcli.artifact import Format
from optcli.files.digest import FileDigests
from optcli.runners import DEFAULTS

PACKAGE = Path(optcli.__file__).parent

# Modules and rooms that no key holds, and why. The walk ends there.
NOT_COUNTED: Mapping[str, str] = {
    "__init__.py": "names the functions of the Python API",
    "accuracy/policies.py": "judges figures that are kept, anew in every build",
    "accuracy/verdicts.py": "judges figures that are kept, anew in every build",
    "data": "samples have a key of their own, which holds this room",
    "environment.py": "what it finds is in keys as values",
    "errors": "words of failures, which are not kept",
    "measure/latency/verdicts.py": "judges figures that are kept, anew in every build",
    "observer.py": "tells people what happens",
    "files/digest.py": "makes keys",
    "files/registry.py": "finds classes by name",
    "files/regular_files.py": "refuses what is no file; changes nothing that is read",
    "pipeline/admission.py": "refuses what was fetched; changes nothing that is taken",
    "pipeline/execute.py": "starts steps; what they do is in the modules that it names",
    "pipeline/keys.py": "makes keys",
    "pipeline/model_files": "finds artifacts for the verbs that look at them",
    "pipeline/plan.py": "makes keys",
    "pipeline/places.py": "says where; what measures is in the modules that it calls",
    "recipe": "what it reads is in keys as values",
    "report": "shows results",
    "results/flags.py": "words of flags; measurements, which keep their figures, name it themselves",
    "store": "keeps results by their keys",
    "settings/user_code.py": "the user's code is in keys by its content",
    "settings/user_imports.py": "the user's code is in keys by its content",
    "workers": "starts processes and carries messages; what they do is in the modules that they call",
}

# Every build reads many modules for these: a text is searched for plain letters first, which is quick.
_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
_IMPORT = re.compile(r"import (optcli[\w.]+)")
_FROM = re.compile(r"from (optcli[\w.]*) import (\([^)]*\)|[^\n]*)")
_TEXT = re.compile(r"[\"'](optcli(?:\.\w+)+)(?::\w+)?[\"']")
_QUOTED = ('"optcli.', "'optcli.")
_NAME = re.compile(r"(\w+)(?: as \w+)?")


def code(starts: Iterable[str], digests: FileDigests) -> dict[str, str]:
    """Digests of the modules that decide what `starts` do, by file; these are files below `optcli/`."""
    return {file: digests.of(PACKAGE / file) for file in reached(tuple(starts))}


def of_step(
    maker: str | None, formats: Iterable[Format], digests: FileDigests, *, checked: bool
) -> dict[str, str]:
    """The code of a step.

    `maker` is the file of the source or pass; None: a pass of the user's own. `formats` are those that
    it reads and writes. What is `checked` is opened in the runners that `pipeline/check.py` takes.
    """
    starts = ["pipeline/step.py", *([maker] if maker else [])]
    for each in formats:
        starts.append(f"models/formats/{each.value}.py")
        if checked:
            runners = {DEFAULTS[each], "openvino"} if each == Format.ONNX else {DEFAULTS[each]}
            starts += sorted(f"runners/{name}.py" for name in runners)
    return code(starts, digests)


def of_measurement(runner: str, starts: Iterable[str], digests: FileDigests) -> dict[str, str]:
    """Digests of the modules that run an artifact in a runner and of those that `starts` reach."""
    return code([f"runners/{runner}.py", *starts], digests)


def room(name: str) -> list[str]:
    """The files of a room whose modules are loaded by name, so that no import statement names them."""
    skipped = len(os.path.join(PACKAGE, ""))
    paths = (
        os.path.join(folder, file) for folder, _, files in os.walk(PACKAGE / name) for file in files
    )
    return sorted(path[skipped:].replace(os.sep, "/") for path in paths if path.endswith(".py"))


@cache
def reached(starts: tuple[str, ...]) -> tuple[str, ...]:
    """The files that `starts` reach by imports, themselves included; sorted."""
    files = set(starts)
    waiting = list(files)
    while waiting:
        new = _imported(waiting.pop()).difference(files)
        files |= new
        waiting.extend(new)
    return tuple(sorted(files))


@cache
def _imported(file: str) -> frozenset[str]:
    """The files that a file imports, without those that do not count."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    if "if TYPE_CHECKING:" in text:
        text = _TYPES.sub("", text)
    return frozenset(each for name in _names(text) if (each := _file(name)) and is_counted(each))


def _names(text: str) -> Iterator[str]:
    """Dotted names of modules that a source imports, those of single members among them."""
    for (module,) in _statements(_IMPORT, text):
        yield module
    if any(each in text for each in _QUOTED):
        yield from _TEXT.findall(text)
    for module, members in _statements(_FROM, text):
        for member in _NAME.findall(re.sub(r"#.*", "", members)):
            inner = f"{module}.{member}"
            yield inner if _file(inner) else module


def _statements(form: re.Pattern[str], text: str) -> Iterator[tuple[str, ...]]:
    """The groups of a pattern wherever it begins a line, whatever its indentation."""
    for match in form.finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        if not text[line : match.start()].strip():
            yield match.groups()


@cache
def _file(name: str) -> str | None:
    """The file of a module by its dotted name; None where there is none, or it is optcli itself."""
    inner = name.split(".")[1:]
    if not inner:
        return None
    base = "/".join(inner)
    return next((each for each in (f"{base}.py", f"{base}/__init__.py") if each in _files()), None)


@cache
def _files() -> frozenset[str]:
    return frozenset(room(""))


def is_counted(file: str) -> bool:
    """Whether keys hold a file that a walk reaches."""
    parts = file.split("/")
    return not any("/".join(parts[: end + 1]) in NOT_COUNTED for end in range(len(parts)))
