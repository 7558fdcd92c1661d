"""A recipe at a commit: its own files as they were, everything around it as it is."""

import os
import subprocess

import pytest

from optcli.errors import InputError, MissingError, UsageError
from optcli.gate.baselines import checked_out, committed_link
from optcli.store import Store


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def project(tmp_path):
    """Two commits of a recipe, data that git ignores, and data beside the repository."""
    top = tmp_path / "home" / "project"
    (top / "recipes").mkdir(parents=True)
    (top / "data").mkdir()
    (top / "data" / "a.npz").write_bytes(b"1")
    (top / ".gitignore").write_text("data/\n.venv/\n")
    (top / ".venv").mkdir()
    (top / ".venv" / "x").touch()
    (tmp_path / "home" / "datasets").mkdir()
    (tmp_path / "home" / "datasets" / "b.npz").write_bytes(b"2")
    git(tmp_path, "init", "-q", str(top))
    (top / "recipes" / "r.yaml").write_text("name: old\n")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    (top / "recipes" / "r.yaml").write_text("name: new\n")
    (top / "recipes" / "later.yaml").write_text("name: later\n")
    git(top, "add", ".")
    git(top, "commit", "-qm", "two")
    return top


@pytest.mark.slow
def test_the_recipe_is_as_it_was_and_data_as_it_is(project, store, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    with checked_out(project / "recipes" / "r.yaml", "HEAD~1", store) as there:
        recipe, commit = there.recipe, there.commit
        assert recipe.read_text() == "name: old\n"
        assert (recipe.parent / "../data/a.npz").read_bytes() == b"1"
        assert (recipe.parent / "../../datasets/b.npz").read_bytes() == b"2"
        assert not (recipe.parents[1] / ".venv").exists()
        monkeypatch.delenv("GIT_DIR")
        assert commit == git(project, "rev-parse", "HEAD~1")
        first = recipe
    assert not first.exists()
    with checked_out(project / "recipes" / "r.yaml", "HEAD~1", store) as there:
        assert there.recipe == first  # so that digests of files are remembered


@pytest.mark.slow
def test_nothing_is_left_and_nothing_beyond_is_touched(project, store):
    def fails():
        with checked_out(project / "recipes" / "r.yaml", "HEAD", store) as there:
            there.recipe.write_text("changed")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert git(project, "worktree", "list").count("\n") == 0
    assert git(project, "status", "--porcelain") == ""
    assert (project / "data" / "a.npz").exists()
    assert list((store.root / "revisions").iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_run_left_is_cleared(project, store):
    with checked_out(project / "recipes" / "r.yaml", "HEAD", store) as there:
        recipe, commit = there.recipe, there.commit
        folder = store.root / "revisions" / commit
        left = recipe.parents[1].relative_to(folder)
    git(project, "worktree", "add", "--detach", str(folder / left), commit)
    with checked_out(project / "recipes" / "r.yaml", "HEAD", store) as there:
        assert there.recipe.read_text() == "name: new\n"


def test_what_cannot_be_checked_out_says_why(project, store, tmp_path, monkeypatch):
    def fails(kind, match, recipe, revision="HEAD"):
        with pytest.raises(kind, match=match) as failure, checked_out(recipe, revision, store):
            pass
        assert failure.value.hint
        return failure.value.hint

    recipe = project / "recipes" / "r.yaml"
    assert "fetch" in fails(UsageError, "does not know the revision 'nope'", recipe, "nope")
    fails(InputError, "did not exist at HEAD~1", project / "recipes" / "later.yaml", "HEAD~1")
    (tmp_path / "r.yaml").touch()
    fails(UsageError, "not lie in a git repository", tmp_path / "r.yaml")
    monkeypatch.setenv("PATH", str(tmp_path))
    fails(MissingError, "git is not installed", recipe)


def requirements(project, store):
    with checked_out(project / "recipes" / "r.yaml", "HEAD", store) as there:
        return there.changed_requirements()


@pytest.mark.slow
def test_requirements_and_locks_that_differ_are_named(project, store):
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["numpy"]\n')
    (project / "requirements.txt").write_text("torch==2.1  # why\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "libraries")
    assert requirements(project, store) == []
    # What other tools are told, and a comment, say nothing of libraries.
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["numpy"]\n[tool.ruff]\n')
    (project / "requirements.txt").write_text("# more\ntorch==2.1\n")
    assert requirements(project, store) == []
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["numpy<2"]\n')
    (project / "requirements.txt").write_text("torch==2.2\n")
    (project / "recipes" / "uv.lock").write_text("new and not in git\n")
    (project / "recipes" / ".tiny.lock").write_text("held by a build\n")
    assert requirements(project, store) == ["pyproject.toml", "recipes/uv.lock", "requirements.txt"]
    (project / "requirements.txt").unlink()
    assert "requirements.txt" in requirements(project, store)


@pytest.mark.slow
def test_submodules_are_known(project, store, tmp_path):
    git(tmp_path, "init", "-q", str(tmp_path / "other"))
    (tmp_path / "other" / "x").touch()
    git(tmp_path / "other", "add", ".")
    git(tmp_path / "other", "commit", "-qm", "one")
    allowed = ["-c", "protocol.file.allow=always"]
    git(project, *allowed, "submodule", "add", "-q", str(tmp_path / "other"), "models")
    with checked_out(project / "recipes" / "r.yaml", "HEAD", store) as there:
        assert there.submodules() == ["models"]


def commit(project, message):
    git(project, "add", "-A")
    git(project, "commit", "-qm", message)


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("link", ["data", "artifacts/more", "recipes/x"])
def test_links_of_the_commit_are_not_written_through(project, store, outside, link):
    """Where today's checkout has a folder with files of its own, the commit has a link to elsewhere."""
    (project / ".gitignore").unlink()
    (project / "data" / "a.npz").unlink()
    (project / "data").rmdir()
    (project / link).parent.mkdir(exist_ok=True)
    (project / link).symlink_to(outside)
    commit(project, "a link")
    (project / link).unlink()
    (project / link / "below").mkdir(parents=True)
    (project / link / "of-git").touch()
    commit(project, "a folder")
    (project / link / "mine.txt").touch()
    (project / link / "below" / "mine.txt").touch()
    with checked_out(project / "recipes" / "r.yaml", "HEAD~1", store) as there:
        assert (there.worktree / link).is_symlink()
        assert list(outside.iterdir()) == []
    assert list(outside.iterdir()) == []


@pytest.mark.slow
def test_a_file_of_the_commit_where_a_folder_is_today_stays(project, store):
    (project / "models").write_text("a file")
    commit(project, "a file")
    (project / "models").unlink()
    (project / "models").mkdir()
    (project / "models" / "of-git").touch()
    commit(project, "a folder")
    (project / "models" / "mine.txt").touch()
    with checked_out(project / "recipes" / "r.yaml", "HEAD~1", store) as there:
        assert (there.worktree / "models").read_text() == "a file"


@pytest.mark.slow
def test_checking_out_runs_nothing(project, store, outside):
    """Hooks, filters and monitors that the user has named by paths which the commit fills."""
    program = f'#!/bin/sh\ntouch "{outside}/$(basename "$0")"\nexec cat\n'
    (project / "hooks").mkdir()
    for name in ("hooks/post-checkout", "hooks/reference-transaction", "filter", "monitor", "x=y.sh"):
        (project / name).write_text(program)
        (project / name).chmod(0o755)
    rules = ("recipes/*.yaml filter=mine", "data.bin filter=long", "odd.bin filter=a=b.C")
    (project / ".gitattributes").write_text("\n".join(rules) + "\n")
    for name in ("data.bin", "odd.bin"):
        (project / name).write_bytes(b"as committed")
    commit(project, "programs")
    settings = {
        "core.hooksPath": "hooks",
        "core.fsmonitor": "./monitor",
        "submodule.recurse": "true",
        "filter.mine.smudge": "./filter",
        "filter.mine.required": "true",
        "filter.long.process": "./filter",
        "filter.long.required": "true",
        "filter.a=b.C.smudge": "./x=y.sh",
        "filter.lfs.smudge": "git-lfs smudge -- %f",
    }
    for name, value in settings.items():
        git(project, "config", name, value)
    for left in outside.iterdir():  # of git itself, in the user's own checkout
        left.unlink()
    with checked_out(project / "recipes" / "r.yaml", "HEAD", store) as there:
        assert there.recipe.read_text() == "name: new\n"
        assert (there.worktree / "data.bin").read_bytes() == b"as committed"
        assert (there.worktree / "odd.bin").read_bytes() == b"as committed"
    assert list(outside.iterdir()) == []


@pytest.mark.slow
def test_names_that_are_no_utf_8_are_no_hindrance(project, store):
    (project / "recipes" / os.fsdecode(b"requirements-\xff.txt")).write_text("torch\n")
    commit(project, "odd")
    (project / os.fsdecode(b" \xfe.npz")).touch()
    assert requirements(project, store) == []
    assert list((store.root / "revisions").iterdir()) == []


def test_a_link_that_git_holds_leads_to_no_place_of_ones_own(project, outside):
    (project / "artifacts").symlink_to(outside)
    (project / "mine").symlink_to(outside)
    assert committed_link(project / "artifacts" / "r" / "gate") is None
    git(project, "add", "artifacts")
    assert committed_link(project / "artifacts" / "r" / "gate") == project / "artifacts"
    assert committed_link(project / "mine" / "r") is None
    assert committed_link(project / "recipes") is None
