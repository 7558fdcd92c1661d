"""The recipes that come with optcli load, with the real passes, runners, sources and data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from needs import imported

from optcli.errors import RecipeError
from optcli.recipe import MODELINE, SCHEMA_FILE, load, schema

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_ready_recipe_loads(path: Path) -> None:
    assert load(path).variants


def test_a_ready_recipe_says_what_data_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGES", "/nowhere/imagenet")
    with pytest.raises(RecipeError) as caught:
        load(RECIPES[0].parent / "resnet50.yaml")
    first, *others = caught.value.problems
    assert first.message == "data.calibration.source: no such folder: /nowhere/imagenet"
    assert len(others) == 1


def test_the_list_of_ready_recipes_has_all_of_them() -> None:
    listed = (RECIPES[0].parent / "README.md").read_text()
    assert set(re.findall(r"\(([\w-]+\.yaml)\)", listed)) == {path.name for path in RECIPES}


@pytest.mark.slow
def test_editors_find_the_schema_of_the_ready_recipes() -> None:
    jsonschema = imported("jsonschema")
    from ruamel.yaml import YAML

    kind = jsonschema.validators.validator_for(schema())
    kind.check_schema(schema())
    for path in RECIPES:
        text = path.read_text()
        assert text.startswith(f"{MODELINE}\n"), path
        wrong = kind(schema()).iter_errors(YAML(typ="safe").load(text))
        assert not [each.message for each in wrong], path


def test_the_schema_is_written_where_the_recipes_look_for_it() -> None:
    # Generated, not committed: it changes with every pass.
    root = RECIPES[0].parents[1]
    assert f"optcli schema > recipes/{SCHEMA_FILE}" in (root / "Makefile").read_text()
    assert f"/recipes/{SCHEMA_FILE}" in (root / ".gitignore").read_text().splitlines()


def test_the_real_passes_say_which_of_them_fits_between(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make():\n    pass\n")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "version: 1\nname: x\nmodel: {source: python:net.py:make}\n"
        "inputs: [{name: x, shape: [batch, 4]}]\n"
        "variants:\n  a: [aot_inductor, prune]\n  b: [aot_inductr]\n"
    )
    with pytest.raises(RecipeError) as caught:
        load(path)
    first, second = caught.value.problems
    assert first.line == 6
    assert "prune reads torch, but aot_inductor (before it) makes aoti" in first.message
    assert (second.line, second.hint) == (7, "did you mean 'aot_inductor'?")
