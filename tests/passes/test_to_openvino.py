"""OpenVINO's graph after conversion: the layers that compute, none that only work out shapes."""

import numpy as np
import openvino
import pytest
import torch
from tiny_networks import INPUTS, apply, feed, onnx_file, torch_artifact

from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import torch as torch_format
from optcli.models.sources.python import PythonSource
from optcli.models.sources.torchvision import TorchvisionSource
from optcli.passes.export import Export
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino, _round_pools_plainly
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow


def kinds(model):
    return [each.get_type_name() for each in model.get_ops()]


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "working_out_shapes"),
    [
        ("resnet20_cifar10", "input", ("batch", 3, 32, 32), 0),
        ("mobilenet_v3_small_fashion", "input", ("batch", 3, 64, 64), 0),
        ("vit_tiny_fashion", "input", ("batch", 3, 32, 32), 1),  # the class token is repeated
        ("yolox_nano", "images", (1, 3, 416, 416), 0),
    ],
)
def test_an_open_batch_adds_no_layer(shared, tmp_path, name, tensor, shape, working_out_shapes):
    file = shared / "models" / f"{name}.onnx"
    spec = TensorSpec.model_validate({"name": tensor, "shape": list(shape)})
    made = apply(ToOpenvino(), onnx_file(file, tmp_path / "onnx"), tmp_path / "openvino", [spec])
    found = openvino_format.open(made.path)
    fixed = openvino.convert_model(file, input={tensor: list(spec.concrete(2))})
    assert kinds(found).count("ShapeOf") == working_out_shapes
    assert len(kinds(found)) <= len(kinds(fixed))
    assert openvino_format.input_names(found) == (tensor,)
    assert found.inputs[0].get_partial_shape()[0].is_dynamic == isinstance(shape[0], str)
    read = openvino.Core().read_model(file)
    assert openvino_format.output_names(found) == openvino_format.output_names(read)
    if name != "yolox_nano":
        assert kinds(read).count("ShapeOf") > 20, "else this tells nothing"


def test_what_depends_on_no_input_is_worked_out_before(tmp_path):
    """The mask of attention in windows: PyTorch's converter leaves how it is made in the graph."""
    source = torch_artifact(tmp_path / "torch", "Windows")
    exported = apply(Export(), source, tmp_path / "exported", INPUTS["Windows"])
    made = apply(ToOpenvino(), exported, tmp_path / "openvino", INPUTS["Windows"])
    found = openvino_format.open(made.path)
    making = {"Range", "ScatterNDUpdate", "ScatterUpdate", "Select", "NotEqual", "ReduceProd"}
    assert not making & set(kinds(found))
    assert kinds(found).count("ShapeOf") <= 1, "of the batch, which is open"
    gives_the_same(found, source, "Windows")


def test_what_is_repeated_for_each_image_stays_so(tmp_path):
    """A learned token before the others: its broadcast does something at each batch size above 1."""
    source = torch_artifact(tmp_path / "torch", "Token")
    exported = apply(Export(), source, tmp_path / "exported", INPUTS["Token"])
    made = apply(ToOpenvino(), exported, tmp_path / "openvino", INPUTS["Token"])
    found = openvino_format.open(made.path)
    assert "Broadcast" in kinds(found)
    gives_the_same(found, source, "Token")


def gives_the_same(found, source, name):
    network = torch_format.open(source.path)
    compiled = openvino.compile_model(found, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch_size in (1, 2, 3):
        rows = feed(INPUTS[name], batch_size)
        with torch.no_grad():
            wanted = network(*map(torch.from_numpy, rows.values())).numpy()
        np.testing.assert_allclose(compiled(rows)[0], wanted, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("resnet18", Export),
        ("mobilenet_v3_small", ExportOnnx),
        ("shufflenet_v2_x0_5", Export),
        ("squeezenet1_1", Export),
    ],
)
def test_networks_from_pytorch_too(tmp_path, name, way):
    from optcli.artifact import Artifact, Format

    source = TorchvisionSource(target=name, weights=None, arguments={}, folder=tmp_path)
    inputs = [TensorSpec.model_validate({"name": "image", "shape": ["batch", 3, 64, 64]})]
    (tmp_path / "torch").mkdir()
    facts = source.write(tmp_path / "torch", inputs)
    network = Artifact(
        "key", Format.TORCH, tmp_path / "torch", "fp32", 0, "digest", {"outputs": list(facts.outputs)}
    )
    parent = apply(way(), network, tmp_path / "exported", inputs)
    found = openvino_format.open(apply(ToOpenvino(), parent, tmp_path / "openvino", inputs).path)
    assert kinds(found).count("ShapeOf") == 0
    rounded = [each.get_attributes().get("rounding_type") for each in found.get_ops()]
    assert "ceil_torch" not in rounded
    assert ("ceil" in rounded) == name.startswith("squeezenet")
    # One at the end, which makes a vector of each image; shuffled channels have one each.
    shuffles = 16 if name.startswith("shufflenet") else 0
    assert kinds(found).count("Reshape") <= 1 + 2 * shuffles


