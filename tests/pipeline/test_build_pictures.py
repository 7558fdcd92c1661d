"""Pictures of a build: written beside the report, kept, and removed where the recipe says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_project import Project, project_in, write_recipe

from optcli.pipeline import pictures
from optcli.results import Report

pytestmark = pytest.mark.slow
VARIANTS = "  plain: []\n  same: {passes: [], runner: {name: onnxruntime, threads: 1}}\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("template")
    write_recipe(folder / "of", f"variants:\n{VARIANTS}")
    project = project_in(folder / "built", folder / "of")
    project.build()
    return project


def files(project: Project) -> dict[str, int]:
    found = (project.artifacts / "tiny" / "pictures").glob("*.jpg")
    return {path.name: path.stat().st_mtime_ns for path in found}


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("an image was read")


def test_they_lie_beside_the_report_and_the_page_holds_them(built: Project) -> None:
    report = Report.load(built.artifacts / "tiny" / "report.json")
    shown = report.variants["same"].pictures
    assert [each.chosen for each in shown] == ["random", "random"]
    assert report.variants["plain"].pictures == ()
    assert {Path(each.file).name for each in shown} == files(built).keys()
    page = (built.artifacts / "tiny" / "report.html").read_text()
    assert page.count("<img ") == 2
    assert page.count("data:image/jpeg;base64,") == 2


def test_a_build_of_the_same_shows_them_again_and_reads_no_image(
    built: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(built)
    monkeypatch.setattr(pictures.workers, "run", refused)
    report = built.build()
    assert len(report.variants["same"].pictures) == 2
    assert files(built) == before


def test_they_are_drawn_again_where_one_is_missing(built: Project) -> None:
    before = files(built)
    (built.artifacts / "tiny" / "pictures" / min(before)).unlink()
    built.build()
    assert files(built).keys() == before.keys()


def test_without_the_answers_there_are_none_until_they_are_there_again(built: Project) -> None:
    kept = built.store / "entries" / "evaluation"
    kept.rename(built.store / "gone")
    (built.artifacts / "tiny" / "pictures" / min(files(built))).unlink()
    assert built.build().variants["same"].pictures == ()
    shutil.rmtree(kept, ignore_errors=True)
    (built.store / "gone").rename(kept)
    assert len(built.build().variants["same"].pictures) == 2


def test_private_data_have_none_and_earlier_ones_are_removed(
    built: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures.workers, "run", refused)
    left = built.artifacts / "tiny" / ".pictures-killed"
    left.mkdir()
    report = built.build(overrides=("report.pictures=false",))
    assert all(each.pictures == () for each in report.variants.values())
    assert not left.exists()
    assert not (built.artifacts / "tiny" / "pictures").exists()
    assert "<img " not in (built.artifacts / "tiny" / "report.html").read_text()
    monkeypatch.undo()
    built.build()
    assert len(files(built)) == 2


def test_a_folder_of_somebody_else_stays_and_a_failure_is_a_warning(
    built: Project, tmp_path: Path
) -> None:
    project = project_in(tmp_path, built.folder)
    project.store = built.store
    own = project.artifacts / "tiny" / "pictures" / "holiday.jpg"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    report = project.build()
    assert report.variants["same"].pictures == ()
    assert own.read_bytes() == b"mine"
