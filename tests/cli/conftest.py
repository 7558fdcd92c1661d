"""The command line in this process, on a project that was built once and is copied for every test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Said
from tiny_project import DATA, Project
from warm_workers import descendants

from optcli import cli
from optcli.store import Store

VARIANTS = '  plain: []\n  copied: ["./fakes.py:Copy"]\n'


@pytest.fixture(scope="session")
def built_once(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("built")
    shutil.copytree(template, place / "project")
    project = Project(place / "project", place / "store", place / "artifacts")
    project.recipe(VARIANTS, data=DATA)
    assert project.build().exit_code == 0
    return place


@pytest.fixture
def place(built_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The built project, elsewhere; its folder is the current one."""
    shutil.copytree(built_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("OPTCLI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("OPTCLI_ARTIFACTS", str(tmp_path / "artifacts"))
    return Project(tmp_path / "project", tmp_path / "store", tmp_path / "artifacts")


@pytest.fixture
def optcli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run one command line in this process."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        code = cli.run([str(each) for each in arguments])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def nothing_lost(place: Project) -> Callable[[], None]:
    """To be called after a failure: what was finished is there, sound, and nothing is left over."""
    before = {(one.kind, one.key, one.created) for one in Store(place.store).entries()}
    running = descendants()  # a library may have started its own

    def check() -> None:
        store = Store(place.store)
        assert before <= {(one.kind, one.key, one.created) for one in store.entries()}
        assert store.verify() == []
        assert not [path.name for path in (place.store / "work").iterdir()]
        assert not descendants() - running

    return check
