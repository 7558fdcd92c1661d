"""Large JSON, read in pieces: while json reads one, it holds Python's lock, and no thread goes on.

A request's JSON is large by its lists of numbers. A piece of such a list, cut at a comma, is read as a
list of its own. json refuses a piece that was cut within an element, and then the text is read at once.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

# json reads a piece in half a millisecond.
PIECE_CHARACTERS = 1 << 16
# Objects and lists that are walked through one by one; a request has some for each input.
_MOST_WALKED = 10_000
# Others get Python's lock in a pause. Without one they wait for it for 5 ms each time.
_PAUSE_S = 1e-4
_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def loads(body: bytes) -> Any:
    """As json.loads. Raises ValueError and RecursionError as it does."""
    try:
        return _Text(body.decode()).whole()
    except (ValueError, RecursionError):
        return json.loads(body)  # which says what is wrong and where


class _Text:
    """A JSON text. Its methods take where a value begins, and give the value and where it ends.

    They raise ValueError for text that is no JSON, or not such as requests are.
    """

    def __init__(self, text: str) -> None:
        self._text, self._walked, self._read = text, 0, 0

    def whole(self) -> Any:
        value, at = self._value(self._past_blanks(0))
        if self._past_blanks(at) != len(self._text):
            raise ValueError("more follows")
        return value

    def _value(self, at: int) -> tuple[Any, int]:
        first = self._text[at : at + 1]
        if first not in ("{", "["):
            return _DECODER.raw_decode(self._text, at)
        self._walked += 1
        if self._walked > _MOST_WALKED:
            raise ValueError("too many objects and lists")
        return self._object(at) if first == "{" else self._list(at)

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        at = self._past_blanks(at + 1)
        if self._text[at : at + 1] == "}":
            return values, at + 1
        while True:
            if self._text[at : at + 1] != '"':
                raise ValueError("wanted a key")
            key, at = _DECODER.raw_decode(self._text, at)
            _, at = self._mark(at, ":")
            values[key], at = self._value(at)
            mark, at = self._mark(at, ",}")
            if mark == "}":
                return values, at

    def _list(self, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = self._past_blanks(at + 1)
        if self._text[at : at + 1] == "]":
            return values, at + 1
        while True:
            piece, after = self._piece(at)
            if piece:
                values += piece
                self._pause(after - at)
            else:
                one, after = self._value(at)
                values.append(one)
            mark, at = self._mark(after, ",]")
            if mark == "]":
                return values, at

    def _piece(self, at: int) -> tuple[list[Any], int]:
        """Some elements of a list, numbers or lists of numbers; none where they cannot be cut out."""
        text = self._text[at : at + PIECE_CHARACTERS]
        depth = len(text) - len(text.lstrip("["))
        # Objects and texts are walked through, and lists with blanks between their brackets.
        if text[depth : depth + 1] in '{"' + " \t\n\r" * (depth > 0):
            return [], at
        # Lists of the same depth end with so many brackets, and the list around them with one more.
        end = text.find("]" * (depth + 1))
        cut = end if end >= 0 else text.rfind("]" * depth + ",")
        if cut < 0:
            return [], at
        piece: list[Any] = json.loads(f"[{text[: cut + depth]}]")
        if not piece:
            raise ValueError("wanted an element")
        return piece, at + cut + depth

    def _pause(self, characters: int) -> None:
        self._read += characters
        if self._read > PIECE_CHARACTERS // 2:
            self._read = 0
            time.sleep(_PAUSE_S)

    def _mark(self, at: int, wanted: str) -> tuple[str, int]:
        """The punctuation mark that comes next, and where what follows it begins."""
        at = self._past_blanks(at)
        mark = self._text[at : at + 1]
        if not mark or mark not in wanted:
            raise ValueError(f"wanted one of {wanted}")
        return mark, self._past_blanks(at + 1)

    def _past_blanks(self, at: int) -> int:
        match = _BLANKS.match(self._text, at)
        assert match is not None
        return match.end()
