"""Model repositories for Triton: small real models, their interface, and config.pbtxt of each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_variants import IMAGE, onnx_model, variant

import optcli
from optcli.artifact import Format
from optcli.errors import InputError, UnfitError, UsageError
from optcli.models.engines import sidecar
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.plan import Plan
from optcli.runners import DEFAULTS, find
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving.deploy import instructions, model_configuration, plans, repository
from optcli.serving.deploy.backends import backend_of
from optcli.serving.deploy.interface import REQUEST, RESPONSE, Interface, LookRequest, look

pytestmark = pytest.mark.usefixtures("hurried_plans")


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Batches of several requests, on one machine."""
    made = optcli.plan(
        curve="6ms+1ms*b", rate_per_s=700, slo={"p95_ms": 60}, batch=8, instances_per_machine=4
    )
    assert made.recommended is not None
    assert made.recommended.wait_ms > 0
    return made


def planned(plan: Plan, **changes: object) -> Plan:
    assert plan.recommended is not None
    return plan.model_copy(update={"recommended": plan.recommended.model_copy(update=changes)})


def looked_at(built: BuiltVariant, out: Path) -> Interface:
    out.mkdir(exist_ok=True)
    request = LookRequest(
        "small", built.artifact, built.runner_name, built.options, built.inputs, out, seed=3
    )
    return look(request, None)  # type: ignore[arg-type]


def written(built: BuiltVariant, plan: Plan, out: Path):
    """The configuration as Triton would read it, and the notes; also checks the golden files."""
    interface = looked_at(built, out)
    backend = repository.backend_for(built)
    assert plan.recommended is not None
    served = repository.served_of("small", built, interface, plan.recommended, backend)
    repository.write(out, built, served, plan)
    config = model_configuration.read(out / "small" / "config.pbtxt")
    assert (out / "small" / "1" / config.default_model_filename).is_file()
    notes = repository.notes_of(built, served, plan.recommended, backend)
    notes = " / ".join(notes)
    return config, notes


def tensors(declared) -> dict[str, tuple[str, list[int]]]:
    kinds = model_configuration.messages().DataType
    return {each.name: (kinds.Name(each.data_type), list(each.dims)) for each in declared}


@pytest.mark.slow
def test_a_batch_that_varies_is_left_out_of_the_sizes_and_batched_as_the_plan_says(tmp_path, plan):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    config, _ = written(variant(tmp_path / "model", Format.ONNX, IMAGE), plan, tmp_path / "out")
    one = plan.recommended
    assert one is not None
    assert (config.name, config.platform, config.backend) == ("small", "onnxruntime_onnx", "")
    assert config.max_batch_size == one.batch == 8
    assert tensors(config.input) == {"image": ("TYPE_FP32", [3, 4, 4])}
    assert tensors(config.output) == {"logits": ("TYPE_FP32", [1])}
    assert config.dynamic_batching.max_queue_delay_microseconds == round(1000 * one.wait_ms)
    assert not config.dynamic_batching.preferred_batch_size
    queue = config.dynamic_batching.default_queue_policy
    assert queue.max_queue_size == one.queue_cap
    assert queue.default_timeout_microseconds == round(1000 * one.timeout_ms)
    assert queue.timeout_action == model_configuration.messages().ModelQueuePolicy.REJECT
    assert [warm.batch_size for warm in config.model_warmup] == [1, 2, 4, 8]
    assert list(config.model_warmup[0].inputs["image"].dims) == [3, 4, 4]
    assert config.parameters["intra_op_thread_count"].string_value == "1"
    (group,) = config.instance_group
    assert group.count == one.instances
    assert group.kind == model_configuration.messages().ModelInstanceGroup.KIND_CPU


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "longest"), [(41, 20), (1, 1)])  # 0 would be no limit in Triton
def test_several_machines_share_instances_and_queue(tmp_path, plan, whole, longest):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    shared = planned(plan, instances=5, machines=2, concurrency=2, queue_cap=whole)
    config, notes = written(variant(tmp_path / "model", Format.ONNX, IMAGE), shared, tmp_path / "out")
    assert config.instance_group[0].count == 6
    assert config.dynamic_batching.default_queue_policy.max_queue_size == longest
    assert "the plan has 2 machines" in notes


