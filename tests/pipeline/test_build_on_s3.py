"""Builds of two machines that share a remote store on a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray_cluster import made
from s3_server import Bucket
from tiny_project import DATA, Heard, Project, project_in

from optcli.pipeline.building import build
from optcli.results import Report
from optcli.store import Store
from optcli.store.remote import manifest

pytestmark = pytest.mark.slow

VARIANTS = """\
  plain: []
  int8: [quantize_onnxruntime]
"""


class Machine:
    """It builds the project with a store of its own."""

    def __init__(self, project: Project, bucket: Bucket, name: str) -> None:
        self.project, self.url, self.root = project, bucket.url, project.folder.parent / name
        self.heard = Heard()

    def build(self, heard: Heard | None = None, *, read_only: bool = False) -> Report:
        self.heard = heard or Heard()
        return build(
            self.project.folder / "recipe.yaml",
            store=Store.at(self.root / "store", self.url, read_only=read_only),
            artifacts=self.root / "artifacts",
            observer=self.heard,
        )

    @property
    def made(self) -> list[str]:
        """What was done here, besides measuring."""
        return sorted(step for step in self.heard.built if step != "latency")

    @property
    def notes(self) -> list[str]:
        """What it was told of the remote store."""
        return [note for note in self.heard.notes if "s3://" in note]


@pytest.mark.long
def test_a_second_machine_makes_nothing(project: Project, s3: Bucket) -> None:
    project.recipe(VARIANTS, data=DATA)
    first, second = (Machine(project, s3, name) for name in ("first", "second"))
    report = first.build()
    assert report.exit_code == 0
    assert first.notes == []
    again = second.build()
    assert (second.made, second.notes) == ([], [])
    assert made(again) == made(report)
    assert {each.status for each in again.variants.values()} == {"cached"}
    assert again.variants["int8"].accuracy == report.variants["int8"].accuracy


@pytest.fixture(scope="module")
def first(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """What one machine has built and uploaded, as files, and its report."""
    place = tmp_path_factory.mktemp("first")
    project = project_in(place, template)
    project.recipe(VARIANTS, data=DATA)
    report = build(
        project.folder / "recipe.yaml",
        store=Store.at(project.store, f"file://{place}/remote"),
        artifacts=project.artifacts,
    )
    assert report.exit_code == 0
    return place / "remote", report


def one_of_two(project: Project, bucket: Bucket, first: tuple[Path, Report]) -> tuple[Report, Machine]:
    """What one machine has built and uploaded, and another one that has not begun."""
    project.recipe(VARIANTS, data=DATA)
    remote, report = first
    for path in remote.rglob("*"):
        if path.is_file():
            bucket.write(path.relative_to(remote).as_posix(), path.read_bytes())
    return report, Machine(project, bucket, "second")


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_a_corrupted_object_is_refused_named_made_again_and_replaced(
    project: Project, s3: Bucket, first: tuple[Path, Report]
) -> None:
    report, second = one_of_two(project, s3, first)
    artifact = report.variants["int8"].artifact
    assert artifact is not None
    path = manifest.path_of("artifact", artifact.key)
    entry = manifest.read(s3.read(path), "artifact", artifact.key, Path(), s3.url)
    ((_, content),) = entry.contents.values()
    place = manifest.object_of(content)
    sound = s3.read(place)
    s3.write(place, sound[:-1] + bytes([sound[-1] ^ 1]))
    assert second.build().exit_code == 0
    assert second.made == ["int8 › quantize_onnxruntime"]
    (note,) = second.notes
    assert f"artifact {artifact.key[:12]} is refused: its object {content[:12]}" in note
    assert s3.read(place) == sound


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_one_that_vanishes_in_the_middle_costs_nothing_but_time(
    project: Project, own_s3: Bucket, first: tuple[Path, Report]
) -> None:
    class Killing(Heard):
        """kill -9 of the server at the first step that is done."""

        def finished(self, step: str, seconds: float) -> None:
            own_s3.server.kill()
            super().finished(step, seconds)

        def cached(self, step: str) -> None:
            own_s3.server.kill()

    report, second = one_of_two(project, own_s3, first)
    again = second.build(Killing())
    assert again.exit_code == 0
    assert made(again) == made(report)
    (note,) = second.notes
    assert "going on without the remote store" in note


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_a_machine_that_may_only_read_writes_nothing(
    project: Project, s3: Bucket, first: tuple[Path, Report]
) -> None:
    _, second = one_of_two(project, s3, first)
    before = s3.paths()
    project.recipe(VARIANTS + '  another: [{"./fakes.py:Copy": {note: more}}]\n', data=DATA)
    assert second.build(read_only=True).exit_code == 0
    assert any("another" in step for step in second.made)
    assert s3.paths() == before
    assert second.notes == []
