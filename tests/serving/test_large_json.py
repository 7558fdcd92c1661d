"""Large JSON in pieces: the same values and errors as json.loads, whatever a client sends."""

from __future__ import annotations

import json
import random

import pytest
from copied_modules import load

large_json = load("large_json")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(large_json, "_PAUSE_S", 0)


def outcome(loads, body):
    """The value, written out so that True is not 1; or the error."""
    try:
        return repr(loads(body))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


def in_pieces(text):
    """What the pieces alone give, without json.loads behind them; None: they give up."""
    try:
        return repr(large_json._Text(text).whole())
    except ValueError:
        return None


def made(chance, depth):
    """A value as requests hold them, or another."""
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice([1, -2.5, 1e-7, True, None, "a]b,[{", "", '"x', [], {}])
    if kind < 0.5:
        return [made(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind < 0.8:
        return nested(chance, [chance.randrange(1, 4) for _ in range(chance.randrange(1, 5))])
    return {chance.choice("abc]"): made(chance, depth - 1) for _ in range(chance.randrange(3))}


def nested(chance, shape):
    if not shape:
        return round(chance.gauss(0, 1), 2)
    return [nested(chance, shape[1:]) for _ in range(shape[0])]


def written(chance):
    """JSON in some layout, in half of the cases damaged."""
    layout = chance.choice([{}, {"separators": (",", ":")}, {"indent": 1}])
    text = json.dumps(made(chance, 4), **layout)
    if chance.random() < 0.5:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(["", *'[]{},:" 1e-.x\\']) + text[at + 1 :]
    return text


@pytest.mark.slow
@pytest.mark.parametrize("characters", [3, 8, 30, 1 << 16])
def test_values_and_errors_are_those_of_json(characters, monkeypatch):
    monkeypatch.setattr(large_json, "PIECE_CHARACTERS", characters)
    chance, taken = random.Random(characters), 0
    for _ in range(2000):
        text = written(chance)
        wanted, found = outcome(json.loads, text.encode()), in_pieces(text)
        assert outcome(large_json.loads, text.encode()) == wanted, text
        assert found in (None, wanted), text
        taken += found is not None
    assert taken > 500


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[",
        b"[1,2",
        b"[1,2,]",
        b"[,1]",
        b"[1,,2]",
        b"[1 2]",
        b"[1]]",
        b'{"a":[1],}',
        b'{"a" [1]}',
        b"{1:2}",
        b"\xff[1]",
        b"\xef\xbb\xbf[1]",
        "[1.5, 2]".encode("utf-16"),
        b"[NaN, Infinity]",
        b'{"a": 1, "a": [2]}',
        b"[1,       2]",
        b"[1,        ]",
        b"[        ,1]",
    ],
)
def test_odd_texts_are_read_or_refused_as_json_does(body, monkeypatch):
    monkeypatch.setattr(large_json, "PIECE_CHARACTERS", 4)
    assert outcome(large_json.loads, body) == outcome(json.loads, body)


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_nested_too_deep_is_refused_as_json_does(body):
    with pytest.raises((RecursionError, ValueError)):
        large_json.loads(body)


def test_many_small_lists_are_read_at_once(monkeypatch):
    """Walking through them one by one would take a multiple of the time."""
    value = [{} for _ in range(large_json._MOST_WALKED + 1)]
    text = json.dumps(value)
    assert in_pieces(text) is None
    assert large_json.loads(text.encode()) == value