@pytest.mark.slow
def test_a_fixed_batch_is_part_of_the_sizes_and_is_not_batched(tmp_path, plan):
    onnx_model(tmp_path / "model", {"image": [1, 3, 4, 4]})
    spec = {"name": "image", "shape": (1, 3, 4, 4)}
    built = variant(tmp_path / "model", Format.ONNX, spec)
    single = planned(plan, batch=1, wait_ms=0.0)
    config, notes = written(built, single, tmp_path / "out")
    assert config.max_batch_size == 0
    assert tensors(config.input) == {"image": ("TYPE_FP32", [1, 3, 4, 4])}
    assert tensors(config.output) == {"logits": ("TYPE_FP32", [1, 1])}
    assert config.dynamic_batching.max_queue_delay_microseconds == 0
    assert [warm.batch_size for warm in config.model_warmup] == [1]
    assert list(config.model_warmup[0].inputs["image"].dims) == [1, 3, 4, 4]
    assert "Triton does not batch this model: the first size of image is fixed" in notes
    with pytest.raises(UsageError, match="Triton cannot batch this model") as caught:
        written(built, plan, tmp_path / "other")
    assert "--batch 1" in caught.value.hint


@pytest.mark.slow
def test_two_inputs_of_other_types_and_names(tmp_path, plan):
    sizes = {"left.0": ["batch", 3, "width"], "right:1": ["batch", 5]}
    onnx_model(tmp_path / "model", sizes, output="the answer")
    left = {"name": "left.0", "shape": ("batch", 3, "width"), "batch": {"max": 8}}
    left["width"] = {"min": 2, "opt": 4, "max": 8}
    right = {"name": "right:1", "shape": ("batch", 5), "batch": {"max": 8}}
    built = variant(tmp_path / "model", Format.ONNX, left, right)
    config, _ = written(built, plan, tmp_path / "out")
    assert tensors(config.input) == {
        "left.0": ("TYPE_FP32", [3, -1]),
        "right:1": ("TYPE_FP32", [5]),
    }
    assert list(tensors(config.output)) == ["the answer"]
    assert list(config.model_warmup[0].inputs["left.0"].dims) == [3, 4]


@pytest.mark.slow
def test_an_input_without_a_batch_leaves_the_whole_model_without(tmp_path, plan):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4], "offset": [1, 1]})
    built = variant(tmp_path / "model", Format.ONNX, IMAGE, {"name": "offset", "shape": (1, 1)})
    single = planned(plan, batch=1, wait_ms=0.0)
    config, notes = written(built, single, tmp_path / "out")
    assert config.max_batch_size == 0
    assert tensors(config.input) == {
        "image": ("TYPE_FP32", [-1, 3, 4, 4]),
        "offset": ("TYPE_FP32", [1, 1]),
    }
    assert list(config.model_warmup[0].inputs["image"].dims) == [1, 3, 4, 4]
    assert "the first size of offset is fixed" in notes


@pytest.mark.slow
def test_what_was_measured_with_static_shapes_is_said(tmp_path, plan):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    built = variant(tmp_path / "model", Format.ONNX, IMAGE)
    _, notes = written(built, plan, tmp_path / "out")
    assert "static shapes" not in notes
    static = replace(built, effective={**built.effective, "shapes": "static"})
    _, notes = written(static, plan, tmp_path / "other")
    assert "measured with static shapes" in notes


@pytest.mark.slow
def test_integers_are_warmed_up_with_zeros(tmp_path, plan):
    onnx_model(tmp_path / "model", {"ids": ["batch", 6]}, dtype="INT64")
    spec = {"name": "ids", "dtype": "int64", "shape": ("batch", 6), "batch": {"max": 8}}
    config, _ = written(variant(tmp_path / "model", Format.ONNX, spec), plan, tmp_path / "out")
    assert tensors(config.input) == {"ids": ("TYPE_INT64", [6])}
    assert config.model_warmup[0].inputs["ids"].zero_data


