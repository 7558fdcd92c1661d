"""Lists every text of optcli that a person reads, with its place, so that a reading misses none.

    .venv/bin/python docs/texts.py [ROOM ...] [--sample 20] [--seed 0]

Texts are: messages and hints of errors and problems, descriptions of options, help, what observers are
told, what verbs print, figures' and flags' sentences, everything that `report/` puts into words, and
the sentences of README and of the pages below docs/. A ROOM is a folder or file of optcli/, a page, or
`docs`. `--sample` draws some texts at random: read each as somebody who sees it for the first time.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "optcli"
_SHORTEST = 3  # words: less is a name, a key or a unit
# Calls whose texts are read by people; of other calls, and of assignments, what has these names.
_CALLS = {"Field", "Missing", "Verdict", "add", "warned", "warn", "failed", "finished", "progress"}
_CALLS |= {"echo", "say", "_say", "note", "Refused", "NoImageError", "ValueError"}
_ARGUMENTS = {"hint", "reason", "message", "help", "description", "why", "epilog", "what", "label"}
_WORDED = ("report", "tuning/rules.py", "results/flags.py")
# The docstrings of these classes are on the pages of docs/reference/, those of commands are their help.
_REFERENCE = (
    "passes/",
    "runners/",
    "settings/",
    "data/",
    "accuracy/metrics/",
    "results/",
    "serving/planning/files",
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[\"'(]|optcli)")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string in a file that is for people."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(text) for text in _docstrings(tree)}
    place = str(path.relative_to(ROOT))
    worded = place.startswith(_WORDED)
    seen: set[int] = set()
    for node in ast.walk(tree):
        if _is_shown(node, place):
            shown = node.body[0].value  # type: ignore[attr-defined]
            for sentence in _SENTENCE.split(" ".join(shown.value.split())):
                if len(sentence.split()) >= _SHORTEST:
                    yield shown.lineno, sentence
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
            said = name in _CALLS or name.endswith(("Error", "Finding", "Problem"))
            values = [*(node.args if said else ())]
            values += [k.value for k in node.keywords if said or k.arg in _ARGUMENTS]
        elif isinstance(node, ast.Assign) and _names(node) & _ARGUMENTS:
            values = [node.value]
        elif worded and isinstance(node, ast.Constant | ast.JoinedStr):
            values = [node]
        else:
            continue
        for value in values:
            for part in ast.walk(value):
                if isinstance(part, ast.Constant | ast.JoinedStr) and id(part) not in seen | documented:
                    seen.update(id(each) for each in ast.walk(part))
                    text = _text(part)
                    if len(text.split()) >= _SHORTEST:
                        yield part.lineno, text


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every sentence of a Markdown page, cells of tables among them; without code."""
    text = page.read_text(encoding="utf-8")
    for code in (r"<!--.*?-->", r"^ *```.*?^ *```$", r"^    .*?$"):
        text = re.sub(
            code, lambda each: "\n" * each[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
        )
    for block in re.finditer(r"(?:^(?![|#-]).+\n?)(?:^(?![|#-]|\d\. ).+\n?)*|^.+$", text, re.MULTILINE):
        line = text.count("\n", 0, block.start()) + 1
        cells = re.split(r"(?<!\\)\|", block[0]) if block[0].startswith("|") else [block[0]]
        for cell in cells:
            for sentence in _SENTENCE.split(" ".join(cell.split()).lstrip("-# ")):
                if len(sentence.split()) >= _SHORTEST:
                    yield line, sentence


def _is_shown(node: ast.AST, place: str) -> bool:
    """Whether people read the docstring of a node: as help of a verb, or on a page of the reference."""
    if isinstance(node, ast.ClassDef):
        return bool(ast.get_docstring(node)) and place.startswith(_REFERENCE)
    if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
        return False
    marks = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(getattr(mark, "attr", "") in ("command", "group") for mark in marks)


def _names(assignment: ast.Assign) -> set[str]:
    """The names that are assigned to, those of a tuple as well."""
    parts = (part for target in assignment.targets for part in ast.walk(target))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            yield node.body[0].value  # type: ignore[attr-defined]


def _text(node: ast.expr) -> str:
    """A string with `{}` for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = node.values if isinstance(node, ast.JoinedStr) else ()
    return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in parts)


def pages() -> list[Path]:
    """README and every page below docs/ that somebody wrote: the reference is made of the texts."""
    docs = ROOT.parent / "docs"
    written = (page for page in sorted(docs.rglob("*.md")) if page.parent.name != "reference")
    return [ROOT.parent / "README.md", *written]


def main() -> None:
    """Print the texts of the rooms named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", help="folders or files of optcli/, or pages; default: all")
    parser.add_argument("--sample", type=int, help="print so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    given = parser.parse_args()
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        if given.rooms and place.parts[0] not in given.rooms and str(place) not in given.rooms:
            continue
        found += [f"optcli/{place}:{line}: {' '.join(text.split())}" for line, text in texts(path)]
    for path in pages():
        place = path.relative_to(ROOT.parent)
        if not given.rooms or place.parts[0] in given.rooms or str(place) in given.rooms:
            found += [f"{place}:{line}: {text}" for line, text in sentences(path)]
    if given.sample is not None:
        draw = random.Random(given.seed)
        found = draw.sample(found, min(given.sample, len(found)))
    print("\n".join(found))


if __name__ == "__main__":
    main()
