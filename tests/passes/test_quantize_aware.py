"""Quantization-aware training: better than calibration alone, and still computed on integers."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_networks import (
    INPUTS,
    Heard,
    Noise,
    apply,
    artifact,
    feed,
    reference,
    sqnr_db,
    torch_artifact,
)  # fmt: skip

from optcli import environment
from optcli.artifact import EXPECTED, Artifact, Format
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import torch as torch_format
from optcli.models.sources.python import PythonSource
from optcli.passes import quantize_aware
from optcli.passes._torch.checkpoint import CHECKPOINT
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.finetune import Finetune
from optcli.passes.quantize_aware import QuantizeAware
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.sample import Sample
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

CODE = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Residual(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
            self.stem_norm = nn.BatchNorm2d(width, eps=1e-3)
            self.left = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.left_norm = nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)
            self.right = nn.Conv2d(width, width, 3, padding=1, groups=width)
            self.right_norm = nn.BatchNorm2d(width, eps=1e-3)
            self.drop = nn.Dropout(0.1)
            self.head = nn.Linear(width, 4)

        def forward(self, image):
            x = F.relu(self.stem_norm(self.stem(image)))
            y = F.relu(self.left_norm(self.left(x)))
            x = F.relu(self.right_norm(self.right(y)) + x)
            return {"scores": self.head(self.drop(x.mean((2, 3))))}

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, stride=4)
            layer = nn.TransformerEncoderLayer(
                16, 2, 32, batch_first=True, dropout=0.0, activation="gelu"
            )
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(16, 4)

        def forward(self, image):
            tokens = self.patches(image).flatten(2).transpose(1, 2)
            return self.head(self.encoder(tokens).mean(1))

    class half(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Sequential(nn.Flatten(), nn.Linear(768, 4)).half()

        def forward(self, image):
            return self.scores(image.half())

    class Preactivated(Residual):
        def __init__(self, width=16):
            super().__init__()
            self.stem, self.left = (nn.Conv2d(n, width, 3, padding=1) for n in (3, width))

        def forward(self, image):
            x = self.stem(image)
            y = self.left(F.relu(self.stem_norm(x))) + x
            return {"scores": self.head(F.relu(self.left_norm(y)).mean((2, 3)))}

    class Branching(Residual):
        def forward(self, image):
            return super().forward(image if image.mean().item() > 0 else -image)
    """
IMAGE = (TensorSpec(name="image", shape=["batch", 3, 16, 16], ranges={"batch": {"max": 64}}),)


@dataclass
class Stripes:
    """Noisy stripes in colour, horizontal or vertical, thin or thick: four classes."""

    count: int = 256
    seed: int = 0
    labelled: bool = True
    brightness: float = 1.0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        generator = np.random.default_rng([self.seed, index])
        label = index % 4
        wave = np.sin(np.arange(16) * (np.pi / (2 if label < 2 else 4)) + generator.uniform(0, 6))
        image = np.broadcast_to(wave, (3, 16, 16))
        image = image.transpose(0, 2, 1) if label % 2 else image
        image = self.brightness * (image + 0.5 * generator.standard_normal((3, 16, 16)))
        target = label if self.labelled else None
        return Sample(f"{index}", {"image": image.astype(np.float32)}, target)


DATA = {"training": Stripes(), "validation": Stripes(128, 1), "calibration": Stripes(64, 2)}
# Calibrated in the dark: every range is too small, and bright images are clipped.
DARK = {**DATA, "calibration": Stripes(16, 2, brightness=0.03)}


