"""What deploy writes for Ray: bundle.json and serve_config.yaml of small models; what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ruamel.yaml import YAML
from small_bundles import bundled, looked_at, sealed_plan
from small_variants import IMAGE, onnx_model, variant

import optcli
from optcli.artifact import Format
from optcli.errors import InputError, UsageError
from optcli.measure.latency.measured_curve import MeasuredCurve
from optcli.measure.queueing.curve import CompiledForms, Curve, with_forms
from optcli.observer import Silent
from optcli.results import Report
from optcli.serving import bundle
from optcli.serving.deploy import plans, ray_bundle, ray_config, ray_runtimes

pytestmark = pytest.mark.usefixtures("hurried_plans")


@pytest.fixture(scope="module")
def plan():
    return sealed_plan()


def planned(plan, **changes):
    return plan.model_copy(update={"recommended": plan.recommended.model_copy(update=changes)})


@pytest.fixture
def model(tmp_path):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    return variant(tmp_path / "model", Format.ONNX, IMAGE)


def config(folder: Path):
    return YAML(typ="safe").load((folder / bundle.CONFIG).read_text())


@pytest.mark.slow
def test_the_plan_is_in_what_ray_reads(tmp_path, model, plan):
    out, one = tmp_path / "out", plan.recommended
    made = bundled(model, plan, out).bundle
    assert bundle.read(out) == made
    assert made.batched
    assert (made.largest_batch, made.wait_ms) == (one.batch, one.wait_ms)
    assert (made.instances, made.threads, made.cpus) == (one.instances, 1, one.instances)
    assert made.queue_cap == one.queue_cap
    assert made.most_in_flight == one.max_in_flight
    assert made.deadline_ms == 120
    (tensor,) = made.inputs
    assert (tensor.datatype, tensor.shape) == ("FP32", (-1, 3, 4, 4))
    assert (tensor.least, tensor.most) == ((1, 3, 4, 4), (8, 3, 4, 4))
    assert [(each.name, each.shape) for each in made.outputs] == [("logits", (-1, 1))]
    written = config(out)
    assert written["http_options"]["host"] == "127.0.0.1"
    assert written["http_options"]["request_timeout_s"] > made.deadline_ms / 1000
    (replicas,) = written["applications"][0]["deployments"]
    assert replicas["num_replicas"] == one.instances
    assert replicas["user_config"]["max_batch_size"] == one.batch
    assert replicas["user_config"]["batch_wait_timeout_s"] == pytest.approx(one.wait_ms / 1000)
    assert replicas["user_config"]["max_in_flight"] * one.instances >= made.most_in_flight
    assert replicas["user_config"]["deadline_ms"] == made.deadline_ms
    assert replicas["ray_actor_options"]["num_cpus"] == made.threads
    assert replicas["max_queued_requests"] == made.most_in_flight + 100
    assert "HEALTHCHECK" in (out / "Dockerfile").read_text()
    assert "samples.npz" in (out / ".dockerignore").read_text()
    # As many files of Python as a person reads in an hour.
    assert len(list(out.glob("*.py"))) == 6
    for file in ("app.py", "launch.py", "model.py", "Dockerfile", "model/model.onnx"):
        assert (out / file).is_file()
    assert len((out / "app.py").read_text().splitlines()) <= 200
    requirements = (out / "requirements.txt").read_text().split()
    assert any(line.startswith("ray[serve]==") for line in requirements)
    assert any(line.startswith("onnxruntime==") for line in requirements)
    assert not any(line.startswith("torch==") for line in requirements)
    assert all("==" in line and not line.endswith("==") for line in requirements)


@pytest.mark.slow
def test_no_file_of_a_bundle_imports_optcli_and_runtimes_come_alone(tmp_path, model, plan):
    bundled(model, plan, tmp_path / "out")
    texts = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.py")}
    assert not [
        name for name, text in texts.items() if "import optcli" in text or "from optcli" in text
    ]
    assert not [name for name, text in texts.items() if "import torch" in text]
    assert "import onnxruntime" in texts["model.py"]


@pytest.mark.slow
def test_a_fixed_batch_is_computed_alone(tmp_path, plan):
    onnx_model(tmp_path / "model", {"image": [1, 3, 4, 4]})
    built = variant(tmp_path / "model", Format.ONNX, {"name": "image", "shape": (1, 3, 4, 4)})
    single = planned(plan, batch=1, wait_ms=0.0)
    prepared = bundled(built, single, tmp_path / "out")
    assert not prepared.bundle.batched
    assert prepared.bundle.inputs[0].shape == (1, 3, 4, 4)
    assert prepared.bundle.outputs[0].shape == (1, 1)
    interface = looked_at(built, tmp_path / "again")
    assert "does not batch this model" in " ".join(ray_bundle.notes_of(prepared, interface))
    with pytest.raises(UsageError, match="Ray Serve cannot batch this model"):
        bundled(built, plan, tmp_path / "other")


@pytest.mark.slow
def test_static_shapes_are_those_of_the_measurement_as_far_as_they_occur(tmp_path, model, plan):
    static = replace(
        model, effective={**model.effective, "shapes": "static", "compiled_batch_sizes": [1, 3, 8, 16]}
    )
    prepared = bundled(static, plan, tmp_path / "out")
    settings = prepared.bundle.runner.settings
    # Batches of up to 4: nothing was compiled for 2 and 4.
    assert settings["batch_sizes"] == [1, 3, 8]
    assert settings["padded_from"] == {"1": 1, "3": 1, "8": 1}
    assert settings["any_size"] is False
    assert settings["batch_names"] == ["batch"]
    said = " ".join(ray_bundle.notes_of(prepared, looked_at(static, tmp_path / "looked")))
    assert "compiled for batch sizes 1, 3 and 8, as it was measured" in said
    assert "a replica pads batches of 2 to 3 and 4 to 7 to 8" in said


@pytest.mark.parametrize(
    ("forms", "padded_from", "sent"),
    [
        (CompiledForms((1, 8)), {"1": 1, "8": 2}, [1, 8, 8, 8, 8, 8, 8, 8]),
        (
            CompiledForms((1, 8), gains={1: 1.2, 8: 1.25}),
            {"1": 1, "8": 6},
            [1, None, None, None, None, 8, 8, 8],
        ),
        (CompiledForms((1, 8), can_pad=False), {"1": 1, "8": 8}, [1, *[None] * 6, 8]),
    ],
    ids=["padded", "the faster of both", "not padded"],
)
def test_a_bundle_sends_each_batch_where_the_curve_of_the_plan_has_it(forms, padded_from, sent):
    curve = with_forms(Curve.from_points({1: 5.0, 8: 16.0}), forms)
    effective = {"shapes": "static", "compiled_batch_sizes": [1, 8]}
    built = SimpleNamespace(effective=effective)
    found = ray_runtimes.served_forms(built, 8, MeasuredCurve(curve, "a test", forms=forms))
    settings = found.settings()
    assert (settings["batch_sizes"], settings["padded_from"]) == ([1, 8], padded_from)
    assert settings["any_size"] is (None in sent)
    assert [_goes_to(settings, rows) for rows in range(1, 9)] == sent
    # What a batch takes in the bundle is what the plan counts on.
    for rows, form in enumerate(sent, start=1):
        if form is not None:
            assert curve.time_ms(rows) == curve.time_ms(form)
    few = ray_runtimes.served_forms(built, 1, MeasuredCurve(curve, "a test", forms=forms))
    assert (few.sizes, few.any_size) == ((1,), False)


def _goes_to(settings, rows):
    from optcli.serving.deploy.ray_files.forms import Forms as Served

    seen = []

    def make(size):
        def call(feed):
            seen.append(size)
            return {"y": 2 * feed["x"]}

        return call

    settings = json.loads(json.dumps(settings))
    served = Served(make, {"runner": {"settings": settings}, "inputs": [{"name": "x"}]})
    x = np.arange(float(rows))
    assert np.array_equal(served.run({"x": x})["y"], 2 * x)
    (form,) = seen
    return form


@pytest.mark.slow
def test_batches_that_were_measured_in_the_form_for_any_size_go_there(tmp_path, model, plan):
    measured = {"compiled_batch_sizes": [1, 2], "other_batch_sizes": {"4": "the form for any size"}}
    static = replace(model, effective={**model.effective, "shapes": "static", **measured})
    prepared = bundled(static, plan, tmp_path / "out")
    settings = prepared.bundle.runner.settings
    assert (settings["batch_sizes"], settings["any_size"]) == ([1, 2], True)
    said = " ".join(ray_bundle.notes_of(prepared, looked_at(static, tmp_path / "looked")))
    assert "batch sizes 1 and 2, as it was measured; other batches go to a form for any size" in said


def test_a_batch_above_all_forms_goes_to_the_form_for_any_or_is_refused():
    from optcli.serving.deploy.ray_files.forms import Forms

    calls = []

    def make(size):
        def call(feed):
            calls.append((size, len(feed["x"])))
            return {"y": 2 * feed["x"]}

        return call

    rows = np.arange(5.0)
    for any_size in (True, False):
        settings = {"batch_sizes": [1, 4], "padded_from": {"4": 3}, "any_size": any_size}
        forms = Forms(make, {"runner": {"settings": settings}, "inputs": [{"name": "x"}]})
        for count in (1, 2, 3, 4, 5) if any_size else (1, 2, 3, 4):
            found = forms.run({"x": rows[:count]})
            assert np.array_equal(found["y"], 2 * rows[:count])
    assert calls[:5] == [(1, 1), (None, 2), (4, 4), (4, 4), (None, 5)]
    assert calls[5:] == [(1, 1), (4, 4), (4, 4), (4, 4)]
    with pytest.raises(ValueError, match="batches of at most 4 rows"):
        forms.run({"x": rows})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "others"), [([], {}), ([1, 2, 4], {}), ([1, 2], {"4": "the form for any size"})]
)
@pytest.mark.parametrize("runner", ["onnxruntime", "openvino"])
def test_the_copied_runtimes_compute_what_the_runner_does(
    tmp_path, model, plan, monkeypatch, runner, sizes, others
):
    built = variant(tmp_path / "model", Format.ONNX, IMAGE, runner={"name": runner})
    built = replace(
        built,
        effective={
            **built.effective,
            "shapes": "static" if sizes else "dynamic",
            "compiled_batch_sizes": sizes,
            "other_batch_sizes": others,
        },
    )
    _computes_the_same(built, bundled(built, plan, tmp_path / "out").bundle, tmp_path, monkeypatch)


@pytest.mark.slow
def test_torchscript_is_called_by_the_names_of_its_inputs(tmp_path, plan, monkeypatch):
    import torch

    class Two(torch.nn.Module):
        def forward(self, scale, image):
            flat = image.flatten(1)
            return {"flat": flat * scale, "sums": flat.sum(1, keepdim=True)}

    folder = tmp_path / "model"
    folder.mkdir()
    example = (torch.ones(2, 1), torch.ones(2, 3, 4, 4))
    torch.jit.save(torch.jit.trace(Two(), example, strict=False), folder / "model.pt")
    scale = {"name": "scale", "shape": ("batch", 1), "batch": {"max": 8}}
    built = variant(folder, Format.TORCHSCRIPT, IMAGE, scale, outputs=["flat", "sums"])
    made = bundled(built, plan, tmp_path / "out").bundle
    assert (made.runner.settings["positional"], made.file) == (["scale", "image"], "model.pt")
    assert [each.name for each in made.outputs] == ["flat", "sums"]
    lines = (tmp_path / "out" / "requirements.txt").read_text().splitlines()
    assert lines[0] == "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert any(line.startswith("torch==") and "+" not in line for line in lines)
    _computes_the_same(built, made, tmp_path, monkeypatch)


def _computes_the_same(built, made, tmp_path, monkeypatch, rows=(1, 2, 3, 4)):
    """Compare the bundle's own model.py with the variant's runner, at several batch sizes."""
    names = ("model", "forms", "torch_calls", "memory")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    import model as copied

    opened = copied.Model(tmp_path / "out" / "model", json.loads(made.to_json()))
    rng = np.random.default_rng(0)
    with built.runner.open(built.artifact, built.inputs) as runner:
        for count in rows:
            feed = {
                spec.name: rng.standard_normal(spec.concrete(count)).astype(spec.dtype)
                for spec in built.inputs
            }
            for array in feed.values():
                array.setflags(write=False)  # as they come from another process
            found, wanted = opened.run(feed), runner.run(feed)
            assert list(found) == list(wanted)
            for name in wanted:
                np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    ("format", "hint"),
    [
        (Format.TORCH, "export_onnx, torchscript or aot_inductor"),
        (Format.EXPORTED, "aot_inductor or export_onnx"),
        (Format.TENSORRT, "--target triton"),
    ],
)
def test_formats_that_cannot_run_alone_name_the_pass_to_add(tmp_path, format, hint):
    with pytest.raises(InputError, match="a bundle cannot run the format") as caught:
        ray_runtimes.runtime_of(variant(tmp_path, format, IMAGE))
    assert hint in caught.value.hint


def test_a_variant_of_a_gpu_is_refused(tmp_path):
    built = variant(tmp_path, Format.ONNX, IMAGE, runner={"provider": "cuda"})
    with pytest.raises(InputError, match="another device") as caught:
        ray_runtimes.runtime_of(built)
    assert "--target triton" in caught.value.hint


@pytest.mark.slow
def test_a_wait_below_the_least_of_sealed_batches_is_refused_unless_forced(plan):
    one = plan.recommended.model_copy(update={"least_wait_ms": 30.0, "wait_ms": 40.0, "batch": 16})
    assert ray_config.wait_of(one, None, force=False) == (40.0, "")
    assert ray_config.wait_of(one, 30.0, force=False) == (30.0, "")
    with pytest.raises(UsageError, match=r"a wait of 20 ms is too short.*below 30 ms") as caught:
        ray_config.wait_of(one, 20.0, force=False)
    assert caught.value.place == "--wait"
    wait, note = ray_config.wait_of(one, 20.0, force=True)
    assert wait == 20.0
    assert "so that requests queue" in note
    below = one.model_copy(update={"wait_ms": 10.0})
    with pytest.raises(UsageError, match="a wait of 10 ms is too short"):
        ray_config.wait_of(below, None, force=False)
    assert ray_config.wait_of(below.model_copy(update={"batch": 1}), None, force=False) == (10.0, "")


@pytest.mark.slow
def test_a_plan_for_another_server_is_made_again_with_all_that_it_asked_for(tmp_path):
    asked = {"curve": "6ms+1ms*b", "rate_per_s": 60, "slo": {"p95_ms": 90}, "instances": 2}
    triton = optcli.plan(**asked)
    given = ("small", Report.model_construct(), tmp_path / "report.json", Silent())
    assert plans.for_target(triton, "triton", *given) == (triton, "")
    assert plans.for_target(triton, "kserve", *given) == (triton, "")
    made, said = plans.for_target(triton, "ray", *given)
    assert made == optcli.plan(**asked, target="ray")
    assert (triton.recommended.semantics, made.recommended.semantics) == ("oldest-age", "sealed")
    assert said == "the plan was for Triton, and was made again for Ray Serve"
    alone, _ = plans.for_target(triton, "ovms", *given)
    assert alone.recommended.batch == 1


@pytest.mark.slow
def test_one_batch_gathers_while_another_computes(tmp_path, model, plan):
    # A cap of one batch alone would leave a replica without work between two batches.
    for cap, instances, most in ((4, 1, 8), (0, 1, 8), (40, 1, 44), (40, 2, 24)):
        inside = cap + 4 * instances
        narrow = planned(plan, queue_cap=cap, max_in_flight=inside, instances=instances)
        out = tmp_path / f"out{cap}{instances}"
        prepared = bundled(model, narrow, out)
        (replica,) = config(out)["applications"][0]["deployments"]
        assert replica["user_config"]["max_in_flight"] == most
        # Those that are refused are read as well, or they would wait for an answer.
        assert replica["max_ongoing_requests"] >= 2 * most
        assert prepared.bundle.most_in_flight == inside


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no bundle.json"),
        ("{", "this is no bundle"),
        ('{"schema": 1}', "this is no bundle: model"),
    ],
)
def test_a_folder_that_is_no_bundle(tmp_path, content, message):
    if content is not None:
        (tmp_path / bundle.FILE).write_text(content)
    with pytest.raises((UsageError, InputError), match=message) as caught:
        bundle.read(tmp_path)
    assert caught.value.hint


@pytest.mark.slow
def test_a_bundle_of_a_later_optcli_is_refused(tmp_path, model, plan):
    bundled(model, plan, tmp_path / "out")
    path = tmp_path / "out" / bundle.FILE
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(InputError, match="schema 2, wanted 1"):
        bundle.read(tmp_path / "out")
