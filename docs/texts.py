"""Lists every text of optcli that a person reads, with its place, so that a reading misses none.

    .venv/bin/python docs/texts.py [ROOM ...] [--sample 20] [--seed 0]

Texts are: messages and hints of errors and problems, descriptions of options, help, what observers are
told, figures' and flags' sentences, and everything that `report/` puts into words. `--sample` draws
some of them at random: read each as somebody who sees it for the first time.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "optcli"
_SHORTEST = 3  # words: less is a name, a key or a unit
# Calls whose texts are read by people; of other calls, and of assignments, what has these names.
_CALLS = {"Field", "Missing", "Verdict", "add", "warned", "warn", "failed", "finished", "progress"}
_ARGUMENTS = {"hint", "reason", "message", "help", "description", "why", "epilog", "what", "label"}
_WORDED = ("report", "tuning/rules.py", "results/flags.py", "results/flag_texts.py")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string in a file that is for people."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(text) for text in _docstrings(tree)}
    worded = str(path.relative_to(ROOT)).startswith(_WORDED)
    seen: set[int] = set()
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


def main() -> None:
    """Print the texts of the rooms named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", help="folders or files of optcli/; default: all")
    parser.add_argument("--sample", type=int, help="print so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    given = parser.parse_args()
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        if given.rooms and place.parts[0] not in given.rooms and str(place) not in given.rooms:
            continue
        found += [f"optcli/{place}:{line}: {' '.join(text.split())}" for line, text in texts(path)]
    if given.sample is not None:
        draw = random.Random(given.seed)
        found = draw.sample(found, min(given.sample, len(found)))
    print("\n".join(found))


if __name__ == "__main__":
    main()