@pytest.fixture(autouse=True)
def one_thread():
    """So small a network gains nothing from a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(folder: Path, name: str) -> Artifact:
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "nets.py").write_text(dedent(CODE))
    out = folder / name
    out.mkdir()
    torch.manual_seed(0)
    outputs = PythonSource(target=f"nets.py:{name}", folder=code).write(out, IMAGE).outputs
    precision = "fp16" if name == "half" else "fp32"
    return artifact(out, Format.TORCH, outputs=list(outputs), precision=precision)


def trained(folder: Path, name: str) -> Artifact:
    """A network that knows the stripes."""
    options = {"epochs": 6, "batch_size": 16, "learning_rate": 0.01, "distillation_weight": 0}
    made = apply(Finetune(threads=1, **options), written(folder, name), folder / "fp32", IMAGE, **DATA)
    assert made.facts["finetuning"]["validation_accuracy"] > 0.95
    assert made.facts[EXPECTED]["top1"] == made.facts["finetuning"]["validation_accuracy"]
    return made


@pytest.fixture(scope="module")
def residual(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("residual"), "Residual")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("tokens"), "Tokens")


def quantized(source: Artifact, out: Path, data=DATA, observer=None, scratch=None, **options):
    settings = {"epochs": 2, "batch_size": 16, "learning_rate": 0.003, "threads": 1, **options}
    more = {"observer": observer or Heard(), "scratch": scratch, "seed": 3}
    return apply(QuantizeAware(**settings), source, out, IMAGE, **data, **more)


@pytest.fixture(scope="module")
def regained(residual, tmp_path_factory):
    """What four epochs make of a bad calibration, by the format; trained when it is asked for first."""
    folder = tmp_path_factory.mktemp("regained")
    return cache(lambda to: quantized(residual, folder / to, DARK, to=to, epochs=4))


def training_of(made: Artifact) -> dict:
    return made.facts["quantization_aware_training"]


RUNNERS = {"onnx": OnnxruntimeRunner, "openvino": OpenvinoRunner}


def accuracy(made: Artifact, batch_size: int) -> float:
    data, right = DATA["validation"], 0
    with RUNNERS[made.format.value](threads=1).open(made, IMAGE) as model:
        for start in range(0, len(data), batch_size):
            samples = [data[index] for index in range(start, min(start + batch_size, len(data)))]
            images = np.stack([sample.inputs["image"] for sample in samples])
            outputs = model.run({"image": images})
            assert list(outputs) == made.facts["outputs"]
            scores = next(iter(outputs.values()))
            assert len(scores) == len(samples)
            right += sum(scores.argmax(1) == [sample.target for sample in samples])
    return right / len(data)


def array(tensor) -> np.ndarray:
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


def integer_kernels(made: Artifact, folder: Path) -> Counter:
    """The operators that ONNX Runtime computes after it has optimized the graph."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = os.fspath(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(made.path / onnx_format.FILE, options)
    nodes = onnx.load(folder / "optimized.onnx").graph.node
    return Counter(node.op_type for node in nodes if node.op_type.startswith(("QLinear", "MatMulInt")))


@pytest.mark.long
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_it_regains_what_a_bad_calibration_has_cost(regained, to):
    made = regained(to)
    facts = training_of(made)
    assert made.precision == "int8"
    assert made.format.value == to
    assert facts["validation_accuracy_in_fp32"] > 0.95
    assert facts["validation_accuracy_before"] < 0.9
    assert facts["validation_accuracy"] > facts["validation_accuracy_before"] + 0.05
    assert facts["curve"][0]["validation_accuracy"] == facts["validation_accuracy_before"]
    # What was written is what was judged, at any batch size: within a sample or two of 128.
    for batch_size in (1, 5, 64):
        assert accuracy(made, batch_size) == pytest.approx(facts["validation_accuracy"], abs=0.02)


@pytest.mark.long
def test_it_ends_once_it_is_as_good_as_the_network_that_it_got(residual, tmp_path):
    limits = {"epochs": 20, "stop_at_drop": 0.0, "validate_epochs": False}
    facts = training_of(quantized(residual, tmp_path / "made", DARK, **limits))
    stopping = facts["early_stopping"]
    assert facts["stopped_early"]
    assert facts["epochs"] < 20
    assert stopping["teacher"] > 0.95
    assert stopping["looks"][-1]["lost"] <= 0.0
    assert stopping["why"].startswith("it has reached its aim")