@pytest.mark.slow
def test_openvino_runs_the_largest_batch_alone(tmp_path, plan):
    import openvino

    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    ir = tmp_path / "ir"
    ir.mkdir()
    openvino.save_model(openvino.convert_model(tmp_path / "model" / "model.onnx"), ir / "model.xml")
    built = variant(ir, Format.OPENVINO, IMAGE, runner={"streams": 2, "hint": "throughput"})
    config, notes = written(built, plan, tmp_path / "out")
    assert (config.backend, config.platform) == ("openvino", "")
    said = {name: value.string_value for name, value in config.parameters.items()}
    assert said == {
        "ENABLE_BATCH_PADDING": "YES",
        "INFERENCE_NUM_THREADS": "1",
        "NUM_STREAMS": "2",
        "PERFORMANCE_HINT": "THROUGHPUT",
    }
    assert [warm.batch_size for warm in config.model_warmup] == [8]
    assert "fills every call up to 8 rows" in notes
    assert "cannot be told to compute in f32" in notes
    assert (tmp_path / "out" / "small" / "1" / "model.bin").is_file()


@pytest.mark.slow
def test_torchscript_goes_to_libtorch(tmp_path, plan):
    import torch

    class Two(torch.nn.Module):
        def forward(self, image, scale):
            flat = image.flatten(1)
            return flat * scale, flat.sum(1, keepdim=True).long()

    folder = tmp_path / "model"
    folder.mkdir()
    example = (torch.ones(2, 3, 4, 4), torch.ones(2, 1))
    torch.jit.save(torch.jit.trace(Two(), example), folder / "model.pt")
    scale = {"name": "scale", "shape": ("batch", 1), "batch": {"max": 8}}
    built = variant(folder, Format.TORCHSCRIPT, IMAGE, scale, outputs=["scaled", "sums"])
    config, _ = written(built, plan, tmp_path / "out")
    assert config.platform == "pytorch_libtorch"
    assert [each.name for each in config.input] == ["image", "scale"]
    assert tensors(config.output) == {"scaled": ("TYPE_FP32", [48]), "sums": ("TYPE_INT64", [1])}
    assert config.parameters["INTRA_OP_THREAD_COUNT"].string_value == "1"


@pytest.mark.slow
def test_torchscript_that_gives_a_dictionary_is_refused(tmp_path, plan):
    import torch

    class Named(torch.nn.Module):
        def forward(self, image):
            return {"logits": image.flatten(1)}

    folder = tmp_path / "model"
    folder.mkdir()
    traced = torch.jit.trace(Named(), torch.ones(2, 3, 4, 4), strict=False)
    torch.jit.save(traced, folder / "model.pt")
    with pytest.raises(InputError, match="Triton takes tensors or a tuple of them"):
        looked_at(variant(folder, Format.TORCHSCRIPT, IMAGE), tmp_path / "out")


def engine(folder: Path, **changes: object) -> None:
    """A folder as the pass tensorrt_engine leaves it, with a plan that nothing opens."""
    plan = b"a plan"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / sidecar.PLAN).write_bytes(plan)
    record = {
        "product": "tensorrt",
        "version": "10.9.0",
        "plan_sha256": hashlib.sha256(plan).hexdigest(),
        "plan_bytes": len(plan),
        "onnx_sha256": "",
        "precision": "fp16",
        "inputs": ({"name": "image", "dtype": "fp32", "shape": [-1, 3, 4, 4]},),
        "outputs": ({"name": "logits", "dtype": "fp16", "shape": [-1, 2]},),
    }
    sidecar.write(folder, sidecar.Sidecar(**(record | changes)))


