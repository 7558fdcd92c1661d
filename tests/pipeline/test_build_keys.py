"""Changing one ingredient reruns exactly the steps that depend on it, and `cache why` names it."""

import shutil

import pytest
from tiny_project import DATA, HEAD, Project, project_in, write_model

from optcli import environment
from optcli.files.digest import FileDigests
from optcli.pipeline import keys
from optcli.pipeline.preview import preview
from optcli.report import terminal

VARIANTS = """\
  plain: []
  copied: ["./fakes.py:Copy"]
  twice: ["./fakes.py:Copy", {"./fakes.py:Copy": {note: again}}]
  calibrated: ["./fakes.py:Calibrated"]
  tuned: ["./fakes.py:Tuned"]
  converted: ["./fakes.py:Convert"]
"""
COPIED, CALIBRATED = "copied › ./fakes.py:Copy", "calibrated › ./fakes.py:Calibrated"
TWICE, TUNED = "twice › ./fakes.py:Copy", "tuned › ./fakes.py:Tuned"
CONVERTED = "converted › ./fakes.py:Convert"


@pytest.fixture(scope="module")
def built_once(template, tmp_path_factory):
    """Everything built, and found again."""
    place = tmp_path_factory.mktemp("built")
    project = project_in(place, template)
    project.recipe(VARIANTS, data=DATA)
    project.build()
    assert set(project.built) == {"source onnx", COPIED, TWICE, CALIBRATED, TUNED, CONVERTED}
    assert project.judged[0] == "plain › accuracy", "the baseline's comes first, and is told"
    project.build()
    assert project.built == project.judged == []
    assert not project.measured
    project.build(only=["plain"])
    return place


@pytest.fixture
def copied(built_once, tmp_path):
    """A copy of what was built once, elsewhere: keys hold no places."""
    shutil.copytree(built_once, tmp_path / "copy")
    copy = tmp_path / "copy"
    return Project(copy / "project", copy / "store", copy / "artifacts")


@pytest.fixture
def built(copied, unmeasured):
    """The same. What is built again is not measured."""
    return copied


def why(project: Project) -> str:
    document, _ = preview(project.folder / "recipe.yaml", store=project.store, explain=True)
    return terminal.text(document)


@pytest.mark.slow
def test_an_option(built):
    built.recipe(VARIANTS.replace("note: again", "note: thrice"), data=DATA)
    assert "options.note: again -> thrice" in why(built)
    built.build()
    assert built.built == [TWICE]


@pytest.mark.slow
def test_an_option_early_in_the_chain(built):
    changed = VARIANTS.replace(
        'twice: ["./fakes.py:Copy",', 'twice: [{"./fakes.py:Copy": {note: first}},'
    )
    built.recipe(changed, data=DATA)
    built.build()
    assert built.built == [TWICE, TWICE]


@pytest.mark.long
def test_a_library_version(built, monkeypatch):
    real = environment.version
    monkeypatch.setattr(environment, "version", lambda n: "0.0.1" if n == "onnx" else real(n))
    assert "versions.onnx" in why(built)
    built.build()
    # The source is read with onnx too, and all else goes on from it.
    assert set(built.built) == {"source onnx", COPIED, TWICE, CALIBRATED, TUNED, CONVERTED}


@pytest.mark.slow
def test_the_cpu(built, monkeypatch):
    monkeypatch.setattr(
        environment, "cpu", lambda: {"model": "other", "machine": "x", "flags": ["avx"]}
    )
    assert "device.cpu" in why(built)
    built.build()
    assert built.built == [TUNED]


@pytest.mark.long
def test_the_measured_batch_sizes_for_passes_that_compile_them(built):
    wanted = HEAD.replace("rounds: 2", "batch_sizes: [1, 2], rounds: 2")
    assert wanted != HEAD
    built.recipe(VARIANTS.replace("tuned:", 'sized: ["./fakes.py:Sized"]\n  tuned:'), data=DATA)
    built.build()
    assert built.built == ["sized › ./fakes.py:Sized"]
    built.recipe(
        VARIANTS.replace("tuned:", 'sized: ["./fakes.py:Sized"]\n  tuned:'), head=wanted, data=DATA
    )
    assert "batch_sizes" in why(built)
    report = built.build()
    assert built.built == ["sized › ./fakes.py:Sized"]
    assert report.variants["sized"].steps[-1].facts["sizes"] == [1, 2]


