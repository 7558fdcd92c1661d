"""A project in git, and scripted launch pairs, for the tests of the gate."""

from __future__ import annotations

import shutil

import pytest
from gated_project import BARRED, COPIED, Script, explained, git, write_separable
from tiny_project import Project

from optcli.gate import variant as gating_variant


@pytest.fixture(scope="session")
def _filled(template, tmp_path_factory):
    """A store with what the recipes of `repository` and of `judged` come to."""
    place = tmp_path_factory.mktemp("filled")
    shutil.copytree(template, place / "project")
    project = Project(place / "project", place / "store", place / "artifacts")
    project.recipe(COPIED % "old")
    assert project.build().exit_code == 0
    write_separable(project.folder)
    project.recipe(COPIED % "old", data=BARRED)
    assert project.build().exit_code == 0
    return project.store


@pytest.fixture
def repository(project, _filled):
    """The project in git, with one commit of a recipe; data is not committed.

    Its store has what the recipe comes to. A test that asks for `cold` finds it empty.
    """
    shutil.copytree(_filled, project.store)
    project.recipe(COPIED % "old")
    (project.folder / ".gitignore").write_text("images/\n")
    git(project.folder, "init", "-q")
    git(project.folder, "add", ".")
    git(project.folder, "commit", "-qm", "one")
    return project


@pytest.fixture
def cold(repository):
    """The project with an empty store."""
    shutil.rmtree(repository.store)


@pytest.fixture
def pairs(monkeypatch):
    """Scripted launch pairs: `pairs.growth` holds the log ratios of each measurement in turn."""
    script = Script()
    monkeypatch.setattr(gating_variant, "compare", script)
    monkeypatch.setattr(gating_variant, "explain", explained(gating_variant.explain))
    return script
