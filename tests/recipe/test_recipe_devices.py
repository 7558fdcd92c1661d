"""Devices in a recipe: who they are, who is measured where, and each way to write it wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from needs import imported

from optcli.errors import RecipeError
from optcli.recipe import Recipe, load, schema
from optcli.settings.devices import RayPlace

Loaded = Callable[..., Recipe]

DEVICES = """\
devices:
  here: {}
  edge: {ray: {resources: {edge: 1}}}
  a10: {ray: {accelerator: A10G}}
baseline: eager
"""
LATENCY = "latency: {mode: quick, batch_sizes: [1, 8], threads: 2}"


def measured_on(names: str) -> tuple[str, str]:
    return LATENCY, LATENCY.replace("}", f", devices: {names}}}")


def test_a_recipe_names_devices_and_who_is_measured_there(loaded: Loaded) -> None:
    recipe = loaded(
        ("baseline: eager\n", DEVICES),
        measured_on("[here, edge]"),
        ("  onnx: [export_onnx]", "  onnx: {passes: [export_onnx], devices: [a10]}"),
        ("variants:", "gate: {devices: [edge]}\nvariants:"),
    )
    assert recipe.devices["here"].ray is None
    assert recipe.devices["edge"].ray == RayPlace(resources={"edge": 1.0})
    assert recipe.devices["edge"].ray.wanted == {"edge": 1.0}
    assert recipe.devices["a10"].ray is not None
    assert recipe.devices["a10"].ray.wanted == {"accelerator_type:A10G": 0.001}
    assert recipe.latency.devices == ("here", "edge")
    assert recipe.variants["onnx"].devices == ("a10",)
    assert recipe.variants["eager"].devices is None
    assert recipe.gate.devices == ("edge",)


def test_without_devices_nothing_is_asked_for(loaded: Loaded) -> None:
    recipe = loaded()
    assert recipe.devices == {}
    assert recipe.latency.devices is None
    assert recipe.gate.devices is None


def test_this_machine_need_not_be_listed(loaded: Loaded) -> None:
    assert loaded(measured_on("[here]")).latency.devices == ("here",)


@pytest.mark.parametrize(
    ("devices", "message", "hint"),
    [
        ("{edge: {rays: {}}}", "unknown key 'rays' in devices.edge", "did you mean 'ray'?"),
        ("{edge: {ray: {}}}", "neither resources nor accelerator", "add one of them"),
        (
            "{edge: {ray: {resource: {edge: 1}}}}",
            "unknown key 'resource' in devices.edge.ray",
            "resources",
        ),
        ("{edge: {ray: {resources: {edge: 0}}}}", "found 0, wanted more than 0", "raise it"),
        ("{edge: {ray: {resources: {edge: many}}}}", "wanted a number", ""),
        ("{edge: {ray: {accelerator: ''}}}", "wanted some text", ""),
        ("{edge: fast}", "devices.edge: found 'fast', wanted a mapping", "KEY: VALUE"),
        (
            "{here: {ray: {resources: {edge: 1}}}}",
            "here is the machine that runs optcli",
            "another name",
        ),
        ("{a/b: {}}", "wanted a name that is valid for a folder", "a-b"),
        ("{edge: {}, Edge: {}}", "it differs from 'edge' in capitals only", "rename"),
    ],
)
def test_what_is_wrong_in_them_is_named(devices: str, message: str, hint: str, loaded: Loaded) -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(("baseline: eager", f"baseline: eager\ndevices: {devices}"))
    (problem,) = caught.value.problems
    assert problem.line == 17, problem
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("edits", "message", "hint"),
    [
        (
            (measured_on("[egde]"),),
            "latency.devices: there is no device 'egde'",
            "did you mean 'edge'?",
        ),
        ((measured_on("[tpu]"),), "latency.devices: there is no device 'tpu'", "devices: {tpu: {ray"),
        ((measured_on("[]"),), "latency.devices: found an empty list, wanted at least 1", ""),
        ((measured_on("[edge, edge]"),), "latency.devices: 'edge' is named twice", "once"),
        ((measured_on("[here, mine]"),), "'mine' is the same machine as 'here'", "once"),
        (
            (("variants:", "gate: {devices: [moon]}\nvariants:"),),
            "gate.devices: there is no device 'moon'",
            "one of",
        ),
        (
            (("  onnx: [export_onnx]", "  onnx: {passes: [export_onnx], devices: [moon]}"),),
            "devices of onnx: there is no device 'moon'",
            "one of",
        ),
        (
            (("  onnx: [export_onnx]", "  onnx: {passes: [export_onnx], device: edge}"),),
            "unknown key 'device' in a variant",
            "did you mean 'devices'?",
        ),
    ],
)
def test_a_list_of_devices_names_known_ones_once(
    edits: tuple[tuple[str, str], ...], message: str, hint: str, loaded: Loaded
) -> None:
    devices = DEVICES.replace("  here: {}\n", "  here: {}\n  mine: {}\n")
    with pytest.raises(RecipeError) as caught:
        loaded(("baseline: eager\n", devices), *edits)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert hint in problem.hint
    assert problem.line > 0


def test_a_recipe_that_extends_another_removes_a_device_and_a_variant_hands_its_own_on(
    loaded: Loaded, folder: Path
) -> None:
    loaded(
        ("baseline: eager\n", DEVICES),
        ("  onnx: [export_onnx]", "  onnx: {passes: [export_onnx], devices: [edge]}"),
    )
    child = folder / "child.yaml"
    child.write_text("extends: recipe.yaml\ndevices: {a10: null}\nvariants: {more: {extends: onnx}}\n")
    recipe = load(child)
    assert list(recipe.devices) == ["here", "edge"]
    assert recipe.variants["more"].devices == ("edge",)
    child.write_text("extends: recipe.yaml\ndevices: {edge: null}\n")
    with pytest.raises(RecipeError, match="there is no device 'edge'"):
        load(child)


def test_devices_can_be_set_on_the_command_line(loaded: Loaded) -> None:
    recipe = loaded(("baseline: eager\n", DEVICES), overrides=("latency.devices=[edge]",))
    assert recipe.latency.devices == ("edge",)


def test_they_stand_in_the_schema(fakes: None) -> None:
    validator = imported("jsonschema").Draft202012Validator(schema())
    good = {
        "extends": "x.yaml",
        "devices": {"here": {}, "edge": {"ray": {"resources": {"edge": 1}}}},
        "latency": {"devices": ["here", "edge"]},
        "gate": {"devices": ["edge"]},
        "variants": {"a": {"passes": [], "devices": ["edge"]}},
    }
    assert list(validator.iter_errors(good)) == []
    for wrong in (
        {"devices": {"edge": {"rays": {}}}},
        {"devices": {"edge": {"ray": {"resources": {"edge": 0}}}}},
        {"latency": {"devices": []}},
        {"latency": {"devices": "edge"}},
    ):
        assert list(validator.iter_errors({**good, **wrong})), wrong
