"""Links of a commit lead no output elsewhere; links of the user's own do."""

from __future__ import annotations

import subprocess

import pytest


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with a recipe that fails once its folders are known, and a folder beside it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine").write_text("kept")
    top = tmp_path / "project"
    top.mkdir()
    monkeypatch.chdir(top)
    (top / "x.yaml").write_text(
        "version: 1\nname: x\nmodel: {source: 'onnx:none.onnx'}\n"
        "inputs: [{name: image, dtype: float32, shape: [1, 4]}]\nvariants: {v: []}\n"
    )
    subprocess.run(["git", "init", "-q"], check=True)
    return top


def commit(top):
    subprocess.run(["git", "add", "--all", "--force"], check=True, cwd=top)


VERBS = {
    "build": ("build", "x.yaml"),
    "gate": ("gate", "x.yaml", "--baseline", "git:HEAD"),
    "cache": ("cache", "gc"),
    "compare": ("compare", "x.yaml", "-o", "artifacts/page.md"),
    "plan": ("plan", "x.yaml", "--html", "artifacts/page.html"),
    "init": ("init", "none.onnx", "--out", "artifacts/r.yaml"),
    "named": ("build", "x.yaml", "--artifacts", "artifacts", "--store", "elsewhere"),
    "store": ("bench", "none.onnx", "--store", "artifacts/store"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_link_of_a_commit_is_refused(project, optcli, verb):
    (project / "artifacts").symlink_to("../home")
    commit(project)
    ended = optcli(*VERBS[verb])
    assert ended.code == 2
    assert "git tracks this link" in ended.err
    assert [each.name for each in (project.parent / "home").iterdir()] == ["mine"]


@pytest.mark.parametrize("below", ["x", ".store", "x/logs", "x/logs/v.log", "x/report.json"])
def test_so_is_one_below_the_folder(project, optcli, below):
    link = project / "artifacts" / below
    link.parent.mkdir(parents=True)
    link.symlink_to(project.parent / "home" / ("mine" if "." in below[1:] else ""))
    commit(project)
    ended = optcli("build", "x.yaml")
    assert (ended.code, "git tracks this link" in ended.err) == (2, True)
    assert str(link.relative_to(project)) in ended.err
    assert [each.read_text() for each in (project.parent / "home").iterdir()] == ["kept"]


@pytest.mark.parametrize("linked", ["", ".store"])
def test_a_link_of_the_users_own_is_followed(project, optcli, linked):
    commit(project)
    (project / "artifacts" / linked).parent.mkdir(exist_ok=True)
    (project / "artifacts" / linked).symlink_to(project.parent / "home")
    ended = optcli("build", "x.yaml", "--dry-run")
    assert "git tracks" not in ended.err


def test_files_that_a_commit_brings_are_none(project, optcli):
    (project / "artifacts").mkdir()
    (project / "artifacts" / "notes.md").write_text("ours")
    commit(project)
    assert "git tracks" not in optcli("build", "x.yaml").err


def test_a_name_with_signs_of_patterns_is_a_name(project, optcli):
    (project / "page[1]").symlink_to("../home/mine")
    (project / "page1").write_text("")
    commit(project)
    for name, said in (("page[1]", True), ("page1", False)):
        assert ("git tracks" in optcli("plan", "x.yaml", "--html", name).err) is said
