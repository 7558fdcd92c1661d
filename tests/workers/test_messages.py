"""Messages between processes: every worker function has types, and what does not fit is an error."""

import ast
import importlib
import json
import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticSerializationError
from warm_workers import descendants

import optcli
from optcli import workers
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.errors import InputError, RecipeError, StepError
from optcli.passes import Traits
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.scaffold.inspection import Findings
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings
from optcli.workers import messages

PACKAGE = Path(optcli.__file__).parent
HERE = Path(__file__).parent


def worker_functions() -> list[tuple[str, str]]:
    """Module and name of every function of optcli that takes a channel as its second argument."""
    known = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("optcli", *path.relative_to(PACKAGE).with_suffix("").parts))
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "channel:" in text else ():
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                second = node.args.args[1:2]
                if second and second[0].arg == "channel":
                    known.append((module.removesuffix(".__init__"), node.name))
    return known


FUNCTIONS = worker_functions()


# Fewer files need be parsed.
CALL = re.compile(r"optcli\.[\w.]+:\w")


def named_in_calls() -> set[tuple[str, str]]:
    """Module and name of every worker function that optcli names in a string, as calls do."""
    known = set()
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if CALL.search(source) else ():
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text.startswith("optcli.") and text.count(":") == 1:
                module, _, name = text.partition(":")
                if name.isidentifier() and not module.startswith("optcli.models.engines"):
                    known.add((module, name))
    return known


@pytest.mark.slow
def test_the_functions_that_calls_name_are_among_those_looked_at():
    assert len(FUNCTIONS) >= 28
    named = named_in_calls()
    assert named
    assert named <= set(FUNCTIONS)


def parts(kind: Any) -> list[Any]:
    """A type and the types that it is made of: `list[Rate]` is `list` and `Rate`."""
    return [kind, *(part for inner in getattr(kind, "__args__", ()) for part in parts(inner))]


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_every_worker_function_takes_and_gives_declared_types(module, name):
    """A class of its own to take, and no dictionary of anything to give: both can be checked."""
    taken, given = messages.types_of(getattr(importlib.import_module(module), name))
    assert isinstance(taken, type)
    assert taken.__module__.startswith("optcli."), "a message is a class of optcli's own"
    assert fields(taken)
    assert not {dict, Any, object}.intersection(parts(given)), given


SPEC = TensorSpec.model_validate({"name": "image", "shape": ["batch", 3, 4, 4], "batch": {"max": 9}})
SAMPLE = {
    str: "word",
    int: 3,
    float: 0.5,
    bool: True,
    Path: Path("/some/where"),
    Format: Format.ONNX,
    TensorSpec: SPEC,
    Artifact: Artifact("k", Format.ONNX, Path("/a"), "fp32", 3, "d", {"outputs": ["y"], "n": 1.5}),
    Traits: Traits.of(QuantizeNncf(samples=7), "quantize_nncf", "code", "mine.py:Mine"),
    PostprocessSettings: PostprocessSettings.model_validate({"yolox": {"decoded": True}}),
    DataSettings: DataSettings.model_validate(
        {"source": "imagefolder:/x", "split": {"seed": 1, "to": 0.5}, "prepare": {"resize": [3, 3]}}
    ),
}


def written_and_read(kind: Any, message: Any) -> Any:
    return messages.read(kind, json.loads(json.dumps(messages.to_record(message))))