@pytest.mark.long
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_a_transformer_too(tokens, tmp_path, to):
    made = quantized(tokens, tmp_path / "made", DARK, to=to)
    facts = training_of(made)
    assert facts["validation_accuracy"] >= facts["validation_accuracy_before"]
    assert facts["validation_accuracy"] > 0.9
    for batch_size in (1, 64):
        assert accuracy(made, batch_size) == pytest.approx(facts["validation_accuracy"], abs=0.02)
    if to == "onnx":
        assert made.facts["model_type"] == "transformer"
        assert made.facts["preset"] == "mixed"
        # Of the linear layers of its block, three have inputs of three dimensions.
        assert integer_kernels(made, tmp_path)["MatMulIntegerToFloat"] >= 3


@pytest.mark.long
def test_onnx_runtime_computes_as_much_on_integers_as_after_calibration_alone(
    residual, regained, tmp_path
):
    floats = apply(ExportOnnx(exporter="dynamo"), residual, tmp_path / "onnx", IMAGE)
    options = {"calibration": DATA["calibration"]}
    calibrated = apply(QuantizeNncf(preset="performance"), floats, tmp_path / "ptq", IMAGE, **options)
    made = regained("onnx")
    kernels = integer_kernels(made, tmp_path)
    assert kernels == integer_kernels(calibrated, tmp_path)
    assert kernels["QLinearConv"] == 3
    assert made.facts["quantized_operators"] == calibrated.facts["quantized_operators"]
    model = onnx_format.open(made.path)
    assert not any(node.op_type == "BatchNormalization" for node in model.graph.node)
    large = [tensor for tensor in model.graph.initializer if np.prod(tensor.dims) > 64]
    assert {tensor.data_type for tensor in large} == {3}  # int8: no weight is kept in floats


@pytest.mark.long
def test_openvino_computes_products_on_integers(regained):
    made = regained("openvino")
    compiled = openvino_format.core().compile_model(openvino_format.open(made.path), "CPU")
    kinds = {}
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        if info["layerType"].astype(str) in ("Convolution", "GroupConvolution"):
            kinds[node.get_friendly_name()] = info["primitiveType"].astype(str)
    assert len(kinds) == 3
    if set(environment.cpu()["flags"]) & {"avx512_vnni", "avx_vnni", "amx_int8"}:
        assert all(kind.upper().endswith("_I8") for kind in kinds.values()), kinds


@pytest.mark.long
def test_normalizations_that_cannot_be_folded(tmp_path):
    """Before an activation, where the convolution goes into a sum as well, and behind that sum."""
    source, observer = written(tmp_path, "Preactivated"), Heard()
    data = {**DATA, "training": Stripes(64), "calibration": Stripes(16, 2)}
    made = quantized(source, tmp_path / "made", data, observer, epochs=1)
    assert any("cannot correct the biases of this network" in text for text in observer.warnings)
    found = training_of(made)["validation_accuracy"]
    assert accuracy(made, 64) == pytest.approx(found, abs=0.02)


@pytest.mark.long
def test_a_network_of_one_fixed_batch_size(tmp_path):
    inputs = (TensorSpec(name="image", shape=[1, 3, 16, 16]),)
    source = written(tmp_path, "Residual")
    data = {role: Stripes(8) for role in DATA}
    options = {"epochs": 1, "batch_size": 4, "threads": 1}
    made = apply(QuantizeAware(**options), source, tmp_path / "made", inputs, **data)
    assert training_of(made)["batch_size"] == 4
    values = feed(inputs, 1)
    wanted = reference(source, inputs, values)["scores"]
    with OnnxruntimeRunner(threads=1).open(made, inputs) as model:
        assert sqnr_db(wanted, model.run(values)["scores"]) > 10


