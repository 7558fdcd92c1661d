"""A project in git, and scripted launch pairs, for the tests of the gate."""

from __future__ import annotations

import pytest
from gated_project import COPIED, Script, explained, git

from optcli.gate import variant as gating_variant


@pytest.fixture
def repository(project):
    """The project in git, with one commit of a recipe; data is not committed."""
    project.recipe(COPIED % "old")
    (project.folder / ".gitignore").write_text("images/\n")
    git(project.folder, "init", "-q")
    git(project.folder, "add", ".")
    git(project.folder, "commit", "-qm", "one")
    return project


@pytest.fixture
def pairs(monkeypatch):
    """Scripted launch pairs: `pairs.growth` holds the log ratios of each measurement in turn."""
    script = Script()
    monkeypatch.setattr(gating_variant, "compare", script)
    monkeypatch.setattr(gating_variant, "explain", explained(gating_variant.explain))
    return script
