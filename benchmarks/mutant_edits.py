"""The mutants of `mutants.py`: which places of a program can be changed, and how.

A mutant is a text that replaces another at one place of a file. Places are taken where a program does
something: not in annotations, type aliases, imports, decorators, docstrings or `if TYPE_CHECKING`.
Strings are changed where they are keys, compared or returned, and only those without spaces: prose is
not the aim.
"""

from __future__ import annotations

import ast
import bisect
import hashlib
import io
import itertools
import random
import re
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PAIRS = (
    ("<", "<="), (">", ">="), ("==", "!="), ("in", "not in"), ("is", "is not"), ("+", "-"), ("*", "/"),
    ("+=", "-="), ("*=", "/="), ("and", "or"), ("True", "False"), ("min", "max"), ("any", "all"),
    ("break", "continue"), ("0", "-1"),
)  # fmt: skip
SWAPPED = {
    **dict(_PAIRS),
    **{two: one for one, two in _PAIRS},
    "//": "/", "//=": "/=", "%": "*", "%=": "*=", "**": "*", "**=": "*=",
}  # fmt: skip
_NOT_RUN = ("annotation", "returns", "decorator_list")
_ALIAS_PARTS = (ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Constant, ast.BinOp)
Edit = tuple[str, int, int, str]  # its kind, where it begins and ends, the new text


@dataclass(frozen=True)
class Mutant:
    """One change: `old`, in this line (from 1) and column (from 0), becomes `new`; the whole line."""

    id: str
    path: str
    line: int
    column: int
    kind: str
    old: str
    new: str
    text: str

    def planted(self, source: str) -> str | None:
        """The file with the mutant, in its line if that has moved; None if there is no such place."""
        lines = source.split("\n")
        if (place := self.place(lines)) is None:
            return None
        start = sum(len(line) + 1 for line in lines[:place]) + self.column
        end = start + len(self.old)
        changed = source[:start] + self.new + source[end:]
        return changed if source[start:end] == self.old and _differs(source, changed) else None

    def place(self, lines: Sequence[str]) -> int | None:
        """The index of its line, which may have moved; None if there is none, or several."""
        places = [number for number, text in enumerate(lines) if text == self.text]
        places = [self.line - 1] if self.line - 1 in places else places
        return places[0] if len(places) == 1 else None


def _differs(source: str, changed: str) -> bool:
    """Whether changed text compiles, to another program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(changed, "mutant", "exec")
        except (SyntaxError, ValueError):
            return False
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


class Source:
    """The text of a file, with the places of its nodes and operators."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text, self.tree = path, text, ast.parse(text)
        self.lines = text.split("\n")
        self.starts = [0, *itertools.accumulate(len(line) + 1 for line in self.lines)]
        self._tokens = [
            (self.starts[token.start[0] - 1] + token.start[1], token.string)
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.OP, tokenize.NAME) and token.string not in "()"
        ]

    def place(self, node: Any) -> tuple[int, int]:
        """Where a node begins and ends."""
        return self._offset(node.lineno, node.col_offset), self._offset(
            node.end_lineno, node.end_col_offset
        )

    def _offset(self, line: int, column: int) -> int:
        before = self.lines[line - 1].encode()[:column]  # `ast` counts bytes
        return self.starts[line - 1] + len(before.decode())

    def operator(self, left: ast.AST, right: ast.AST) -> tuple[int, int]:
        """Where the operator between two operands begins and ends."""
        bounds = self.place(left)[1], self.place(right)[0]
        first, last = (bisect.bisect_left(self._tokens, (bound, "")) for bound in bounds)
        (start, _), (end, text) = self._tokens[first], self._tokens[last - 1]
        return start, end + len(text)

    def mutant(self, edit: Edit) -> Mutant:
        """The edit as it is written down."""
        kind, start, end, new = edit
        row = bisect.bisect_right(self.starts, start) - 1
        where, old = (self.path, row + 1, start - self.starts[row]), self.text[start:end]
        name = hashlib.sha256(repr((*where, kind, old, new)).encode()).hexdigest()[:8]
        return Mutant(name, *where, kind, old, new, self.lines[row])


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that run: no annotations, docstrings, imports, type aliases, f-strings."""
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children if name not in _NOT_RUN else ():
            if isinstance(child, ast.AST) and not _does_nothing(child):
                yield child
                yield from _children(child)


def _does_nothing(node: ast.AST) -> bool:
    match node:
        # Python 3.11 does not say where the parts of an f-string are.
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.AnnAssign(annotation=annotation):
            return ast.unparse(annotation).endswith("TypeAlias")
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() as value):
            types = re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name)
            parts = (part for part in ast.walk(value) if isinstance(part, ast.expr))
            return bool(types) and all(isinstance(part, _ALIAS_PARTS) for part in parts)
    return False


def edits(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Every change of a node that is known here."""
    match node:
        case ast.Compare(left=left, comparators=others):
            for pair in itertools.pairwise([left, *others]):
                yield from _swap("comparison", source, source.operator(*pair))
            for one in (left, *others):
                inner = one.elts if isinstance(one, ast.Tuple | ast.List | ast.Set) else [one]
                yield from _strings(source, inner)
        case ast.BinOp(left=left, right=right):
            yield from _swap("arithmetic", source, source.operator(left, right))
        case ast.BoolOp(values=values):
            for pair in itertools.pairwise(values):
                yield from _swap("and, or", source, source.operator(*pair))
        case ast.UnaryOp(op=ast.Not()):
            start, end = source.place(node)
            yield "not removed", start, end, source.text[start:end].removeprefix("not").lstrip()
        case ast.Constant(value=bool()):
            yield from _swap("True, False", source, source.place(node))
        case ast.Constant(value=int() | float() as value):
            yield "number", *source.place(node), repr(value + 1)
        case ast.Call(func=ast.Name() as function):
            if function.id in ("min", "max", "any", "all"):
                yield from _swap("function", source, source.place(function))
        case ast.Subscript(slice=index):
            if ast.unparse(index) in ("0", "-1"):
                yield from _swap("first, last", source, source.place(index))
            yield from _strings(source, [index])
        case ast.Dict(keys=keys):
            yield from _strings(source, keys)
        case ast.MatchValue(value=value):
            yield from _strings(source, [value])
        case ast.Return(value=ast.expr() as value):
            yield "return None", *source.place(value), "None"
            yield from _strings(source, [value])
        case ast.Break() | ast.Continue():
            yield from _swap("break, continue", source, source.place(node))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield from _negated(source, test)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield from _negated(source, test)
        case ast.AugAssign(target=target, value=value):
            yield from _swap("arithmetic", source, source.operator(target, value))
    if _is_an_effect(node):
        yield "statement removed", *source.place(node), "pass"


