"""What a page shows: blocks of code, files among them, and commands as words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from needs import imported

_BLOCK = re.compile(
    r"(?:<!-- file: (?P<name>\S+) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
_INDENTED = re.compile(
    r"^    (?:\$ )?((?:[A-Z_]+=\S+ )*(?:optcli|make|python|\.venv/\S+) .*)$", re.MULTILINE
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Block:
    """A block of code; `name` is that of the file that it shows, if it says so."""

    language: str
    text: str
    name: str | None


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page; those within lists are moved to the left."""
    matches = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(each["language"], dedent(each["text"]), each["name"]) for each in matches]


@cache
def fitting(schema: Callable[[], dict[str, Any]]) -> Any:
    """A validator for a schema, which is checked once: that takes half a second."""
    found = schema()
    kind = imported("jsonschema").validators.validator_for(found)
    kind.check_schema(found)
    return kind(found)


def commands(page: Path) -> Iterator[list[str]]:
    """Every command of `bash` blocks, and of indented lines that begin with a known program, as words.

    Without variables that are set before it; a line with `>`, `|` or `&&` has several commands, or a
    command and a file.
    """
    plain = re.sub(r" *\\\n *", " ", _BLOCK.sub("", page.read_text(encoding="utf-8")))
    lines = [
        line for block in blocks(page) if block.language == "bash" for line in block.text.splitlines()
    ]
    for line in [*lines, *_INDENTED.findall(plain)]:
        yield from _commands(line)


def _commands(line: str) -> Iterator[list[str]]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    command: list[str] = []
    into_file = False
    for word in reader:
        if word in ("|", "&&", ";"):
            yield from filter(None, [command])
            command = []
        elif word in (">", ">>"):
            into_file = True
        elif into_file:
            into_file = False
        elif command or not _ASSIGNMENT.match(word):
            command.append(word)
    yield from filter(None, [command])
