"""The tests that are written in a folder's files, read with `ast`: what pytest has to find there."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)


@dataclass(frozen=True)
class Written:
    """The tests of a folder as `FILE::CLASS::FUNCTION`, files relative to a root, and what is wrong."""

    tests: frozenset[str]
    wrong: tuple[str, ...]


def written(folder: Path, root: Path) -> Written:
    """Every test of every Python file in a folder, whatever the folders and files are called."""
    tests: set[str] = set()
    wrong: list[str] = []
    for path in _files(folder):
        name = path.relative_to(root).as_posix()
        try:
            prefix = "test" if _called_test(path) else "test_"
            body = ast.parse(path.read_bytes()).body
            found = list(_tests(body, prefix))
        except (SyntaxError, ValueError) as error:
            wrong.append(f"{name} cannot be read: {error}")
            continue
        twice = sorted({one for one in found if found.count(one) > 1})
        wrong.extend(
            f"{name}::{one} is written more than once: only the last one runs" for one in twice
        )
        marks = [ast.unparse(each).startswith("pytestmark =") for each in body]
        if sum(marks) > 1:
            wrong.append(f"{name} sets pytestmark more than once: only the last one counts")
        if not found and _called_test(path):
            wrong.append(f"{name} is called a test file and holds no test")
        tests |= {f"{name}::{one}" for one in found}
    return Written(frozenset(tests), tuple(wrong))


def stray(root: Path, folder: Path) -> list[str]:
    """Files outside of the tests' folder that are called as if they held tests: nobody runs them."""
    found = (path for path in _files(root) if not path.is_relative_to(folder) and _called_test(path))
    return [path.relative_to(root).as_posix() for path in found]


def _called_test(path: Path) -> bool:
    return path.name.startswith("test_") or path.stem.endswith("_test")


def _files(folder: Path) -> Iterator[Path]:
    """Python files below a folder, environments and what a project's runs leave behind left out."""
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        top = Path(place) == folder
        ignored = {"__pycache__", ".git", *(("artifacts",) if top else ())}
        folders[:] = sorted(set(folders) - ignored)
        yield from (Path(place, name) for name in sorted(names) if name.endswith(".py"))


def _tests(body: Sequence[ast.AST], prefix: str, inside: str = "") -> Iterator[str]:
    """Functions called `PREFIX...` at the top of a file or class, under any `if`, `try` or `with`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith(prefix) and not _is_fixture(node):
                yield inside + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _tests(node.body, prefix, f"{inside}{node.name}::")
        else:
            inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, _BLOCKS)]
            yield from _tests(inner, prefix, inside)


def _is_fixture(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator is called `fixture`; `pytest.mark.usefixtures` makes no fixture."""
    return any(_own_name(decorator) == "fixture" for decorator in node.decorator_list)


def _own_name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
