"""A recipe at a commit: its own files as they were, everything around it as it is."""

import subprocess

import pytest

from optcli.baselines import checked_out
from optcli.errors import InputError, MissingError, UsageError
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