@pytest.mark.long
def test_a_killed_training_goes_on_and_ends_with_the_same_weights(residual, regained, tmp_path):
    class Killed(Heard):
        def progress(self, step, fraction, message):
            if message.startswith("epoch 3 of"):
                raise KeyboardInterrupt

    scratch, options = tmp_path / "scratch", {"epochs": 4}
    whole = regained("onnx")
    with pytest.raises(KeyboardInterrupt):
        quantized(residual, tmp_path / "b", DARK, observer=Killed(), scratch=scratch, **options)
    assert [path.name for path in scratch.iterdir()] == [CHECKPOINT]
    heard = Heard()
    resumed = quantized(residual, tmp_path / "c", DARK, observer=heard, scratch=scratch, **options)
    assert heard.warnings[0] == "resuming after epoch 2 of 4, where it was stopped"
    assert training_of(resumed) == training_of(whole)
    values = DATA["validation"][0].inputs["image"][None]
    answers = []
    for made in (whole, resumed):
        with OnnxruntimeRunner(threads=1).open(made, IMAGE) as model:
            answers.append(model.run({"image": values})["scores"])
    assert np.array_equal(*answers)


@pytest.mark.long
def test_without_labels_it_learns_from_the_network_that_it_got(residual, tmp_path):
    data = {name: replace(each, labelled=False) for name, each in DARK.items()}
    facts = training_of(quantized(residual, tmp_path / "made", data, epochs=4))
    assert facts["distillation_weight"] == 1.0
    assert facts["validation_judged_by"] == "teacher"
    assert facts["validation_accuracy_in_fp32"] == 1.0
    assert facts["validation_accuracy"] > facts["validation_accuracy_before"] + 0.05


@pytest.mark.long
def test_a_training_that_spoils_it_leaves_what_calibration_made(residual, tmp_path):
    @dataclass
    class Misled(Stripes):
        """Every label is another class."""

        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return replace(sample, target=(sample.target + 1) % 4)

    heard, data = Heard(), {**DATA, "training": Misled()}
    options = {"distillation_weight": 0, "epochs": 3, "patience": 1}
    made = quantized(residual, tmp_path / "made", data, observer=heard, **options)
    facts = training_of(made)
    assert facts["best_epoch"] == 0
    assert facts["epochs"] == 1
    assert facts["stopped_early"]
    assert "as calibration left it" in heard.warnings[-1]
    assert accuracy(made, 64) == pytest.approx(facts["validation_accuracy_before"], abs=0.02)


@pytest.mark.long
def test_modules_are_kept_in_floats_by_name_or_pattern(residual, tmp_path):
    made = quantized(residual, tmp_path / "made", epochs=1, ignored_modules=("le*t", "right"))
    counts = made.facts["quantized_operators"]
    assert (counts["Conv"], counts["Gemm"]) == (1, 1)


@pytest.mark.long
def test_zeros_that_were_made_stay(residual, tmp_path):
    model = torch_format.open(residual.path)
    with torch.no_grad():
        model.left.weight[:, ::2] = 0
    out = tmp_path / "thin"
    torch_format.save(model, out, torch_format.read(residual.path), residual.path / torch_format.CODE)
    facts = {**residual.facts, "sparsity": {"layers": {"left.weight": 0.5}}}
    source = replace(residual, path=out, facts=facts)
    made = quantized(source, tmp_path / "made", epochs=1)
    tensors = [array(tensor) for tensor in onnx_format.open(made.path).graph.initializer]
    weights = [each for each in tensors if each.shape == (16, 16, 3, 3)]
    assert [each.dtype for each in weights] == [np.int8]
    assert not weights[0][:, ::2].any()
    assert weights[0][:, 1::2].any()


@pytest.mark.long
def test_several_inputs_and_outputs_without_classes(tmp_path):
    class Unmasked(Noise):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return replace(sample, inputs={**sample.inputs, "mask": np.ones(1, np.float32)})

    inputs = INPUTS["Pair"]
    source = torch_artifact(tmp_path, "Pair")
    options = {"compare": "outputs", "epochs": 1, "batch_size": 4, "threads": 1}
    data = {role: Unmasked(inputs, 8) for role in DATA}
    made = apply(QuantizeAware(**options), source, tmp_path / "made", inputs, **data)
    assert training_of(made)["distillation_weight"] == 1.0
    assert training_of(made)["validation_accuracy"] is None
    with OnnxruntimeRunner(threads=1).open(made, inputs) as model:
        for batch_size in (1, 3):
            values = {**feed(inputs, batch_size, seed=9), "mask": np.ones((batch_size, 1), np.float32)}
            wanted, found = reference(source, inputs, values), model.run(values)
            assert list(found) == list(wanted) == ["map", "sums.0", "sums.1"]
            assert sqnr_db(wanted["map"], found["map"]) > 20


