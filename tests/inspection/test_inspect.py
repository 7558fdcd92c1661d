"""`optcli inspect` on every kind of target, in a worker as a person has it."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch
from tiny_networks import INPUTS, apply, torch_artifact
from tiny_project import write_model

from optcli.errors import InputError, OptcliError, TrustError, UsageError
from optcli.models.formats import model_files
from optcli.pipeline import view
from optcli.report import terminal
from optcli.scaffold import inspection
from optcli.scaffold.inspection import resolve

pytestmark = pytest.mark.slow

CONV_MACS = 16 * 16 * 16 * 27 + 8 * 8 * 16 * 16 + 8 * 8 * 16 * 144 + 8 * 8 * 32 * 288 + 32 * 5
CONV_PARAMETERS = 16 * 28 + 16 * 17 + 16 * 145 + 32 * 289 + 33 * 5


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return torch_artifact(tmp_path_factory.mktemp("conv"), "Conv")


def looked(network, tmp_path, *passes):
    """What inspection finds in what passes make of the network."""
    from optcli.scaffold.inspection.looking import look

    made = network
    for number, one in enumerate(passes):
        made = apply(one, made, tmp_path / str(number), INPUTS["Conv"])
    steps = [{"step": "source", "inputs": [spec.model_dump() for spec in INPUTS["Conv"]]}]
    about = {"format": str(made.format), "made_by": steps}
    return look(inspection.Target("x", "artifact", str(made.format), made.path, about), None)


def types(found):
    return {(each.type, each.precision): each.count for each in found.operators}


def test_every_format_has_the_same_operations_and_parameters(network, tmp_path):
    from optcli.passes.export import Export
    from optcli.passes.export_onnx import ExportOnnx
    from optcli.passes.to_openvino import ToOpenvino

    eager = looked(network, tmp_path / "a")
    exported = looked(network, tmp_path / "b", Export())
    onnx = looked(network, tmp_path / "c", ExportOnnx())
    openvino = looked(network, tmp_path / "d", ExportOnnx(), ToOpenvino())
    for found in (eager, exported, onnx, openvino):
        assert found.operations.macs == CONV_MACS, found.format
        assert found.operations.at == {"image": (1, 3, 16, 16)}
        assert found.precision == "fp32"
        assert [each.name for each in found.inputs] == ["image"]
        assert len(found.outputs) == 1
        assert found.size_bytes > 4 * CONV_PARAMETERS
    assert eager.parameters == exported.parameters == onnx.parameters == CONV_PARAMETERS
    assert types(eager)["aten.convolution", "fp32"] == 4
    assert types(exported)["aten.conv2d", "fp32"] == 4
    assert types(onnx)["Conv", "fp32"] == 4
    assert types(openvino)["Convolution", "fp32"] == 4
    assert eager.outputs[0].shape == ("batch", 5)


def test_attention_is_counted_in_its_parts(tmp_path):
    from optcli.scaffold.inspection.torch import look

    made = torch_artifact(tmp_path, "Attention")
    tokens, width = 5, 16
    attention = tokens * width * 4 * width + 2 * tokens * tokens * width
    wanted = attention + 2 * tokens * width * 32 + width * 3
    assert look(made.path, INPUTS["Attention"])["operations"]["macs"] == wanted


def test_a_file_of_onnx_and_its_text(tmp_path):
    write_model(tmp_path / "model.onnx")
    found = inspection.inspect(str(tmp_path / "model.onnx"), tmp_path)
    assert (found.kind, found.format, found.operations.macs) == ("file", "onnx", 96)
    text = terminal.text(inspection.document(found))
    assert "image  float32[batch, 3, 4, 4]" in text
    assert "96 multiply-accumulates" in text
    record = json.loads(found.model_dump_json(by_alias=True))
    assert record["schema"] == 1
    assert inspection.Findings.model_validate(record) == found


@pytest.mark.long
def test_an_exported_program_of_somebody_else(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    batch = torch.export.Dim("n", min=2, max=9)
    program = torch.export.export(net, (torch.zeros(3, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "net.pt2")
    found = inspection.inspect(str(tmp_path / "net.pt2"), tmp_path)
    assert found.format == "exported"
    assert found.operations.at == {"input": (2, 4)}
    assert found.operations.macs == 2 * 4 * 3
    assert found.parameters == 15


def test_onnx_runtimes_own_format(network, tmp_path):
    from optcli.passes.export_onnx import ExportOnnx
    from optcli.passes.optimize_onnx import OptimizeOnnx

    found = looked(network, tmp_path, ExportOnnx(), OptimizeOnnx(to="ort"))
    assert (found.format, found.inputs[0].shape) == ("ort", ("batch", 3, 16, 16))
    assert "Gemm" in found.notes[0]


def test_torchscript_is_counted_where_its_inputs_are_known(network, tmp_path):
    from optcli.passes.torchscript import Torchscript

    found = looked(network, tmp_path, Torchscript(freeze=False, optimize_for_inference=False))
    assert found.operations.macs == CONV_MACS
    assert found.parameters == CONV_PARAMETERS


@pytest.mark.long
def test_a_bare_torchscript_file(tmp_path):
    torch.jit.trace(torch.nn.Linear(4, 3), torch.zeros(1, 4)).save(tmp_path / "net.pt")
    found = inspection.inspect(str(tmp_path / "net.pt"), tmp_path)
    assert (found.format, found.parameters, found.operations) == ("torchscript", 15, None)
    assert "aten.linear" in {each.type for each in found.operators}


@pytest.mark.long
def test_weights_and_pickles(tmp_path):
    torch.save(torch.nn.Linear(4, 3).half().state_dict(), tmp_path / "weights.pth")
    found = inspection.inspect(str(tmp_path / "weights.pth"), tmp_path)
    assert (found.format, found.parameters_by_type) == ("weights", {"fp16": 15})
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(print, protocol=2))
    with pytest.raises(TrustError, match="run code"):
        inspection.inspect(str(tmp_path / "evil.pt"), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("model.onnx", b"", InputError, "is empty"),
        ("model.onnx", b"garbage, and more of it", InputError, "not an ONNX file"),
        ("model.pt2", b"garbage", InputError, "archive"),
        ("model.xml", b"<garbage>", InputError, "missing"),
        ("notes.txt", b"hello", UsageError, "cannot tell what kind of model notes.txt is"),
        ("recipe.yaml", b"version: 1\n", Exception, "problem"),
    ],
)
def test_what_is_no_model(tmp_path, name, content, error, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error) as caught:
        inspection.inspect(str(tmp_path / name), tmp_path)
    assert says in str(caught.value) + repr(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_name_that_is_nothing(tmp_path):
    with pytest.raises(UsageError, match="no file, folder or variant 'onx'"):
        inspection.inspect("onx", tmp_path)
    with pytest.raises(UsageError, match="no artifact"):
        inspection.inspect(str(tmp_path), tmp_path)


@pytest.mark.long
def test_recipes_variants_and_folders_of_a_build(project):
    path = project.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n')
    project.build()
    model = inspection.inspect(str(path), project.artifacts)
    assert (model.kind, model.format, model.operations.macs) == ("recipe", "onnx", 96)
    assert model.made_by[0]["step"] == "source onnx:model.onnx"
    for target in ("copied", "tiny/copied", str(project.artifacts / "tiny" / "copied")):
        found = inspection.inspect(target, project.artifacts)
        assert found.kind == "artifact"
        assert [step["step"] for step in found.made_by][1:] == ["./fakes.py:Copy"]
        assert found.operations.at == {"image": (1, 3, 4, 4)}
    with pytest.raises(UsageError, match=r"no file, folder or variant") as caught:
        inspection.inspect("cpied", project.artifacts)
    assert caught.value.hint == "did you mean 'copied'?"
    with pytest.raises(UsageError, match="no artifact") as caught:
        inspection.inspect(str(project.artifacts / "tiny"), project.artifacts)
    assert caught.value.hint == "name one of its variants: copied, plain"


def test_nothing_heavy_is_loaded_here():
    import configured

    assert configured.loaded_by("optcli.scaffold.inspection")["optcli.scaffold.inspection"] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["net.ptl", "net.pth", "net.ts", "net.jit", "net.torchscript", "net.TORCHSCRIPT", "net"]
)
def test_torchscript_of_any_suffix(tmp_path, name):
    script = torch.jit.trace(torch.nn.Linear(4, 3), torch.zeros(1, 4))
    if name == "net.ptl":
        script._save_for_lite_interpreter(str(tmp_path / name))
    else:
        script.save(tmp_path / name)
    found = inspection.inspect(str(tmp_path / name), tmp_path)
    assert (found.format, found.parameters) == ("torchscript", 15)


def test_a_model_file_as_a_recipe_names_it(tmp_path):
    write_model(tmp_path / "net.of.mine")
    assert inspection.inspect(f"onnx:{tmp_path}/net.of.mine", tmp_path).format == "onnx"
    with pytest.raises(UsageError, match="no such file"):
        inspection.inspect(f"onnx:{tmp_path}/gone.onnx", tmp_path)
    with pytest.raises(UsageError) as caught:
        inspection.inspect("torchvision:resnet18", tmp_path)
    assert "optcli init torchvision:resnet18" in caught.value.hint


@pytest.mark.long
def test_a_bare_file_of_onnx_runtimes_own_format(network, tmp_path):
    from optcli.passes.export_onnx import ExportOnnx
    from optcli.passes.optimize_onnx import OptimizeOnnx

    made = apply(ExportOnnx(), network, tmp_path / "1", INPUTS["Conv"])
    made = apply(OptimizeOnnx(to="ort"), made, tmp_path / "2", INPUTS["Conv"])
    found = inspection.inspect(str(made.path / "model.ort"), tmp_path)
    assert (found.format, found.inputs[0].name) == ("ort", "image")


@pytest.mark.long
def test_an_exported_program_of_another_suffix(tmp_path):
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.zeros(2, 4),))
    torch.export.save(program, tmp_path / "net.pt")
    assert inspection.inspect(str(tmp_path / "net.pt"), tmp_path).format == "exported"


@pytest.mark.parametrize("name", ["f", "f.pt", "f.onnx", "f.yaml", "f.pt2"])
def test_a_pipe_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(OptcliError, match="found a pipe"):
        resolve(str(tmp_path / name), tmp_path)
    model_files.format_of(tmp_path / name)  # by its name: nobody waits for what is in it


@pytest.mark.parametrize(
    "text",
    ["[]", "[" * 100_000, "{}", '{"key": "k"}', '{"format": "onnx", "made_by": [], "facts": {}}', None],
    ids=["list", "deep", "empty", "part", "nothing made it", "pipe"],
)
def test_a_folder_that_describes_no_artifact(tmp_path, text):
    if text is None:
        os.mkfifo(tmp_path / "artifact.json")
    else:
        (tmp_path / "artifact.json").write_text(text)
    with pytest.raises(InputError, match="does not describe an artifact"):
        resolve(str(tmp_path), tmp_path)
    with pytest.raises((OSError, ValueError)):
        view.read(tmp_path)
