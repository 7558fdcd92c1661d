# ruff: noqa: E501  (tables of values)
"""Recipes mutated at random, with a seed: what people mistype, and what somebody hostile would write."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

LONG = "x" * 100_000
DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, -1e308, 5e-324, 10**30, -(10**30), 10**400,
    2**31, 2**63, 2**64, float("inf"), float("-inf"), float("nan"),
    "", " ", "null", "~", "true", "1", "1%", "0,01", "50ms", "1/0", "1/255", "1e400/1", "٣", "²",
    "\x00", "a\x00b", "npz:\x00", "npz:a\x00b.npz", "python:\x00.py:f", "onnx:a\x00.onnx", "\x1b[31m",
    "/etc/passwd", "npz:/etc/passwd", "/dev/zero", "npz:/dev/zero", "onnx:/dev/zero", "python:/dev/zero:f",
    "coco:/dev/zero", "imagefolder:/dev", "imagefolder:/proc/self", "python:/dev/zero.py:f", "/dev/full",
    "..", "../..", ".", "~", "~nobody_at_all/x", "npz:~nobody_at_all/x", "npz:~/x", "onnx:~nobody_at_all/x",
    "imagefolder:~nobody_at_all", "coco:~nobody_at_all", "C:\\x", "//", "npz:", ":", "::", "a:b:c", "npz:" + "a" * 300,
    "onnx:" + "a" * 5000, "python:" + "a" * 300 + ".py:f", "python:" + "a/" * 3000 + "f.py:f",
    "python:quickstart/model.py:" + "a." * 3000 + "b", "python:os:system", "python:this:d", "torchvision:" + "r" * 300,
    "torchvision:__init__", "timm:x/../../y", "${NOT_SET_ANYWHERE}", "${HOME}", "${}", "${", "$$", "$", "${a:-${b}}",
    "\ud800", "\u202e", "\U0001f600", "\ufeff", "\u2028", "é" * 300, LONG, "npz:" + LONG,
    "report.json", "logs", "gate", "samples.npz", ".store", "con", "NUL", "a/b", "a b", "-x", "x.", "x" * 101,
    "./mine.py:MyPass", "optcli.passes.prune:Prune", "json:loads", "[", "{", "&a", "*a", "<<", "!!python/object",
    [], {}, [[]], [None], [{}], {"": None}, {"a": {"b": {"c": []}}}, [1, "a", None, 2.5], DEEP,
    {"name": "openvino", "threads": 10**30}, {"passes": []}, {"source": "npz:x", "split": {"seed": 10**40}},
    {"seed": float("nan"), "from": 0.5}, {"min": 10**30, "max": 10**31}, {"x": LONG}, {LONG: 1}, {"a\x00": 1},
)  # fmt: skip

BYTES: tuple[bytes, ...] = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\t", b"\r", b"\r\n", b"\xc3", b"\x80", b"- ", b": ", b"? ", b"[", b"]", b"{",
    b"}", b"&a ", b"*a", b"<<: *a", b"!!float ", b"!!int x", b"!!binary aGk=", b"!!python/object:os.system ", b"!!set ",
    b"!!timestamp ", b"!!map ", b"!!seq ", b"!x ", b"%YAML 1.1\n---\n", b"%TAG ! x\n", b"---\n", b"...\n", b"#", b"'", b'"', b"|\n", b">\n",
    b"|9\n", b'"\\x00"', b'"\\ud800"', b'"\\U0010ffff"', b"@", b"`", b"0x" + b"f" * 6000, b"9" * 6000, b"0o777", b"1e999",
    b"1_000", b"-.inf", b".nan", b"1:30:30", b"2001-01-01", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b" " * 5000, b"[" * 2000,
    b"{a: " * 1500, b"- " * 1000, b"? " * 1000, b"\n" * 3000, b"a: &a [x, x]\nb: &b [*a, *a, *a, *a]\n",
    b"version: 1\n", b"name: x\n", b"extends: /dev/zero\n", b"extends: .\n", b"extends: [a, b]\n", b"variants: \n",
    b"0b101", b"+1", b"0_", b"._", b"+.inf", b"0x", b"1e", b"!!bool maybe", b"!!null x", b"!!merge x", b"!!omap [a]",
)  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """The bytes of a recipe, the `--set` options given with it, and what was done to it."""

    content: bytes
    overrides: tuple[str, ...]
    done: tuple[str, ...]


def mutated(original: bytes, seed: int) -> Mutation:
    """One mutation of a recipe, always the same for a seed."""
    draw = random.Random(seed)
    done: list[str] = []
    content, overrides = original, ()
    way = draw.random()
    if way < 0.7:
        content = _structure(original, draw, done)
    elif way < 0.9:
        content = _bytes(original, draw, done)
    if way >= 0.9 or draw.random() < 0.15:
        overrides = _overrides(original, draw, done)
    return Mutation(content, overrides, tuple(done))


def _structure(original: bytes, draw: random.Random, done: list[str]) -> bytes:
    recipe = YAML(typ="safe", pure=True).load(original)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(_places(recipe))
        if not places:
            break
        holder, key = draw.choice(places)
        change = draw.choice(_CHANGES)
        done.append(f"{change.__name__.strip('_')} at {key!r:.40}")
        change(holder, key, draw)
    return written(recipe).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    """Every (container, key) below a value."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return
    for key, item in items:
        yield value, key
        yield from _places(item)


