"""Projects in git, and scripted launch pairs, for the tests of the gate."""

from __future__ import annotations

import shutil

import pytest
from gated_project import BARRED, COPIED, Script, commit, explained, git, write_separable
from tiny_project import project_in

from optcli.gate import variant as gating_variant


@pytest.fixture(scope="session")
def _filled(template, tmp_path_factory):
    """`repository` and `judged`; their stores have what their recipes come to."""
    place = tmp_path_factory.mktemp("filled")
    without = project_in(place / "without", template)
    without.recipe(COPIED % "old")
    (without.folder / ".gitignore").write_text("images/\n")
    git(without.folder, "init", "-q")
    commit(without, "one")
    judged = project_in(place / "judged", without.folder)
    (judged.folder / ".gitignore").write_text("")
    write_separable(judged.folder)
    judged.recipe(COPIED % "old", data=BARRED)
    commit(judged, "with data")
    for each in (without, judged):
        assert each.build().exit_code == 0
    return without, judged


def _copy(project, place):
    shutil.copytree(project.store, place / "store")
    return project_in(place, project.folder)


@pytest.fixture
def repository(_filled, tmp_path):
    """A project in git, with one commit of a recipe; data is not committed."""
    return _copy(_filled[0], tmp_path)


@pytest.fixture
def judged(_filled, tmp_path):
    """The same with evaluation data and everything in git; `accuracy` allows a small loss."""
    return _copy(_filled[1], tmp_path)


@pytest.fixture
def pairs(monkeypatch):
    """Scripted launch pairs: `pairs.growth` holds the log ratios of each measurement in turn."""
    script = Script()
    monkeypatch.setattr(gating_variant, "compare", script)
    monkeypatch.setattr(gating_variant, "explain", explained(gating_variant.explain))
    return script