@pytest.mark.slow
def test_an_engine_is_deployed_where_it_cannot_run_without_a_golden_request(tmp_path, plan):
    engine(tmp_path / "engine")
    built = variant(tmp_path / "engine", Format.TENSORRT, IMAGE, precision="fp16")
    request = LookRequest("small", built.artifact, "tensorrt", {}, built.inputs, tmp_path, runs=False)
    interface = look(request, None)
    assert interface.outputs == (Tensor(name="logits", dtype="float16", shape=(None, 2)),)
    assert interface.golden is None
    assert interface.follows_batch is None
    backend = repository.backend_for(built)
    served = repository.served_of("small", built, interface, plan.recommended, backend)
    repository.write(tmp_path / "out", built, served, plan)
    config = model_configuration.read(tmp_path / "out" / "small" / "config.pbtxt")
    assert tensors(config.input) == {"image": ("TYPE_FP32", [3, 4, 4])}
    assert tensors(config.output) == {"logits": ("TYPE_FP16", [2])}
    assert (tmp_path / "out" / "small" / "1" / "model.plan").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "takes"), [((1, 8), None), ((1, 4), "takes 1 to 4"), ((2, 8), "takes at least 2 rows")]
)
def test_batches_lie_in_the_profile_that_triton_takes(tmp_path, plan, batch, takes):
    assert plan.recommended.batch == 8  # as the recipe's inputs allow
    first, other = (
        {"image": {"min": [least, 3, 4, 4], "opt": [most, 3, 4, 4], "max": [most, 3, 4, 4]}}
        for least, most in (batch, (1, 16))
    )
    engine(tmp_path / "engine", profiles=(first, other))
    built = variant(tmp_path / "engine", Format.TENSORRT, IMAGE, precision="fp16")
    request = LookRequest("small", built.artifact, "tensorrt", {}, built.inputs, tmp_path, runs=False)
    interface = look(request, None)
    assert interface.rows == batch
    backend = repository.backend_for(built)

    def served():
        return repository.served_of("small", built, interface, plan.recommended, backend)

    if takes is None:
        assert served().batching.largest == 8
    else:
        with pytest.raises(UsageError, match=f"the engine's profile {takes}") as caught:
            served()
        assert "`profiles` of tensorrt_engine" in caught.value.hint


@pytest.mark.slow
def test_an_engine_without_its_weights_is_refused(tmp_path):
    engine(tmp_path / "engine", stripped=True)
    built = variant(tmp_path / "engine", Format.TENSORRT, IMAGE)
    request = LookRequest("small", built.artifact, "tensorrt", {}, built.inputs, tmp_path, runs=False)
    with pytest.raises(InputError, match="holds no weights"):
        look(request, None)


@pytest.mark.slow
def test_an_engine_of_tensorrt_is_served_on_the_first_gpu(plan):
    built = variant(Path("engine"), Format.TENSORRT, IMAGE, precision="fp16")
    sizes = (Tensor(name="image", dtype="float32", shape=(None, 3, 4, 4)),)
    outputs = (Tensor(name="logits", dtype="float16", shape=(None, 2)),)
    backend = repository.backend_for(built)
    served = repository.served_of("small", built, Interface(sizes, outputs), plan.recommended, backend)
    config = model_configuration.message(served)
    assert config.platform == "tensorrt_plan"
    assert list(config.instance_group[0].gpus) == [0]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 8]
    assert tensors(config.output) == {"logits": ("TYPE_FP16", [2])}
    assert not config.parameters
    assert "the same version" in backend.notes[0]
    steps, known = instructions.for_triton(served), instructions.of_triton("tensorrt 10")
    text = instructions.text("small", served.interface, "", steps, known)
    assert "--gpus 1" in text
    assert "There is no golden request: the model could not be run" in text


