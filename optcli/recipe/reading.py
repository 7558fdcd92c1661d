"""Reading YAML 1.2 into nodes. Nothing is constructed but text, numbers, true, false and null."""

from __future__ import annotations

import errno
import re
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

from optcli.errors import did_you_mean, excerpt
from optcli.files import regular_files
from optcli.recipe.nodes import MOST_BYTES, MOST_VALUES, Node, Position, Problems, ReadingBudget

# Far more than any recipe needs: what lies beyond is a mistake or an attack.
_MOST_DEPTH = 50
_MOST_CHARACTERS = 4096
_MOST_INTEGER = 2**63
_MOST_DIGITS = 200
# Control characters but tab and line ends, and halves of surrogate pairs: in no name, no path, no text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_CORE = "tag:yaml.org,2002:"


def read(
    path: Path,
    shown: str,
    problems: Problems,
    budget: ReadingBudget,
    named_at: Position | None = None,
) -> Node | None:
    """A file as a node; None where it cannot be read, with the problem noted.

    `shown` is the file's name in problems; `named_at` is where the file is named; `budget`
    is what all files of a recipe share.
    """
    problems.reading(shown)
    try:
        text = _text(path, shown, budget, named_at or Position(shown, 1, 1))
    except _RefusedError as refused:
        problems.add(refused.place, str(refused), refused.hint)
        return None
    return parse(text, shown, problems, budget)


class _RefusedError(Exception):
    def __init__(self, message: str, place: Position, hint: str) -> None:
        super().__init__(message)
        self.place, self.hint = place, hint


def _text(path: Path, shown: str, budget: ReadingBudget, place: Position) -> str:
    name = excerpt(shown)
    if regular_files.is_folder(path):
        raise _RefusedError(f"{name} is a folder, wanted a recipe file", place, _siblings(path, ""))
    try:
        data = regular_files.read(path, MOST_BYTES)
    except FileNotFoundError:
        hint = _siblings(path.parent, path.name)
        raise _RefusedError(f"there is no file {name}", place, hint) from None
    except OSError as error:
        may_not = error.errno == errno.EACCES
        hint = "check its permissions" if may_not else "name a recipe: a text file in YAML"
        raise _RefusedError(f"{name} cannot be read: {error.strerror}", place, hint) from None
    budget.bytes -= len(data)
    if budget.bytes < 0:
        message = f"with {name} the recipe's files have more than {MOST_BYTES} bytes together"
        raise _RefusedError(message, place, "extend fewer or smaller recipes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        at = Position(shown, line, column)
        raise _RefusedError(message, at, "save the file as UTF-8") from None


def _siblings(folder: Path, name: str) -> str:
    if not regular_files.is_folder(folder):
        return f"there is no folder {excerpt(str(folder))} either"
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))[:10]
    return did_you_mean(name, names) if names else "name a YAML file"