def example(kind: Any) -> Any:
    """Some value of a type; of a dataclass, one with every field set."""
    from typing import get_args, get_origin, get_type_hints

    from pydantic import BaseModel

    if kind in SAMPLE:
        return SAMPLE[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if str(origin) in ("<class 'types.UnionType'>", "typing.Union"):
        return example(inner[0])
    if origin is tuple:
        known = [each for each in inner if each is not Ellipsis]
        return tuple(example(each) for each in known)
    if origin is list:
        return [example(inner[0])]
    if origin is dict:
        return {example(inner[0]): {"deep": [1, None]} if inner[1] is Any else example(inner[1])}
    if str(origin) == "typing.Literal":
        return inner[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        hints = get_type_hints(kind, include_extras=False)
        required = {
            field.alias or name: example(hints[name])
            for name, field in kind.model_fields.items()
            if field.is_required()
        }
        return kind.model_validate(required)
    hints = get_type_hints(kind)
    return kind(**{each.name: example(hints[each.name]) for each in fields(kind)})


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_every_message_comes_back_as_it_was_sent(module, name):
    taken, _ = messages.types_of(getattr(importlib.import_module(module), name))
    message = example(taken)
    assert written_and_read(taken, message) == message


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_a_message_with_a_field_too_many_too_few_or_of_another_type_is_an_error(module, name):
    taken, _ = messages.types_of(getattr(importlib.import_module(module), name))
    record = messages.to_record(example(taken))
    first = fields(taken)[0].name
    for wrong, said in (
        ({**record, "stowaway": 1}, "stowaway: Unexpected keyword argument"),
        ({key: value for key, value in record.items() if key != first}, f"{first}: .*required"),
        ({**record, first: {"no such": "thing"}}, rf"{first}[.\w]*: "),
    ):
        with pytest.raises(StepError, match=said):
            messages.read(taken, wrong)


@dataclass(frozen=True)
class Inner:
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    least: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


def test_a_field_of_a_field_is_named_where_it_does_not_fit():
    with pytest.raises(StepError, match=r"is no Outer: inner\.numbers\.1: .*integer"):
        messages.read(Outer, {"inner": {"numbers": [1, "x"]}})
    with pytest.raises(StepError, match=r"is no Outer: inner\.more: Unexpected"):
        messages.read(Outer, {"inner": {"numbers": [], "more": 1}})
    with pytest.raises(StepError, match="is no Outer: all of it: "):
        messages.read(Outer, None)


def test_infinity_and_no_number_come_back_whatever_holds_them():
    message = Outer(Inner(()), -math.inf, {"deep": [math.inf]})
    assert written_and_read(Outer, message) == message
    assert math.isnan(written_and_read(Outer, replace(message, least=math.nan)).least)


def test_what_is_not_of_its_declared_type_is_not_sent():
    with pytest.raises(ValueError, match="Expected `tuple"):
        messages.to_record(Outer(Inner([1])))  # type: ignore[arg-type]


def test_fields_of_a_model_that_were_not_set_stay_so():
    """Preparation tells what a recipe says from what it leaves to a preset."""
    sent = SAMPLE[DataSettings]
    assert written_and_read(DataSettings, sent).prepare.model_fields_set == {"resize"}


def test_fields_of_a_model_go_by_the_names_that_it_reads():
    sent = Findings.model_validate(
        {"schema": 1, "target": "x", "kind": "file", "format": "onnx", "size_bytes": 1}
    )
    assert written_and_read(Findings, sent) == sent


@pytest.fixture(autouse=True)
def _calls_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"result": {"odd": 1}}, "no Inner: numbers"),
        ({"event": {"numbers": 3}}, "no Inner: numbers"),
        ({"error": "words"}, "valid dictionary"),
        ({"error": {"error": "RecipeError", "problems": [{"odd": 1}]}}, "a message between"),
        ({"neither": 1}, "no Inner: all of it"),
        ([1, 2], "not a JSON object"),
        ("words", "not a JSON object"),
    ],
)
def test_what_a_worker_sends_that_does_not_fit_is_an_error_and_no_crash(record, said):
    events: list[Inner] = []
    with (
        workers.spawn("calls:say_raw", record) as child,
        pytest.raises(StepError, match=said),
    ):
        child.result(Inner, 20, workers.Listener(Inner, events.append))
    assert not events


@pytest.mark.slow
def test_bytes_that_are_no_json_are_an_error_and_no_crash():
    with (
        workers.spawn("calls:say_bytes", {}) as child,
        pytest.raises(StepError, match="not a JSON object"),
    ):
        child.result(Inner, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "timeout_s", "said"),
    [
        ("half", 1.0, "did not finish within 1 s"),
        ("endless", 1.0, "did not finish within 1 s"),
        ("long", 120.0, "more than 256 MiB"),
        ("deep", 120.0, "not a JSON object"),
    ],
)
def test_a_bad_sender_costs_its_own_worker_in_time(way, timeout_s, said):
    with (
        pytest.raises(StepError, match=said),
        workers.spawn("calls:say_badly", way) as child,
    ):
        child.result(Inner, timeout_s, workers.Listener(Inner, lambda _: None))


@pytest.mark.slow
def test_a_worker_refuses_a_message_that_its_function_does_not_take():
    with pytest.raises(StepError, match=r"no dict.*: all of it"):
        workers.run("calls:double", [1], int, timeout_s=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [InputError("no", place="here", hint="do"), RecipeError([]), StepError("x")]
)
def test_errors_keep_their_kind(error):
    with workers.spawn("calls:say_raw", {"error": error.to_record()}) as child:
        with pytest.raises(type(error)) as caught:
            child.result(Inner, 20)
        assert str(caught.value) == str(error)


def test_a_worker_that_cannot_be_told_what_to_do_is_not_left_over():
    before = descendants()
    with pytest.raises(PydanticSerializationError):
        workers.spawn("optcli.scaffold.inspection.looking:look", Outer(inner=7))  # type: ignore[arg-type]
    assert descendants() == before
