"""A report is found wherever it was laid, by every verb that reads one."""

from __future__ import annotations

import shutil

import pytest

from optcli.cli import reports
from optcli.errors import UsageError
from optcli.results import Report


@pytest.fixture
def laid(place, monkeypatch):
    """The project with its artifacts and store where a build without any option puts them."""
    monkeypatch.delenv("OPTCLI_ARTIFACTS")
    monkeypatch.delenv("OPTCLI_STORE")
    shutil.move(place.artifacts, place.folder / "artifacts")
    shutil.move(place.store, place.folder / "artifacts" / ".store")
    path = place.folder / "artifacts" / "tiny" / "report.json"
    report = Report.load(path)  # as `optcli build recipe.yaml` names the recipe
    named = report.recipe.model_copy(update={"path": "recipe.yaml"})
    path.write_text(report.model_copy(update={"recipe": named}).to_json())
    (place.folder / "deep" / "er").mkdir(parents=True)
    (place.folder.parent / "elsewhere").mkdir()
    return place.folder


VERBS = [("compare",), ("verify-accuracy",), ("baseline", "save", "kept", "--report")]


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("here", "where"),
    [
        ("", "recipe.yaml"),
        ("deep", "../recipe.yaml"),
        ("deep/er", "../../recipe.yaml"),
        ("deep", "tiny"),
        ("../elsewhere", "../project/recipe.yaml"),
        ("../elsewhere", "../project/artifacts/tiny"),
        ("../elsewhere", "../project/artifacts/tiny/report.json"),
        ("../elsewhere", "{folder}/deep/../recipe.yaml"),
    ],
)
def test_from_wherever_one_stands(laid, optcli, monkeypatch, verb, here, where):
    monkeypatch.chdir(laid / here)
    said = optcli(*verb, where.format(folder=laid))
    assert said.code == 0, said.err


@pytest.mark.slow
@pytest.mark.parametrize("here", ["deep", "deep/er"])
def test_the_last_build_is_found_from_below(laid, optcli, monkeypatch, here):
    wanted = optcli("compare").out
    monkeypatch.chdir(laid / here)
    assert optcli("compare").out == wanted
    assert optcli("inspect", "copied").code == 0


@pytest.mark.slow
def test_profile_finds_it_with_data_and_recipe(laid, optcli, monkeypatch):
    monkeypatch.chdir(laid.parent / "elsewhere")
    for where in ("../project/recipe.yaml", "../project/artifacts/tiny"):
        said = optcli("profile", "plain", "--recipe", where)
        assert said.code == 0, said.err
        assert "inputs are random" not in said.out + said.err


def test_the_report_of_this_very_recipe_comes_before_one_of_its_name(laid, monkeypatch):
    other = laid.parent / "elsewhere"
    (other / "recipe.yaml").write_text((laid / "recipe.yaml").read_text())
    shutil.copytree(laid / "artifacts" / "tiny", other / "artifacts" / "tiny")
    monkeypatch.chdir(other)
    found = reports.find(laid / "recipe.yaml", None)
    assert found.path == laid / "artifacts" / "tiny" / "report.json"
    assert found.store(None) == laid / "artifacts" / ".store"
    assert reports.find(other / "recipe.yaml", None).root == other / "artifacts"


@pytest.mark.slow
def test_a_report_of_another_recipe_of_its_name_is_not_taken_from_afar(laid, optcli, monkeypatch):
    (laid / "deep" / "recipe.yaml").write_text((laid / "recipe.yaml").read_text() + "seed: 3\n")
    monkeypatch.chdir(laid / "deep")
    said = optcli("compare", "recipe.yaml")
    assert (said.code, "no report here yet" in said.err) == (2, True)


def test_what_is_said_of_places_is_kept_to(laid, monkeypatch, tmp_path):
    monkeypatch.chdir(laid / "deep")
    with pytest.raises(UsageError) as caught:
        reports.find(laid / "recipe.yaml", tmp_path / "none")
    assert str(tmp_path / "none" / "tiny") in str(caught.value)
    monkeypatch.setenv("OPTCLI_ARTIFACTS", str(tmp_path / "other"))
    with pytest.raises(UsageError) as caught:
        reports.find(None, None)
    assert str(tmp_path / "other") in str(caught.value)


def test_all_places_are_named_where_there_is_none(laid, optcli, monkeypatch):
    shutil.rmtree(laid / "artifacts" / "tiny")
    monkeypatch.chdir(laid / "deep")
    said = optcli("profile", "plain", "--recipe", "../recipe.yaml")
    assert said.code == 2
    assert "artifacts/tiny" in said.err
    assert f"{laid}/artifacts/tiny" in said.err
    assert "--artifacts" in said.err