def _swap(kind: str, source: Source, place: tuple[int, int]) -> Iterator[Edit]:
    text = " ".join(source.text[slice(*place)].split())
    if text in SWAPPED:
        yield kind, *place, SWAPPED[text]


def _strings(source: Source, nodes: Sequence[ast.AST | None]) -> Iterator[Edit]:
    """Another string for each that is written in one piece and is no prose."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            start, end = source.place(node)
            if source.text[start] in "\"'" and not re.search(r"\s", node.value):
                yield "string", start, end, source.text[start : end - 1] + "x" + source.text[end - 1]


def _negated(source: Source, test: ast.expr) -> Iterator[Edit]:
    if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
        start, end = source.place(test)
        yield "condition negated", start, end, f"not ({source.text[start:end]})"


def _is_an_effect(node: ast.AST) -> bool:
    """Whether a statement only calls something or sets an attribute or an element."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return True
        case ast.Assign(targets=targets):
            return all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets)
        case ast.AnnAssign(target=target, value=ast.expr()) | ast.AugAssign(target=target):
            return isinstance(target, ast.Attribute | ast.Subscript)
    return False


def draw(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Mutants of lines taken by chance, at most one a line; the same for the same tree and seed."""
    chance = random.Random(seed)
    lines: list[tuple[Source, list[Edit]]] = []
    for path in sorted((tree / "optcli").rglob("*.py")):
        source = Source(path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8"))
        by_line: dict[int, list[Edit]] = defaultdict(list)
        for edit in sorted(each for node in _children(source.tree) for each in edits(source, node)):
            by_line[bisect.bisect_right(source.starts, edit[1])].append(edit)
        lines.extend((source, by_line[line]) for line in sorted(by_line))
    chance.shuffle(lines)
    return list(itertools.islice((m for line in lines for m in _one_of(*line, chance)), count))


def _one_of(source: Source, found: list[Edit], chance: random.Random) -> Iterator[Mutant]:
    """One mutant of a line: a place by chance, then a change of it; none if nothing compiles."""
    places = defaultdict(list)
    for edit in found:
        places[edit[1]].append(edit)
    for start in chance.sample(sorted(places), len(places)):
        for edit in chance.sample(places[start], len(places[start])):
            mutant = source.mutant(edit)
            if mutant.planted(source.text) is not None:
                yield mutant
                return
