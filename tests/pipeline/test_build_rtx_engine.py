"""A real engine of TensorRT-RTX through a build, where there is no GPU to run it."""

import shutil

import pytest
from needs import needs
from report_forms import text
from tiny_project import DATA, Project, project_in

from optcli import environment
from optcli.errors import InputError, MissingError, RunnerError, TrustError
from optcli.models.engines import driver, sidecar
from optcli.pipeline.model_files.measuring import bench
from optcli.results import flags
from optcli.runners import find
from optcli.scaffold.inspection import resolve
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built_once(template, tmp_path_factory):
    """Where the engine was built, and the report."""
    needs("package", "tensorrt_rtx")
    place = tmp_path_factory.mktemp("built")
    project = project_in(place, template)
    project.recipe("  plain: []\n  engine: [tensorrt_rtx_engine]\n", data=DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "has_gpu", lambda: False)
        return place, project.build()


@pytest.fixture
def project(built_once, tmp_path, monkeypatch):
    """A copy of that, where there is still no GPU."""
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    copy = shutil.copytree(built_once[0], tmp_path / "copy")
    return Project(copy / "project", copy / "store", copy / "artifacts")


@pytest.mark.long
def test_it_is_built_and_not_run(built_once, project):
    _, report = built_once
    variant = report.variants["engine"]
    assert (variant.status, variant.flags, report.exit_code) == ("built", (flags.no_gpu(),), 0)
    assert (variant.latency, variant.accuracy) == ((), None)
    assert variant.artifact.format == "tensorrt_rtx"
    assert variant.runner["name"] == "tensorrt_rtx"
    assert report.recommended != "engine"
    assert "not run: no GPU" in text(report)

    folder = project.artifacts / "tiny" / "engine"
    about = sidecar.check_plan(folder)
    assert (about.product, about.precision) == ("tensorrt_rtx", "fp32")
    assert about.profiles[0]["image"] == {
        "min": [1, 3, 4, 4],
        "opt": [2, 3, 4, 4],
        "max": [4, 3, 4, 4],
    }
    assert resolve(str(folder), folder.parent).format == "tensorrt_rtx"
    assert project.build().variants["engine"].status == "cached"


def test_the_parser_checks_somebodys_file_in_a_confined_worker(project, unmeasured):
    """Such a worker starts no programs, and so no process for the parser."""
    project.recipe("  plain: []\n  engine: {passes: [tensorrt_engine], required: false}\n")
    variant = project.build().variants["engine"]
    assert variant.status == "skipped"
    assert any("parser takes all" in found for found in variant.checked), variant.checked


def test_the_engine_itself_says_what_is_missing(project, monkeypatch):
    """The runner on a real plan: the driver is missed before TensorRT-RTX's Runtime is touched."""
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
    from optcli.pipeline.model_files.opening import open_each

    target = resolve(str(project.artifacts / "tiny" / "engine"), project.folder)
    (opened,) = open_each([target], project.folder / "scratch", (), 1)
    spec = TensorSpec(name="image", shape=("batch", 3, 4, 4))
    with pytest.raises(RunnerError, match="no NVIDIA driver") as raised:
        find("tensorrt_rtx")().open(opened.artifact, (spec,))
    assert raised.value.place.endswith(sidecar.PLAN)
    assert "nvidia-smi" in raised.value.hint


def test_model_files_are_refused_where_they_cannot_run(project):
    """`optcli bench` on the engine: trusted or not, from the own store or from elsewhere."""
    own = project.artifacts / "tiny" / "engine"
    with pytest.raises(MissingError, match="no NVIDIA GPU") as raised:
        bench([own], store=project.store)
    assert raised.value.place == str(own)
    elsewhere = project.folder / "elsewhere"
    shutil.copytree(own, elsewhere)
    with pytest.raises(TrustError, match="native code, and not from this store") as refused:
        bench([elsewhere], store=project.folder / "another-store")
    assert "--trust" in refused.value.hint
    (own / sidecar.PLAN).write_bytes(b"another plan")
    with pytest.raises((TrustError, InputError)):
        bench([own], store=project.store)
