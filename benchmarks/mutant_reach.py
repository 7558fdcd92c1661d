"""Which tests come to the places of mutants: a marker before each, which writes the running test down.

The test stands in PYTEST_CURRENT_TEST, which the processes that it starts inherit. What a fixture or
another process comes to counts for all tests of the file: they may share what was made there.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from mutant_edits import Mutant

LOG = "MUTANTS_REACHED"  # the variable that names the file
Reached = dict[str, set[str]]  # tests, or files of tests, by the id of the mutant
# It has no names of its own, since the code around it may look at its variables, and no errors: what is
# confined may not write. A process writes each mutant once a test.
_MARKER = """\
try: (lambda o, s, k: (k in s) or (s.add(k), __import__("io").open(o.environ["{log}"], "a").write(\
k + ("" if "pytest" in __import__("sys").modules else " (process)") + chr(10))))(__import__("os"), \
__import__("sys").__dict__.setdefault("_reached_mutants", set()), \
"{id} " + __import__("os").environ["PYTEST_CURRENT_TEST"])
except Exception: pass"""


def with_markers(tree: Path, mutants: Sequence[Mutant]) -> Iterator[tuple[str, str]]:
    """The files with markers: their paths and texts. What runs on import is left out."""
    files: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        files[mutant.path].append(mutant)
    for path, those in files.items():
        if not (tree / path).is_file():
            continue
        lines = (tree / path).read_text().split("\n")
        program = ast.parse("\n".join(lines))
        places = [(each.place(lines), each.id) for each in those]
        for place, name in sorted(((p, n) for p, n in places if p is not None), reverse=True):
            if (line := _statement(program, lines, place + 1)) is not None:
                indent = lines[line - 1][: -len(lines[line - 1].lstrip())]
                marker = _MARKER.format(log=LOG, id=name).split("\n")
                lines[line - 1 : line - 1] = [indent + each for each in marker]
        yield path, "\n".join(lines)


def _statement(program: ast.AST, lines: Sequence[str], line: int) -> int | None:
    """The line before which a statement can stand that runs before this line does."""
    best = None
    for function in ast.walk(program):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (each for one in function.body for each in ast.walk(one)):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                text = lines[first - 1]
                own_line = not text[: node.col_offset].strip() and not text.lstrip().startswith("elif ")
                if own_line and (best is None or first > best):
                    best = first
    return best


def read_reached(file: Path) -> Reached:
    """What `reach` wrote."""
    reached: Reached = defaultdict(set)
    for line in sorted(set(file.read_text().splitlines())):
        name, _, rest = line.partition(" ")
        test = rest.removesuffix(" (process)").rpartition(" (")[0]
        own = rest.endswith(" (call)")
        if test:
            reached[name].add(test if own else test.partition("::")[0])
    return dict(reached)