@pytest.mark.slow
def test_a_calibration_image(built):
    from PIL import Image

    chosen = built.store_of_calibration()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(built.folder / "images" / chosen)
    assert chosen in why(built)
    built.build()
    assert built.built == [CALIBRATED]


@pytest.mark.slow
def test_a_line_of_the_users_module(built):
    path = built.folder / "fakes.py"
    path.write_text(path.read_text() + "\n# a line more\n")
    built.build()
    assert set(built.built) == {COPIED, TWICE, CALIBRATED, TUNED, CONVERTED}


@pytest.mark.slow
def test_a_line_of_a_module_that_it_imports(project, unmeasured):
    (project.folder / "beside.py").write_text("NOTE = 1\n")
    path = project.folder / "fakes.py"
    path.write_text("import beside\n" + path.read_text())
    project.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n')
    project.build()
    (project.folder / "beside.py").write_text("NOTE = 2\n")
    project.build()
    assert project.built == [COPIED]


@pytest.mark.long
def test_the_model(built):
    write_model(built.folder / "model.onnx", seed=1)
    built.build()
    assert "source onnx" in built.built
    assert len(built.built) == 6


@pytest.mark.slow
def test_the_seed_reruns_passes_and_not_the_source(built):
    built.recipe(VARIANTS, head=HEAD + "seed: 7\n", data=DATA)
    built.build()
    assert "source onnx" not in built.built
    assert len(built.built) == 5


@pytest.mark.slow
def test_names_and_places_are_no_ingredients(built, tmp_path):
    """A second checkout elsewhere, with variants called otherwise, finds everything."""
    shutil.copytree(built.folder, tmp_path / "elsewhere")
    other = Project(tmp_path / "elsewhere", built.store, tmp_path / "artifacts2")
    other.recipe(VARIANTS.replace("  copied:", "  renamed:"), data=DATA)
    report = other.build()
    assert other.built == []
    assert {variant.status for variant in report.variants.values()} == {"cached"}


@pytest.fixture
def edit(monkeypatch):
    """Make a file of optcli count as edited."""
    real = FileDigests.of

    def edited(file):
        path = keys.PACKAGE / file
        assert path.is_file()
        fresh = lambda self, place: "edited" if place == path else real(self, place)  # noqa: E731
        monkeypatch.setattr(FileDigests, "of", fresh)

    return edited


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "judges", "measures"),
    [
        ("measure/latency/session.py", False, True),
        ("measure/latency/process.py", False, True),
        ("measure/latency/machine_state.py", False, True),
        ("accuracy/pairs.py", True, False),
        ("accuracy/metrics/top1.py", True, False),
        ("accuracy/metrics/map.py", False, False),  # another metric
        ("results/statistics.py", True, True),
        ("accuracy/verdicts.py", False, False),
        ("measure/latency/verdicts.py", False, False),
        ("report/columns.py", False, False),
        ("runners/tensorrt.py", False, False),  # nothing runs in it
    ],
)
def test_the_code_that_measures_and_judges(copied, edit, file, judges, measures):
    edit(file)
    copied.build(only=["plain"])
    assert (copied.built, bool(copied.judged), copied.measured) == ([], judges, measures)


@pytest.mark.long
@pytest.mark.slow
def test_cache_why_names_the_file_of_optcli_that_was_edited(project, edit, unmeasured):
    project.recipe("  plain: []\n  int8: [quantize_onnxruntime]\n", data=DATA)
    project.build()
    edit("passes/_quantization/transformers.py")
    assert "code.passes/_quantization/transformers.py" in why(project)
    project.build()
    assert project.built == ["int8 › quantize_onnxruntime"]
    edit("models/formats/onnxruntime_providers.py")
    assert "code.models/formats/onnxruntime_providers.py" in why(project)