def test_what_cannot_be_trained_says_so_before_it_trains(residual, tmp_path):
    class NeverTrained(Heard):
        def progress(self, step, fraction, message):
            assert not message.startswith("epoch")

    def fails(match, source=residual, data=DATA, **options):
        folder = tmp_path / f"made-{len(list(tmp_path.iterdir()))}"
        with pytest.raises(StepError, match=match) as failure:
            quantized(source, folder, data, observer=NeverTrained(), **options)
        assert failure.value.hint

    fails("no training samples", data={**DATA, "training": Stripes(0)})
    fails("no calibration samples", data={**DATA, "calibration": None})
    fails("have no labels", data={**DATA, "training": Stripes(labelled=False)}, distillation_weight=0.5)
    fails("the model is fp16, wanted fp32", source=written(tmp_path / "half", "half"))
    fails("the model is int8", source=replace(residual, precision="int8"))
    fails("fits no module", ignored_modules=("lefft",))
    fails("cannot follow the network at line", source=written(tmp_path / "branch", "Branching"))


@pytest.mark.long
def test_an_export_that_computes_something_else_is_refused(regained):
    made = regained("onnx")
    images = np.stack([DATA["validation"][index].inputs["image"] for index in range(4)])
    with OnnxruntimeRunner(threads=1).open(made, IMAGE) as model:
        right = model.run({"image": images})
    assert quantize_aware.require_agreement(Format.ONNX, made.path, {"image": images}, right) == 0
    for wrong, match in ((right["scores"] * 2, "differs by 0.5"), (right["scores"][:2], "shape")):
        with pytest.raises(StepError, match=match):
            quantize_aware.require_agreement(
                Format.ONNX, made.path, {"image": images}, {"scores": wrong}
            )


def test_of_many_outputs_a_few_may_differ_much(monkeypatch, tmp_path):
    """Two INT8 executions of YOLOX-nano: 0.7 of the largest value in the worst of 300,000 places."""
    right = np.random.default_rng(0).standard_normal((1, 3549, 85)).astype(np.float32)
    other = right.copy()
    other[0, :30] *= -0.5

    def error_of(wanted, given):
        monkeypatch.setattr(quantize_aware, "_outputs_of", lambda *_: [given])
        return quantize_aware.require_agreement(Format.ONNX, tmp_path, {}, {"rows": wanted})

    assert error_of(right, other) > 0.5
    for wanted, given in ((right, 0.6 * right), (right[:, :100], other[:, :100])):
        with pytest.raises(StepError, match="differs by"):
            error_of(wanted, given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "greater than or equal to 1"),
        ({"to": "tensorrt"}, "'onnx' or 'openvino'"),
        ({"patience": 2, "validate_epochs": False}, "validation"),
        ({"autocast": "bf16"}, "Extra inputs"),
        ({"samples": 0}, "greater than or equal to 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        QuantizeAware(**options)


def test_what_it_reads_needs_and_depends_on(monkeypatch):
    assert QuantizeAware().roles() == ("calibration", "training", "validation")
    assert QuantizeAware(validate_epochs=False).roles() == ("calibration", "training")
    needs = {to: set(QuantizeAware(to=to).requires().packages) for to in ("onnx", "openvino")}
    assert {"nncf", "onnxruntime"} <= needs["onnx"]
    assert "openvino" in needs["openvino"] - needs["onnx"]
    monkeypatch.setattr(environment, "cpu", lambda: {"machine": "x86_64", "flags": ["avx2"]})
    assert QuantizeAware().bound_to() == {"quantizer": "x86", "saturates": True}