def _replace(holder: Any, key: Any, draw: random.Random) -> None:
    holder[key] = draw.choice(HOSTILE)


def _delete(holder: Any, key: Any, draw: random.Random) -> None:
    del holder[key]


def _retype(holder: Any, key: Any, draw: random.Random) -> None:
    value = holder[key]
    forms: tuple[Callable[[Any], Any], ...] = (
        str, lambda v: [v], lambda v: {"x": v}, lambda v: [v, v], lambda v: bool(v), lambda v: -1,
        lambda v: {str(v): v}, lambda v: f"{v}\x00", lambda v: str(v) * 50,
    )  # fmt: skip
    holder[key] = draw.choice(forms)(value)


def _misspell(holder: Any, key: Any, draw: random.Random) -> None:
    if not isinstance(holder, dict):
        return _replace(holder, key, draw)
    name = str(key)
    at = draw.randrange(len(name) + 1)
    new = draw.choice(
        (name[:at] + name[at + 1 :], name[:at] + "x" + name[at:], name.upper(), name + " ")
    )
    if isinstance((hostile := draw.choice(HOSTILE)), str | int | float) and draw.random() < 0.3:
        new = str(hostile)
    holder[new] = holder.pop(key)
    return None


def _double(holder: Any, key: Any, draw: random.Random) -> None:
    if isinstance(holder, list):
        holder.extend([holder[key]] * draw.choice((1, 3, 40)))
    else:
        holder[f"{key}-{draw.randrange(9)}"] = holder[key]


def _swap(holder: Any, key: Any, draw: random.Random) -> None:
    other = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _add(holder: Any, key: Any, draw: random.Random) -> None:
    value = draw.choice(HOSTILE)
    if isinstance(holder, list):
        holder.insert(key, value)
    else:
        holder[draw.choice(_NAMES)] = value


_CHANGES = (_replace, _replace, _replace, _delete, _retype, _retype, _misspell, _double, _swap, _add)
_NAMES = (
    "extends", "matrix", "plugins", "postprocess", "slo", "gate", "seed", "baseline", "runner", "passes", "required",
    "accuracy", "data", "split", "samples", "prepare", "root", "files", "arguments", "weights", "threads", "ratio",
    "letterbox", "mean", "std", "scale", "crop", "p99_ms", "looks", "min_speedup", "sweep", "batch_sizes", "", "<<", "x",
)  # fmt: skip


def _bytes(original: bytes, draw: random.Random, done: list[str]) -> bytes:
    data = bytearray(original)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        way = draw.choice(("insert", "insert", "insert", "flip", "cut", "repeat", "truncate"))
        done.append(f"{way} at byte {at}")
        if way == "insert":
            data[at:at] = draw.choice(BYTES)
        elif way == "flip" and at < len(data):
            data[at] = draw.randrange(256)
        elif way == "cut":
            del data[at : at + draw.randrange(1, 80)]
        elif way == "repeat":
            data[at:at] = data[at : at + draw.randrange(1, 200)] * draw.choice((1, 2, 30))
        elif way == "truncate" and draw.random() < 0.3:
            del data[at:]
    return bytes(data)


def _overrides(original: bytes, draw: random.Random, done: list[str]) -> tuple[str, ...]:
    recipe = YAML(typ="safe", pure=True).load(original)
    paths = list(_paths(recipe, ""))
    texts = []
    for _ in range(draw.choice((1, 2))):
        path = (
            draw.choice(paths)
            if draw.random() < 0.8
            else draw.choice(("", ".", "a.b.c", "latency..x", "x" * 9000))
        )
        value = draw.choice(HOSTILE)
        text = written(value).strip() if draw.random() < 0.5 else str(value)
        equals = draw.choice(("=", "=", "=", "==", "", " = "))
        texts.append(
            f"{path}{equals}{text}".replace("\x00", "\\0").encode("utf-8", "replace").decode()[:60_000]
        )
        done.append(f"--set {texts[-1]:.60}")
    return tuple(texts)


def _paths(value: Any, above: str) -> Any:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        path = f"{above}.{key}" if above else str(key)
        yield path
        yield from _paths(item, path)


def written(value: Any) -> str:
    """A value in YAML's flow style; text in double quotes, with escapes for what YAML does not print."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{written(str(key))}: {written(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(_character(each) for each in value) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), repr(value))
    return "null" if value is None else str(value)


def _character(each: str) -> str:
    if each in '"\\':
        return "\\" + each
    if " " <= each <= "~":
        return each
    code = ord(each)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