@pytest.mark.parametrize(
    ("options", "device", "accelerator"),
    [
        ({"provider": "cpu", "optimization_level": "extended"}, "KIND_CPU", None),
        ({"provider": "cuda", "tf32": True}, "KIND_GPU", "cuda"),
        ({"provider": "tensorrt"}, "KIND_GPU", "tensorrt"),
        ({"provider": "openvino"}, "KIND_CPU", "openvino"),
    ],
)
def test_options_of_onnxruntime_are_said_as_triton_says_them(plan, options, device, accelerator):
    built = variant(Path("model"), Format.ONNX, IMAGE, runner=options)
    backend = repository.backend_for(built)
    shapes = (Tensor(name="image", dtype="float32", shape=("batch", 3, 4, 4)),)
    served = repository.served_of("small", built, Interface(shapes, shapes), plan.recommended, backend)
    config = model_configuration.message(served)
    kinds = model_configuration.messages().ModelInstanceGroup
    assert config.instance_group[0].kind == getattr(kinds, device)
    accelerators = config.optimization.execution_accelerators
    every = [*accelerators.cpu_execution_accelerator, *accelerators.gpu_execution_accelerator]
    assert [each.name for each in every] == ([accelerator] if accelerator else [])
    assert config.optimization.graph.level == (1 if "optimization_level" in options else 0)


@pytest.mark.parametrize("format", [Format.TORCH, Format.EXPORTED, Format.AOTI, Format.ORT])
def test_formats_that_triton_does_not_serve_say_which_to_take(format):
    name = DEFAULTS[format]
    with pytest.raises(InputError, match="Triton has no backend") as caught:
        backend_of(format, name, find(name)(), {}, "place")
    assert "deploy" in caught.value.hint


@pytest.mark.slow
def test_a_file_that_is_not_what_the_recipe_says_is_found(tmp_path, plan):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    interface = looked_at(variant(tmp_path / "model", Format.ONNX, IMAGE), tmp_path / "out")
    onnx_model(tmp_path / "model", {"picture": ["batch", 3, 4, 4]})
    other = variant(tmp_path / "model", Format.ONNX, {**IMAGE, "name": "picture"})
    for changed in (
        other,
        variant(tmp_path / "model", Format.ONNX, {**IMAGE, "shape": ("batch", 3, 5, 4)}),
    ):
        backend = repository.backend_for(changed)
        served = repository.served_of("small", changed, interface, plan.recommended, backend)
        config = model_configuration.message(served)
        with pytest.raises(InputError, match=r"config.pbtxt does not fit the model: input"):
            model_configuration.require_match(config, interface, "model")


def test_one_value_a_row_is_a_row_of_one_and_a_scalar_alone_is_refused(tmp_path, plan):
    shapes = (Tensor(name="image", dtype="float32", shape=("batch", 3, 4, 4)),)
    label = Tensor(name="label", dtype="int64", shape=("batch",))
    built = variant(Path("model"), Format.ONNX, IMAGE)
    backend = repository.backend_for(built)
    interface = Interface(shapes, (label,), (label.model_copy(update={"shape": (1,)}),))
    served = repository.served_of("small", built, interface, plan.recommended, backend)
    model_configuration.write(model_configuration.message(served), tmp_path / "config.pbtxt", ())
    config = model_configuration.read(tmp_path / "config.pbtxt")
    assert tensors(config.output) == {"label": ("TYPE_INT64", [1])}
    assert config.output[0].HasField("reshape")
    assert list(config.output[0].reshape.shape) == []
    model_configuration.require_match(config, interface, "model")
    scalar = replace(interface, outputs=(label.model_copy(update={"shape": ()}),), computed=())
    alone = replace(served, interface=scalar, batching=model_configuration.ModelBatching(0))
    with pytest.raises(InputError, match="is a scalar"):
        model_configuration.message(alone)


