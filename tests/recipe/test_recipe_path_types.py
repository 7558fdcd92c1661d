"""Every field that holds a path says so by its type: `extends` moves what is marked, nothing else."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from optcli import data, passes, runners
from optcli.accuracy import metrics
from optcli.data import layouts
from optcli.files import registry
from optcli.models import sources
from optcli.recipe.models import PassUse, Recipe, RunnerUse, written_fields
from optcli.recipe.validation import models_in
from optcli.settings import Settings
from optcli.settings.references import (
    MachinePath,
    OfOneMachine,
    PathReference,
    RecipePath,
    SourceReference,
    annotation_of,
    is_of_one_machine,
    marks_in,
)

_NAMED = re.compile(
    r"(^|_)(path|file|folder|directory|dir|root|source|weights|checkpoint|cache|interpreter|python|plugin"
    r"|script|library|annotations|extends)s?($|_)"
)
_DESCRIBED = re.compile(r"\b(files?|folders?|paths?|interpreter|FILE|PATH)\b")
# Named or described with such a word, and no path: a folder's name, and another variant's.
_NONE = [("Recipe", "name"), ("Variant", "extends")]


def _holds_text(annotation: Any) -> bool:
    if annotation in (str, Path, Any):
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(_holds_text(part) for part in typing.get_args(annotation))


def _looks_like_a_path(name: str, field: FieldInfo) -> bool:
    held = _holds_text(field.annotation)
    is_path = "Path" in re.findall(r"\w+", str(field.annotation))
    told = _NAMED.search(name) or _DESCRIBED.search(field.description or "")
    return is_path or (held and bool(told))


def _marked(field: FieldInfo) -> bool:
    return any(
        isinstance(mark, PathReference | OfOneMachine) for mark in marks_in(annotation_of(field))
    )


def _unmarked(models: list[type[BaseModel]]) -> Iterator[tuple[str, str]]:
    """Fields of models, and of the models within them, that look like paths and are not marked."""
    waiting, seen = list(models), set()
    while waiting:
        model = waiting.pop()
        if model in seen or model in (
            PassUse,
            RunnerUse,
        ):  # what a recipe writes there is checked apart
            continue
        seen.add(model)
        fields = written_fields(model) if model is Recipe else model.model_fields
        for name, field in fields.items():
            waiting += models_in(field.annotation)
            if _looks_like_a_path(name, field) and not _marked(field):
                yield model.__name__, name


def _all() -> list[type[BaseModel]]:
    own = [passes.find(name) for name in registry.names(passes.__name__)]
    judging = [
        registry.find(metrics.__name__, name, metrics.Metric)  # type: ignore[type-abstract]
        for name in metrics.metric_names()
    ]
    return [Recipe, *own, *(runners.find(name) for name in runners.names()), *judging]


def test_whatever_looks_like_a_path_is_marked() -> None:
    assert sorted(_unmarked(_all())) == _NONE


class _Inner(Settings):
    where: str = Field("x", description="a file that lists ids")


class _Forgotten(Settings):
    at: Path = Path()
    weights_file: str | None = None
    several: tuple[_Inner, ...] = ()
    either: dict[str, list[str] | int] = Field(default_factory=dict, description="folders by name")
    good: RecipePath | None = Field(None, description="a file")
    program: MachinePath | None = Field(None, description="interpreter")
    cache: bool = Field(False, description="keep a file")
    word: str = "x"


def test_the_walk_finds_what_was_forgotten() -> None:
    assert sorted(_unmarked([_Forgotten])) == [
        ("_Forgotten", "at"),
        ("_Forgotten", "either"),
        ("_Forgotten", "weights_file"),
        ("_Inner", "where"),
    ]


@pytest.mark.parametrize(
    ("owner", "kinds"),
    [
        (Recipe.model_fields["model"].annotation, sources.names()),
        (data.DataSettings, layouts.names()),
    ],
)
def test_of_every_kind_of_source_it_is_known_whether_it_is_a_file(owner: Any, kinds: Any) -> None:
    (mark,) = (m for m in owner.model_fields["source"].metadata if isinstance(m, SourceReference))
    libraries = {"hf", "timm", "torchvision"}  # `hf` may name a folder
    assert {kind for kind in kinds if not mark.is_file(kind)} == {"python", *libraries} & {*kinds}


def test_what_is_of_one_machine_is_not_taken_from_elsewhere() -> None:
    marked = {
        (name, option)
        for name in runners.names()
        for option, field in runners.find(name).model_fields.items()
        if is_of_one_machine(field)
    }
    assert marked == {
        ("onnxruntime", "provider_options"),
        ("tensorrt", "python"),
        ("tensorrt_rtx", "kernel_cache"),
    }
    given = {"python": "/bin/evil", "threads": 2}
    assert runners.options_from_elsewhere("tensorrt", given) == {"threads": 2}
    given = {"provider_options": {"a": 1, "cache_dir": "/x"}}
    assert runners.options_from_elsewhere("onnxruntime", given) == {"provider_options": {"a": 1}}


def test_a_source_of_hugging_face_moves_where_it_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "base/models/vit").mkdir(parents=True)
    mark = SourceReference(places=("hf",))
    assert mark.moved("hf:models/vit", tmp_path / "base", tmp_path) == "hf:base/models/vit"
    assert mark.moved("hf:google/vit", tmp_path / "base", tmp_path) == "hf:google/vit"