def parse(
    text: str,
    shown: str,
    problems: Problems,
    budget: ReadingBudget,
    fixed: Position | None = None,
) -> Node | None:
    """YAML text as a node, at a `fixed` place if one is given; None where it is empty or wrong."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    reader = YAML(typ="safe", pure=True)
    reader.Composer = _composer(budget, shown)
    place = Position(shown, 1, 1)
    try:
        composed = reader.compose(text)
    except _RefusedError as refused:
        place, message, hint = refused.place, str(refused), refused.hint
    except ReaderError as error:
        place = _position(text, shown, error.position)
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        hint = "remove it"
    except MarkedYAMLError as error:
        if mark := error.problem_mark or error.context_mark:
            place = Position(shown, mark.line + 1, mark.column + 1)
        message, hint = _syntax(error, text.splitlines()[place.line - 1 : place.line])
    except RecursionError:
        message, hint = "the YAML is nested too deeply", "flatten it"
    except YAMLError as error:
        message, hint = f"this is not YAML: {excerpt(str(error), 200)}", "correct the syntax"
    except Exception as error:  # the parser stumbles over some texts, such as "\\U00110000"
        message = f"this is not YAML: {type(error).__name__} while reading it"
        hint = "look at escapes such as \\U and at tags"
    else:
        try:
            converter = _Converter(text, shown, problems, fixed, budget)
            return None if composed is None else converter.node(composed, 0)
        except _RefusedError as refused:
            place, message, hint = refused.place, str(refused), refused.hint
    problems.add(fixed or place, message, hint)
    return None


def _composer(budget: ReadingBudget, shown: str) -> type:
    """A composer that stops where there is too much, before all of it is read."""
    from ruamel.yaml.composer import Composer

    class BoundedComposer(Composer):  # type: ignore[misc]
        def __init__(self, loader: Any = None) -> None:
            super().__init__(loader)
            self.warn_double_anchors = False  # YAML allows them, and thousands would be told of

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.depth > _MOST_DEPTH or not budget.write():
                mark = self.parser.peek_event().start_mark
                place = Position(shown, mark.line + 1, mark.column + 1)
                if self.depth > _MOST_DEPTH:
                    raise _too_deep(place)
                message = f"the recipe has more than {MOST_VALUES} keys and values"
                raise _RefusedError(message, place, "write several recipes, or say it with a matrix")
            return super().compose_node(parent, index)

    return BoundedComposer


def _position(text: str, shown: str, index: int) -> Position:
    before = text[:index]
    return Position(shown, before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1)


def _syntax(error: Any, lines: list[str]) -> tuple[str, str]:
    """What a YAML error says and what mends it."""
    line = lines[0] if lines else ""
    problem = excerpt(" ".join((error.problem or error.context or "wrong syntax").split()), 200)
    if "'\\t'" in problem or "\t" in line[: len(line) - len(line.lstrip())]:
        return "found a tab, wanted spaces", "indent with spaces"
    if "another document" in problem:
        return "found a second document, wanted one", "remove the line ---"
    if "undefined alias" in problem:
        return problem, "define it with &NAME before, or quote the text if it begins with *"
    if "mapping values are not allowed" in problem:
        hint = "put the text in quotes if it contains ': ', or correct the indentation"
        return "found a ':' where no key can stand", hint
    if re.search(r"[\[{].*\$\{", line):
        return f"syntax: {problem}", 'inside [ ] and { } a ${NAME} needs quotes: "${NAME}"'
    if "%" in problem or "@" in problem or "`" in problem:
        return f"syntax: {problem}", "put the text in quotes"
    context = f" ({error.context})" if error.context and error.problem else ""
    return f"syntax: {problem}{context}", "close what was opened, and line up the indentation"


def _too_deep(place: Position) -> _RefusedError:
    return _RefusedError(f"values are nested more than {_MOST_DEPTH} deep", place, "flatten it")


class _Converter:
    """Turns composed YAML into nodes; counts, because aliases can make little text very large."""

    def __init__(
        self,
        text: str,
        shown: str,
        problems: Problems,
        fixed: Position | None,
        budget: ReadingBudget,
    ) -> None:
        self._text, self._budget = text, budget
        self._shown, self._problems, self._fixed = shown, problems, fixed
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def _place(self, yaml: Any) -> Position:
        mark = yaml.start_mark
        if self._fixed is not None:
            return self._fixed
        if yaml.value == "" and yaml.style is None:
            # The mark of what is not there is at whatever follows; the : or - stands before it.
            return self._end_before(mark.index)
        return Position(self._shown, mark.line + 1, mark.column + 1)

    def _end_before(self, index: int) -> Position:
        """Where the text before an index ends, comments left out."""
        number = bisect_right(self._starts, index)
        line = self._text[self._starts[number - 1] : index].rstrip()  # no comment ends before a token
        while number > 1 and not line.split("#", 1)[0].strip():
            number -= 1
            whole = self._text[self._starts[number - 1] : self._starts[number] - 1]
            line = re.sub(r"\s#.*", "", whole).rstrip()
        return Position(self._shown, number, max(1, len(line)))

    def node(self, yaml: Any, depth: int) -> Node:
        place = self._place(yaml)
        if not self._budget.value():
            message = f"aliases make more than {MOST_VALUES} values of this"
            raise _RefusedError(message, place, "write it out without aliases")
        if depth > _MOST_DEPTH:
            raise _too_deep(place)
        tag = str(yaml.tag or "")
        known = tag.removeprefix(_CORE)
        if isinstance(yaml.value, str):
            if tag.startswith(_CORE) and known in _SCALARS:
                return Node(self._scalar(known, yaml.value, place), place)
        elif (known, yaml.id) == ("map", "mapping"):
            return Node(self._mapping(yaml, depth), place)
        elif (known, yaml.id) == ("seq", "sequence"):
            return Node(tuple(self.node(item, depth + 1) for item in yaml.value), place)
        shown = f"!!{known}" if tag.startswith(_CORE) else tag
        self._problems.add(place, f"found the tag {shown}, wanted plain YAML", "remove the tag")
        return Node(None, place)

    def _scalar(self, tag: str, text: str, place: Position) -> Any:
        """A scalar's value; null where it is refused, which is noted."""
        refused = refusal(text)
        if refused is not None:
            self._problems.add(place, *refused)
            return None
        try:
            value = _SCALARS[tag](text)
        except (ValueError, KeyError):
            message = f"found {excerpt(text)!r}, wanted what its tag !!{tag} says"
            self._problems.add(place, message, "remove the tag")
            return text
        if isinstance(value, int) and abs(value) >= _MOST_INTEGER:
            message = f"found {excerpt(text, 20)}, wanted a number that fits into 64 bits"
            self._problems.add(place, message, "write a smaller number, or put it in quotes")
            return None
        return value

    def _mapping(self, yaml: Any, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in yaml.value:
            place = self._place(key)
            if not isinstance(key.value, str):
                self._problems.add(
                    place, "found a list or mapping as a key, wanted text", "write a name"
                )
            elif (refused := refusal(key.value)) is not None:
                self._problems.add(place, *refused)
            elif str(key.tag) == f"{_CORE}merge":
                merged = {**self._merged(value, depth), **merged}
            elif key.value in own:
                first = own[key.value].start
                message = f"the key {excerpt(key.value)!r} is repeated (first in line {first.line})"
                self._problems.add(place, message, "remove one of the two")
            else:
                own[key.value] = replace(self.node(value, depth + 1), key=place)
        return {**merged, **own}

    def _merged(self, yaml: Any, depth: int) -> dict[str, Node]:
        node = self.node(yaml, depth + 1)
        parts = node.elements() or (node,)
        if not all(isinstance(part.value, dict) for part in parts):
            self._problems.add(node.place, "<< wanted an alias of a mapping", "write <<: *NAME")
        return {name: item for part in reversed(parts) for name, item in part.items()}


def refusal(text: str) -> tuple[str, str] | None:
    """What is wrong with a text wherever it stands: message and hint."""
    if len(text) > _MOST_CHARACTERS:
        message = f"found text of {len(text)} characters, wanted at most {_MOST_CHARACTERS}"
        return message, "keep it in a file"
    unprintable = _UNPRINTABLE.search(text)
    if unprintable is not None:
        return f"the text holds the character U+{ord(unprintable[0]):04X}", "remove it"
    return None


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    if len(digits) > _MOST_DIGITS:  # Python itself refuses thousands, and with other words
        return _MOST_INTEGER
    return int(digits, 10 if digits.lstrip("+-").isdigit() else 0)


def _number(text: str) -> float:
    digits = text.replace("_", "").lower()
    return float(digits.replace(".inf", "inf").replace(".nan", "nan"))


_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
_SCALARS: dict[str, Any] = {
    "str": str,
    "timestamp": str,
    "int": _integer,
    "float": _number,
    "null": lambda text: None,
    "bool": lambda text: _TRUTH[text.lower()],
}


def scalar(text: str) -> Any:
    """Text as YAML would read it unquoted, where that is a number or a truth value; else the text."""
    from ruamel.yaml.nodes import ScalarNode
    from ruamel.yaml.resolver import VersionedResolver

    tag = VersionedResolver().resolve(ScalarNode, text, (True, False)) if text else ""
    known = str(tag).removeprefix(_CORE)
    try:
        value = _SCALARS[known](text) if known in ("int", "float", "bool") else text
    except ValueError:  # looks like a number and is none
        return text
    return text if isinstance(value, int) and abs(value) >= _MOST_INTEGER else value
