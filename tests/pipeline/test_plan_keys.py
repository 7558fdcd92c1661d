"""What a step's key is made of, seen from the plan alone: each ingredient changes its own steps' keys.

The same of whole builds, more slowly: test_build_keys.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_project import CALIBRATION, HEAD, Project, write_model

from optcli import environment
from optcli.files.digest import FileDigests
from optcli.pipeline import keys
from optcli.pipeline.plan import plan_of
from optcli.recipe import load

VARIANTS = """\
  plain: []
  slim: [optimize_onnx]
  int8: [optimize_onnx, quantize_onnxruntime]
  openvino: [to_openvino]
"""
# The last step of each variant, and the source.
ALL = {"source", "slim", "int8", "openvino"}


@pytest.fixture
def planned(project: Project) -> Callable[..., dict[str, str]]:
    """`planned(variants, head)`: the key of the last step of each variant, and of the source."""

    def keys_of(variants: str = VARIANTS, head: str = HEAD) -> dict[str, str]:
        found = plan_of(load(project.recipe(variants, head, CALIBRATION)), {}, FileDigests())
        return {
            "source": found.variants[0].steps[0].key,
            **{each.name: each.last.key for each in found.variants if each.name != "plain"},
        }

    return keys_of


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, key in before.items() if after[name] != key}


def test_a_second_look_finds_the_same_keys_and_each_step_has_its_own(planned):
    before = planned()
    assert changed(before, planned()) == set()
    assert len(set(before.values())) == len(before)


def test_names_and_places_are_no_ingredients(planned, project, tmp_path):
    before = planned()
    after = planned(head=HEAD.replace("name: tiny", "name: other"))
    assert changed(before, after) == set()
    project.folder.rename(tmp_path / "elsewhere")
    project.folder = tmp_path / "elsewhere"
    assert changed(before, planned()) == set()


def test_the_model_changes_all(planned, project):
    before = planned()
    write_model(project.folder / "model.onnx", seed=1)
    assert changed(before, planned()) == ALL


def test_the_inputs_change_all(planned):
    before = planned()
    assert changed(before, planned(head=HEAD.replace("max: 4", "max: 8"))) == ALL


def test_the_seed_changes_passes_and_not_the_source(planned):
    before = planned()
    assert changed(before, planned(head=f"{HEAD}seed: 7\n")) == ALL - {"source"}


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("quantize_onnxruntime]", "{quantize_onnxruntime: {per_channel: false}}]", {"int8"}),
        ("slim: [optimize_onnx]", "slim: [{optimize_onnx: {level: basic}}]", {"slim"}),
    ],
)
def test_an_option_changes_its_step_and_those_behind_it(planned, old, new, wanted):
    before = planned()
    assert old in VARIANTS
    assert changed(before, planned(VARIANTS.replace(old, new))) == wanted


def test_a_step_before_changes_what_is_made_of_it(planned):
    before = planned()
    after = planned(VARIANTS.replace("int8: [optimize_onnx, ", "int8: ["))
    assert changed(before, after) == {"int8"}


def test_a_calibration_image_changes_what_calibrates(planned, project):
    before = planned()
    path = project.folder / "images" / project.store_of_calibration()
    path.write_bytes(path.read_bytes() + b"\0")
    assert changed(before, planned()) == {"int8"}


def test_a_version_changes_the_steps_of_its_library(planned, monkeypatch):
    before, real = planned(), environment.version
    monkeypatch.setattr(
        environment, "version", lambda name: "0.0.1" if name == "openvino" else real(name)
    )
    assert changed(before, planned()) == {"openvino"}


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("passes/to_openvino.py", {"openvino"}),
        ("passes/quantize_onnxruntime.py", {"int8"}),
        ("models/sources/onnx.py", ALL),
        ("pipeline/step.py", ALL),
        ("report/columns.py", set()),
    ],
)
def test_optclis_own_code_changes_the_steps_that_run_it(planned, monkeypatch, file, wanted):
    before, real = planned(), FileDigests.of
    edited = keys.PACKAGE / file
    assert edited.is_file()
    monkeypatch.setattr(
        FileDigests, "of", lambda self, path: "edited" if path == edited else real(self, path)
    )
    assert changed(before, planned()) == wanted