def test_every_difference_from_the_model_is_named(plan):
    shapes = (Tensor(name="image", dtype="float32", shape=("batch", 3, 4, 4)),)
    built = variant(Path("model"), Format.ONNX, IMAGE)
    backend = repository.backend_for(built)
    interface = Interface(shapes, (Tensor(name="logits", dtype="float32", shape=("batch", 2)),))
    served = repository.served_of("small", built, interface, plan.recommended, backend)
    config = model_configuration.message(served)
    model_configuration.require_match(config, interface, "model")
    changes = {
        "type": ("TYPE_FP32, and the model has int8", {"dtype": "int8"}),
        "size": ("sizes [2], and the model has [3]", {"shape": ("batch", 3)}),
        "rank": ("sizes [2], and the model has [2, 1]", {"shape": ("batch", 2, 1)}),
        "fixed": ("has the fixed shape [4, 2]", {"shape": (4, 2)}),
        "name": ("outputs are logits, and the model has scores", {"name": "scores"}),
    }
    for wanted, change in changes.values():
        outputs = (interface.outputs[0].model_copy(update=change),)
        with pytest.raises(InputError) as caught:
            model_configuration.require_match(config, Interface(shapes, outputs), "model")
        assert wanted in caught.value.message
    ran = Interface(shapes, interface.outputs, (Tensor(name="logits", dtype="float32", shape=(1, 9)),))
    with pytest.raises(InputError, match="computed output logits"):
        model_configuration.require_match(config, ran, "model")


def test_a_batch_beyond_the_models_range_is_refused(plan):
    shapes = (Tensor(name="image", dtype="float32", shape=("batch", 3, 4, 4)),)
    for span, message in (({"max": 4}, "takes 1 to 4"), ({"min": 2, "max": 8}, "at least 2 rows")):
        built = variant(Path("model"), Format.ONNX, {**IMAGE, "batch": span})
        backend = repository.backend_for(built)
        with pytest.raises(UsageError, match=message):
            repository.served_of("small", built, Interface(shapes, shapes), plan.recommended, backend)
    uneven = Interface(shapes, shapes, follows_batch=False)
    built = variant(Path("model"), Format.ONNX, IMAGE)
    with pytest.raises(UsageError, match="different numbers of rows"):
        repository.served_of("small", built, uneven, plan.recommended, repository.backend_for(built))


@pytest.mark.slow
def test_golden_files_are_what_the_runner_gives(tmp_path):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    interface = looked_at(variant(tmp_path / "model", Format.ONNX, IMAGE), tmp_path / "out")
    assert interface.golden == "random values of seed 3"
    assert interface.follows_batch
    request = json.loads((tmp_path / "out" / REQUEST).read_text())
    response = json.loads((tmp_path / "out" / RESPONSE).read_text())
    (given,), (answer,) = request["inputs"], response["outputs"]
    assert (given["name"], given["datatype"], given["shape"]) == ("image", "FP32", [1, 3, 4, 4])
    assert request["outputs"] == [{"name": "logits"}]
    assert response["model_name"] == "small"
    # The network adds up its input: what it gives can be said without it.
    assert answer["data"] == pytest.approx([sum(given["data"])], rel=1e-4)


def test_golden_files_hold_finite_values_alone(tmp_path):
    from optcli.serving.deploy.interface import write_golden

    with pytest.raises(InputError, match="infinite or NaN"):
        write_golden(tmp_path, "small", {"x": np.ones(1)}, {"y": np.array([np.nan])})
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_decides_nothing_is_refused(plan):
    assert plans.require_usable(plan, "plan.json", force=False) is plan.recommended
    unfit = plan.model_copy(update={"outcome": "inconclusive"})
    with pytest.raises(UnfitError, match="busy machine"):
        plans.require_usable(unfit, "plan.json", force=False)
    assert plans.require_usable(unfit, "plan.json", force=True)
    none = plan.model_copy(update={"recommended": None, "outcome": "not-kept"})
    with pytest.raises(UsageError, match="no configuration to deploy"):
        plans.require_usable(none, "plan.json", force=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no plan"),
        ('{"name": "x"}', "this is no plan: outcome: Field required"),
        (None, "there is no such file"),
    ],
)
def test_what_is_no_plan_is_said(tmp_path, text, message):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises((InputError, UsageError), match=message) as caught:
        plans.read(path)
    assert "optcli plan" in caught.value.hint


def test_a_plan_of_a_newer_form_is_refused(tmp_path, plan):
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert plans.read(path) == plan
    path.write_text(plan.model_copy(update={"schema_version": 99}).to_json())
    with pytest.raises(InputError, match="schema 99, wanted 2"):
        plans.read(path)