NETWORKS = """
from functools import partial

import torch
import torchvision
from torchvision.models.detection.ssdlite import SSDLiteHead
from torchvision.models.mobilenetv3 import InvertedResidual, InvertedResidualConfig
from torchvision.ops import Conv2dNormActivation


def vit():
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=2, num_heads=3, hidden_dim=96, mlp_dim=192,
        num_classes=10,
    )
    torch.nn.init.normal_(model.heads.head.weight, std=0.05)
    return model


class Detector(torch.nn.Module):
    "The head of SSDLite on two blocks of MobileNet V3."

    def __init__(self):
        super().__init__()
        norm = partial(torch.nn.BatchNorm2d, eps=0.001)
        self.stem = Conv2dNormActivation(3, 16, stride=4, norm_layer=norm)
        blocks = ((16, 3, 32, 24, True, "RE"), (24, 5, 48, 32, True, "HS"))
        self.blocks = torch.nn.ModuleList(
            InvertedResidual(InvertedResidualConfig(*each, 2, 1, 1.0), norm) for each in blocks
        )
        self.head = SSDLiteHead([24, 32], [6, 6], 9, norm)

    def forward(self, image):
        maps = [self.stem(image)]
        for block in self.blocks:
            maps.append(block(maps[-1]))
        found = self.head(maps[1:])
        return {"scores": found["cls_logits"], "boxes": found["bbox_regression"]}


def detector():
    torch.manual_seed(0)
    return Detector()
"""


@pytest.mark.long
@pytest.mark.parametrize("way", [Export, ExportOnnx])
@pytest.mark.parametrize(("name", "side", "working_out_shapes"), [("vit", 64, 1), ("detector", 64, 0)])
def test_a_vit_and_a_detector_from_pytorch(tmp_path, name, side, working_out_shapes, way):
    from optcli.artifact import Artifact, Format

    (tmp_path / "nets.py").write_text(NETWORKS)
    inputs = [TensorSpec.model_validate({"name": "image", "shape": ["batch", 3, side, side]})]
    (tmp_path / "torch").mkdir()
    facts = PythonSource(target=f"nets.py:{name}", folder=tmp_path).write(tmp_path / "torch", inputs)
    network = Artifact(
        "key", Format.TORCH, tmp_path / "torch", "fp32", 0, "digest", {"outputs": list(facts.outputs)}
    )
    parent = apply(way(), network, tmp_path / "exported", inputs)
    found = openvino_format.open(apply(ToOpenvino(), parent, tmp_path / "openvino", inputs).path)
    # The class token of a transformer is repeated for each image.
    assert kinds(found).count("ShapeOf") == working_out_shapes
    assert kinds(found).count("Broadcast") == working_out_shapes
    model = torch_format.open(network.path)
    compiled = openvino.compile_model(found, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch_size in (1, 3):
        rows = feed(inputs, batch_size)
        with torch.no_grad():
            outputs = model(*map(torch.from_numpy, rows.values()))
        wanted = list(outputs.values()) if isinstance(outputs, dict) else [outputs]
        for place, array in enumerate(wanted):
            close = 1e-4 * float(array.abs().max())
            np.testing.assert_allclose(compiled(rows)[place], array.numpy(), atol=close)


def test_a_pool_that_rounds_up_is_computed_in_int8(tmp_path):
    """As a part of an INT8 network, whose convolutions behind it depend on that."""
    import nncf
    from torch import nn

    network = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(nn.Conv2d(32, 32, 1), nn.ReLU()),
    )
    model = openvino.convert_model(torch.export.export(network.eval(), (torch.zeros(2, 3, 32, 32),)))
    _round_pools_plainly(model)
    rows = np.random.default_rng(0).standard_normal((4, 2, 3, 32, 32), dtype=np.float32)
    quantized = nncf.quantize(model, nncf.Dataset(list(rows)))
    compiled = openvino.compile_model(quantized, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    (precision,) = (each["runtimePrecision"] for each in facts if each["layerType"] == "Pooling")
    assert precision == "u8"


@pytest.mark.long
def test_pools_are_rounded_plainly_where_the_sizes_are_the_same():
    def pools(kernel, stride, padding, size):
        pool = torch.nn.MaxPool2d(kernel, stride, padding, ceil_mode=True).eval()
        example = torch.randn(2, 4, size, size)
        model = openvino.convert_model(torch.export.export(pool, (example,)))
        model.reshape([-1, 4, size, size])
        _round_pools_plainly(model)
        compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        (actual,) = compiled([example.numpy()]).values()
        assert torch.equal(torch.from_numpy(actual.copy()), pool(example))
        return [
            node.get_attributes()["rounding_type"]
            for node in model.get_ops()
            if node.get_type_name() == "MaxPool"
        ]

    for size in range(5, 9):
        assert pools(3, 2, 0, size) == ["ceil"]
        assert pools(2, 2, 0, size) == ["ceil"]
    for size in range(5, 9):  # a window may begin in the padding behind the input
        assert pools(2, 2, 1, size) == ["ceil_torch"]
        assert pools(2, 3, 0, size) == ["ceil_torch"]


def test_sizes_that_the_recipe_fixes_are_fixed(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Shape", ["x"], ["sizes"]),
            helper.make_node("Reshape", ["x", "sizes"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "net.onnx")
    spec = TensorSpec.model_validate({"name": "x", "shape": ["batch", 3, 8, 8]})
    start = onnx_file(tmp_path / "net.onnx", tmp_path / "onnx")
    found = openvino_format.open(apply(ToOpenvino(), start, tmp_path / "openvino", [spec]).path)
    assert [str(size) for size in found.inputs[0].get_partial_shape()] == ["?", "3", "8", "8"]
