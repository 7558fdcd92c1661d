"""Exported programs as sources: scanned, taken as they are, refused with what to paste."""

import pickle
import zipfile

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from tiny_networks import artifact, feed

from optcli.artifact import Format
from optcli.errors import InputError, TrustError
from optcli.files.digest import FileDigests
from optcli.models.sources.exported import ExportedSource
from optcli.runners.torch import TorchRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

WIDTHS = {"min": 4, "opt": 10, "max": 40}
IMAGE = TensorSpec(
    name="image", shape=("batch", 3, 8, "width"), ranges={"batch": {"max": 9}, "width": WIDTHS}
)
MASK = TensorSpec(name="mask", shape=("batch", 1), ranges={"batch": {"max": 9}})


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, image, mask):
        y = self.conv(image) * mask[:, :, None, None]
        return {"map": y, "sums": (y.mean((2, 3)),)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.manual_seed(0)
    network = Net().eval()
    batch = torch.export.Dim("batch", min=1, max=9)
    program = torch.export.export(
        network,
        (torch.ones(2, 3, 8, 10), torch.ones(2, 1)),
        dynamic_shapes={
            "image": {0: batch, 3: torch.export.Dim("width", min=4, max=40)},
            "mask": {0: batch},
        },
    )
    folder = tmp_path_factory.mktemp("programs")
    torch.export.save(program, str(folder / "net.pt2"))
    return network, ExportedSource(target="net.pt2", folder=folder)


def refused(source, out, inputs):
    out.mkdir()
    with pytest.raises(InputError) as failure:
        source.write(out, inputs)
    assert failure.value.place == str(source.file)
    return failure.value


def test_a_program_is_taken_and_computes_what_its_network_did(whole, tmp_path):
    network, source = whole
    found = source.write(tmp_path, (IMAGE, MASK))
    assert (found.outputs, found.precision) == (("map", "sums.0"), "fp32")
    made = artifact(tmp_path, Format.EXPORTED, found.outputs)
    with TorchRunner(threads=1).open(made, (IMAGE, MASK)) as runner:
        for size in (1, 9):
            values = feed((IMAGE, MASK), size)
            with torch.no_grad():
                right = network(*(torch.from_numpy(values[name]) for name in ("image", "mask")))
            np.testing.assert_allclose(runner.run(values)["map"], right["map"], atol=1e-5)


def test_dictionaries_survive_on_the_way_to_other_formats(whole, tmp_path):
    from tiny_networks import apply

    from optcli.passes.to_openvino import ToOpenvino
    from optcli.runners.openvino import OpenvinoRunner

    _, source = whole
    (tmp_path / "exported").mkdir()
    outputs = source.write(tmp_path / "exported", (IMAGE, MASK)).outputs
    program = artifact(tmp_path / "exported", Format.EXPORTED, outputs)
    made = apply(ToOpenvino(), program, tmp_path / "openvino", (IMAGE, MASK))
    values = feed((IMAGE, MASK), 3)
    with (
        TorchRunner(threads=1).open(program, (IMAGE, MASK)) as wanted,
        OpenvinoRunner(threads=1).open(made, (IMAGE, MASK)) as found,
    ):
        wanted, found = wanted.run(values), found.run(values)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((IMAGE,), r"takes 2 \(image, mask\), the recipe has 1"),
        ((MASK, IMAGE), "in the order image, mask"),
        ((IMAGE, MASK.model_copy(update={"dtype": "int64"})), "mask is float32 in the file, int64"),
        ((TensorSpec(name="image", shape=("batch", 3, 9, 8)), MASK), "dimension 2 of image is 8"),
        ((TensorSpec(name="image", shape=("batch", 3, 8, 8)), MASK), "batch of image is 1 to 9 in the"),
        (
            (TensorSpec(name="image", shape=(10, 3, 8, 8)), MASK),
            "dimension 0 of image is 1 to 9 in the file, 10",
        ),
    ],
)
def test_other_inputs_get_a_block_to_paste(whole, tmp_path, inputs, message):
    import re

    _, source = whole
    error = refused(source, tmp_path / "out", inputs)
    assert re.search(message, error.message)
    block = YAML(typ="safe").load(error.hint[error.hint.index("inputs:") :])
    (tmp_path / "again").mkdir()
    source.write(tmp_path / "again", [TensorSpec.model_validate(spec) for spec in block["inputs"]])


def test_inputs_may_have_other_names(whole, tmp_path):
    _, source = whole
    renamed = (IMAGE.model_copy(update={"name": "pixels"}), MASK)
    assert source.write(tmp_path, renamed).outputs == ("map", "sums.0")


def test_inputs_by_name_and_lists_are_refused(tmp_path):
    class ByName(torch.nn.Module):
        def forward(self, image, *, mask=None):
            return image if mask is None else image * mask

    class Lists(torch.nn.Module):
        def forward(self, images):
            return images[0] + images[1]

    a = torch.ones(2, 3)
    torch.export.save(torch.export.export(ByName(), (a,), {"mask": a}), str(tmp_path / "name.pt2"))
    torch.export.save(torch.export.export(Lists(), ([a, a],)), str(tmp_path / "list.pt2"))
    inputs = [TensorSpec(name=name, shape=(2, 3)) for name in ("image", "mask")]
    by_name = refused(ExportedSource(target="name.pt2", folder=tmp_path), tmp_path / "a", inputs)
    assert r"by name (mask)" in by_name.message
    lists = refused(ExportedSource(target="list.pt2", folder=tmp_path), tmp_path / "b", inputs)
    assert "one tensor per argument" in lists.message


def test_a_fixed_batch_that_the_recipe_wants_dynamic(tmp_path):
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),))
    torch.export.save(program, str(tmp_path / "net.pt2"))
    source = ExportedSource(target="net.pt2", folder=tmp_path)
    error = refused(source, tmp_path / "out", [TensorSpec(name="image", shape=("batch", 3))])
    assert "the batch of image is fixed at 2" in error.message
    assert "export the model again" in error.hint


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_file_that_would_run_code_is_refused_and_does_not(whole, tmp_path):
    trace = tmp_path / "trace"
    with zipfile.ZipFile(whole[1].file) as old, zipfile.ZipFile(tmp_path / "net.pt2", "w") as new:
        for name in old.namelist():
            if "sample_inputs" not in name:
                new.writestr(name, old.read(name))
        root = old.namelist()[0].partition("/")[0]
        new.writestr(f"{root}/data/sample_inputs/model.pt", pickle.dumps(Touch(trace)))
    source = ExportedSource(target="net.pt2", folder=tmp_path)
    assert isinstance(refused(source, tmp_path / "out", (IMAGE, MASK)), TrustError)
    assert not trace.exists()


def test_problems_are_seen_without_opening_anything(whole):
    source = whole[1]
    assert source.problems() == []
    assert source.ingredients(FileDigests())["file"]
    wrong = ExportedSource(target="nett.pt2", folder=source.folder, weights="w.pth")
    assert [where for where, _, _ in wrong.problems()] == ["source", "weights"]
    assert "net.pt2" in wrong.problems()[0][2]
