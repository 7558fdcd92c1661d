"""Who is measured on which device, and what is said of the nodes of a cluster; no Ray is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_project import DATA, HEAD, Heard

from optcli import environment
from optcli.errors import MissingError, RecipeError, UsageError
from optcli.files.digest import FileDigests
from optcli.measure.latency import LatencyOrder
from optcli.pipeline import keys, plan
from optcli.pipeline.building import build
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.making import planned
from optcli.pipeline.on_ray import device_nodes, devices
from optcli.pipeline.on_ray.device_nodes import NodeLostError, RayNode
from optcli.pipeline.remote_devices import devices as remote_devices
from optcli.pipeline.remote_devices import measuring
from optcli.pipeline.remote_devices.messages import Look, Seen, Wish
from optcli.recipe import load
from optcli.settings.devices import RayPlace
from optcli.settings.latency import LatencySettings
from optcli.store import Store
from optcli.workers import messages

DEVICES = """\
devices:
  mine: {}
  edge: {ray: {resources: {edge: 1}}}
  a10: {ray: {accelerator: A10G}}
"""
EDGE = RayPlace(resources={"edge": 1})


def recipe(project, variants, measured_on=None):
    listed = f", devices: {measured_on}}}" if measured_on else "}"
    return load(
        project.recipe(variants, head=HEAD.replace("threads: 1}", f"threads: 1{listed}") + DEVICES)
    )


def who(project, variants, measured_on=None):
    """By device: where it is, and the variants measured there."""
    found = recipe(project, variants, measured_on)
    of = plan.devices_of(found, list(found.variants), found.baseline)
    return {each.name: (each.ray, each.variants) for each in of}


def test_without_being_asked_everything_is_measured_here(project):
    assert who(project, "  plain: []\n  other: []\n") == {None: (None, ("plain", "other"))}


def test_all_variants_are_measured_on_the_devices_of_latency_in_their_order(project):
    found = who(project, "  plain: []\n  other: []\n", "[edge, mine]")
    assert found == {"edge": (EDGE, ("plain", "other")), "mine": (None, ("plain", "other"))}
    assert list(found) == ["edge", "mine"]


def test_a_variant_goes_elsewhere_and_the_baseline_goes_with_it(project):
    found = who(project, "  plain: []\n  other: {passes: [], devices: [a10]}\n  third: []\n", "[edge]")
    assert {name: names for name, (_, names) in found.items()} == {
        "edge": ("plain", "third"),
        "a10": ("plain", "other"),
    }


def test_a_variant_that_says_nothing_beside_one_that_does_is_measured_here(project):
    found = who(project, "  plain: []\n  other: {passes: [], devices: [edge]}\n")
    assert found == {"mine": (None, ("plain",)), "edge": (EDGE, ("plain", "other"))}


def test_a_device_on_which_nothing_is_measured_is_not_asked(project):
    found = who(project, "  plain: {passes: [], devices: [edge]}\n", "[a10]")
    assert list(found) == ["edge"]


def test_at_home_all_is_measured_here(project):
    found = recipe(project, "  plain: []\n  other: {passes: [], devices: [a10]}\n", "[edge]")
    (only,) = plan.devices_of(plan.at_home(found), ["plain", "other"], "plain")
    assert (only.name, only.ray) == (None, None)


def test_a_device_of_a_cluster_needs_ray(project):
    recipe(project, "  plain: []\n", "[edge]")
    heard = Heard()
    for ray, found in ((None, "found no --ray"), ("local", "found --ray local")):
        with pytest.raises(UsageError, match=found) as caught:
            build(
                project.folder / "recipe.yaml",
                store=project.store,
                settings=BuildSettings(ray=ray),
                observer=heard,
            )
        assert caught.value.place == "devices.edge"
        assert "--ray auto" in caught.value.hint
    assert heard.built == [], "nothing was made before"


def node(name, **resources):
    return RayNode(name, f"host-{name}", {"CPU": 2.0, "memory": 1e9, "node:10.0.0.1": 1.0, **resources})


def test_nodes_that_have_all_of_it_are_the_device():
    nodes = [node("a", edge=1.0), node("b", edge=0.5), node("c", edge=2.0, big=1.0), node("d")]
    assert [each.id for each in device_nodes.fitting("edge", EDGE, nodes)] == ["a", "c"]
    both = RayPlace(resources={"edge": 1, "big": 1})
    assert [each.id for each in device_nodes.fitting("edge", both, nodes)] == ["c"]
    gpu = node("g", **{"GPU": 1.0, "accelerator_type:A10G": 1.0})
    a10 = RayPlace(accelerator="A10G")
    assert device_nodes.fitting("a10", a10, [*nodes, gpu]) == [gpu]


def test_where_no_node_is_the_device_it_is_named_with_what_there_is():
    with pytest.raises(MissingError, match="no node of the cluster has edge: 1") as caught:
        device_nodes.fitting("edge", EDGE, [node("a", GPU=1.0, dege=3.0), node("b")])
    assert caught.value.place == "devices.edge"
    assert "its 2 nodes have GPU: 1, dege: 3;" in caught.value.hint
    assert "node:" not in caught.value.hint
    with pytest.raises(MissingError) as caught:
        device_nodes.fitting("edge", EDGE, [node("a")])
    assert "its 1 node has nothing but CPU" in caught.value.hint


def test_who_measures_takes_the_whole_node():
    of = device_nodes._all_of(node("a", edge=2.0, GPU=4.0), EDGE)
    assert of == {"num_cpus": 2.0, "num_gpus": 4.0, "resources": {"edge": 1.0}}


def looked(**changed):
    code = keys.of_measurement("onnxruntime", ("measure/latency/process.py",), FileDigests())
    asked = {"packages": ("onnxruntime",), "code": code, "wishes": {}, **changed}
    return messages.read(Seen, measuring.look(messages.to_record(Look(**asked)), "n1"))


def test_a_node_says_what_it_is():
    seen = looked()
    assert seen.unfit == ()
    assert seen.environment == environment.describe(("onnxruntime",))
    assert seen.machine == environment.machine()
    assert (seen.node, bool(seen.host), bool(seen.confinement)) == ("n1", True, True)


def test_a_node_with_another_optcli_measures_nothing():
    (unfit,) = looked(code={"measure/latency/process.py": "0" * 64}).unfit
    assert "measure/latency/process.py" in unfit
    answer = messages.read(Seen, measuring.look({"of": "another version"}, "n1"))
    assert answer.unfit == ("its optcli does not understand the messages of this one",)


@pytest.mark.slow
def test_a_node_says_what_a_variant_lacks_there(project, monkeypatch):
    project.recipe('  plain: []\n  tuned: ["./fakes.py:Tuned"]\n')
    plan = planned(project.folder / "recipe.yaml", Store(project.store), (), ())
    step = plan.variants[1].last
    bound = Wish(needs=environment.Needs(), bound_to=step.ingredients["device"], traits=step.traits)
    absent = Wish(needs=environment.Needs(("optcli_no_such_package",)))
    seen = looked(wishes={"bound": bound, "absent": absent})
    assert seen.lacks["bound"] == ()
    (missing,) = seen.lacks["absent"]
    assert "optcli_no_such_package is not installed" in missing.what
    monkeypatch.setattr(environment, "cpu", lambda: {"model": "Another", "flags": []})
    (missing,) = looked(wishes={"bound": bound}).lacks["bound"]
    assert missing.what.startswith("its CPU is Another")
    assert "build on the device" in missing.hint


def test_native_code_alone_is_bound_to_a_device(project):
    """What was calibrated here runs anywhere, although its key holds the processor."""
    project.recipe("  plain: []\n  int8: [quantize_onnxruntime]\n", data=DATA)
    plan = planned(project.folder / "recipe.yaml", Store(project.store), (), ())
    last = plan.variants[1].last
    assert "device" in last.ingredients
    assert remote_devices._wish(plan.variants[1]).bound_to is None


def test_a_recipe_names_a_device_and_cannot_say_where_it_is(project):
    project.recipe("  plain: []\n", head=HEAD + "devices: {pi: {ssh: true}}\n")
    (device,) = plan.devices_of(load(project.folder / "recipe.yaml"), ["plain"], "plain")
    assert device.is_here, "nothing is measured on it"
    for written, wanted in (
        ("{ssh: evil@host}", "stands in your own configuration"),
        ("{ssh: {host: evil}}", "stands in your own configuration"),
        ("{ssh: true, ray: {resources: {edge: 1}}}", "found ray and ssh"),
    ):
        project.recipe("  plain: []\n", head=HEAD + f"devices: {{pi: {written}}}\n")
        with pytest.raises(RecipeError, match=wanted):
            load(project.folder / "recipe.yaml")


def test_a_device_that_the_user_does_not_know_is_named_before_anything_is_made(project):
    measured_on = HEAD.replace("threads: 1}", "threads: 1, devices: [pi]}")
    project.recipe("  plain: []\n", head=measured_on + "devices: {pi: {ssh: true}}\n")
    heard = Heard()
    with pytest.raises(MissingError, match="the device 'pi' has no address here"):
        build(project.folder / "recipe.yaml", store=project.store, observer=heard)
    assert heard.built == []


def test_a_device_that_answers_with_an_error_has_not_finished():
    class Failing(remote_devices.RemoteDevice):
        def _answer(self, *arguments):
            raise MissingError("its runtime is gone")

        def release(self):
            pass

    heard, order = Heard(), LatencyOrder((), "plain", (), None, LatencySettings(), 0)
    with pytest.raises(MissingError):
        Failing("pi", Look(packages=(), code={}, wishes={})).measure("bench", order, Path(), heard)
    assert heard.built == []


@pytest.mark.parametrize(("lost", "hint"), [(True, "memory free"), (False, "the same optcli")])
def test_where_no_node_can_measure_the_hint_is_about_the_first(project, monkeypatch, lost, hint):
    def seen(device, node, look):
        if lost:
            raise NodeLostError(f"{node.host} does not answer: OutOfMemoryError")
        return SimpleNamespace(host=node.host, unfit=["it has optcli 0.0"])

    monkeypatch.setattr(device_nodes, "nodes", lambda: [RayNode("1", "pi", {"edge": 1})])
    monkeypatch.setattr(device_nodes, "seen", seen)
    monkeypatch.setattr(devices, "look_for", lambda plan, digests: None)
    device = devices.RayDevice("edge", EDGE, None, SimpleNamespace(digests=None))
    with pytest.raises(MissingError, match="no node of the device can measure: pi") as error:
        device.choose(Heard())
    assert hint in error.value.hint
