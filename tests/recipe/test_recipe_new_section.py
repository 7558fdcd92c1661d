"""A section of plain settings is one field of `Recipe`: reading, checks, schema and merging follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from needs import imported
from pydantic import Field

from optcli.errors import RecipeError
from optcli.recipe import Recipe, load, loading, schema, sections
from optcli.settings import Settings
from optcli.settings.references import CodeReference, RecipePath

Loaded = Callable[..., Recipe]


class Bound(Settings):
    """A part of a section."""

    most: int = Field(4, ge=1)


class ServingSettings(Settings):
    """What a section added later may say."""

    host: str = "localhost"
    port: int = Field(80, ge=1)
    bound: Bound = Bound()
    certificate: RecipePath | None = Field(None, description="a file")
    checks: CodeReference | None = None


class Larger(Recipe):
    """A recipe with a section, and a plain value, that optcli has not."""

    serving: ServingSettings = ServingSettings()
    tone: Literal["low", "high"] | None = None


@pytest.fixture(autouse=True)
def larger(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loading, sections, sys.modules["optcli.recipe.schema"]):
        monkeypatch.setattr(module, "Recipe", Larger)


def test_it_is_read_and_has_its_default(loaded: Loaded) -> None:
    recipe = loaded(("baseline: eager", "baseline: eager\nserving: {port: 8080}\ntone: low"))
    assert isinstance(recipe, Larger)
    assert recipe.serving == ServingSettings(port=8080)
    assert recipe.tone == "low"
    plain = loaded()
    assert isinstance(plain, Larger)
    assert plain.serving == ServingSettings()
    assert recipe.digest != plain.digest


@pytest.mark.parametrize(
    ("written", "column", "message", "hint"),
    [
        ("serving: {prot: 1}", 11, "unknown key 'prot' in serving", "did you mean 'port'?"),
        ("serving: {port: 0}", 17, "serving.port: found 0, wanted at least 1", "raise it"),
        ("serving: {port: '1'}", 17, "serving.port: found '1' (text), wanted a whole number", "quotes"),
        ("serving: {bound: {most: x}}", 25, "serving.bound.most: found 'x' (text)", "whole number"),
        ("serving: {bound: {moot: 1}}", 19, "unknown key 'moot' in serving.bound", "'most'"),
        ("serving: fast", 10, "serving: found 'fast', wanted a mapping", "KEY: VALUE"),
        ("serving:", 8, "serving: found nothing, wanted its settings", "remove the key"),
        ("servign: {port: 1}", 1, "unknown key 'servign'", "did you mean 'serving'?"),
        ("port: 1", 1, "unknown key 'port'", "did you mean serving.port?"),
        ("tone: loud", 7, "tone: found 'loud', wanted 'low' or 'high'", "high, low"),
        ("serving: {checks: gone.py:f}", 19, "gone.py", "relative to the recipe"),
        ("serving: {checks: mine.py:f}", 19, "mine.py defines no 'f'", "MyPass"),
    ],
)
def test_what_is_wrong_in_it_has_its_place(
    written: str, column: int, message: str, hint: str, loaded: Loaded
) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(("baseline: eager", f"baseline: eager\n{written}"))
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (17, column), problem
    assert message in problem.message
    assert hint in problem.hint


def test_a_wrong_section_hides_nothing_in_the_others(loaded: Loaded) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(("baseline: eager", "baseline: eagr\nserving: {port: 0}\ntone: loud\nseed: -1"))
    assert [problem.line for problem in caught.value.problems] == [16, 17, 18, 19]


def test_it_is_merged_with_what_is_extended_and_can_be_set(folder: Path) -> None:
    text = (folder / "recipe.yaml").read_text()
    serving = "serving: {port: 1, bound: {most: 2}, certificate: here.pem}\ntone: high\n"
    (folder / "recipe.yaml").write_text(text + serving)
    (folder / "below").mkdir()
    child = folder / "below" / "child.yaml"
    child.write_text("extends: ../recipe.yaml\nserving: {host: a, bound: {most: null}}\ntone: null\n")
    recipe = load(child, ["serving.port=3"])
    assert isinstance(recipe, Larger)
    assert recipe.serving == ServingSettings(host="a", port=3, certificate="../here.pem")
    assert recipe.tone is None
    child.write_text("extends: ../recipe.yaml\nserving: null\n")
    without = load(child)
    assert isinstance(without, Larger)
    assert without.serving == ServingSettings()


def test_it_stands_in_the_schema(fakes: None, folder: Path) -> None:
    described = schema()
    assert {"serving", "tone"} <= described["properties"].keys()
    assert described["$defs"]["ServingSettings"]["properties"]["port"]["anyOf"][0]["minimum"] == 1
    validator = imported("jsonschema").Draft202012Validator(schema())
    good = {"extends": "x.yaml", "serving": {"port": 2}, "tone": "low"}
    assert list(validator.iter_errors(good)) == []
    assert list(validator.iter_errors({**good, "serving": None})) == []
    for wrong in ({"serving": {"prot": 1}}, {"serving": {"port": 0}}, {"tone": "loud"}):
        assert list(validator.iter_errors({**good, **wrong}))


def test_a_section_that_must_be_there_is_missed_with_its_example(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Needing(Recipe):
        limits: Bound = Field(examples=[{"most": 3}])
        mood: str

    for module in (loading, sections):
        monkeypatch.setattr(module, "Recipe", Needing)
    with pytest.raises(RecipeError) as caught:
        loaded()
    said = [(problem.message, problem.hint) for problem in caught.value.problems]
    assert said == [
        ("missing key 'limits'", "add limits: {most: 3}"),
        ("missing key 'mood'", "add mood: ..."),
    ]
