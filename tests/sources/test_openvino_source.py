"""OpenVINO models as sources: copied with their weights, sizes fixed, refused with what to paste."""

from __future__ import annotations

import numpy as np
import openvino
import pytest
from openvino import opset13

from optcli.errors import InputError
from optcli.files.digest import FileDigests
from optcli.models import sources
from optcli.models.formats import model_files
from optcli.models.formats import openvino as openvino_format
from optcli.models.sources.openvino import OpenvinoSource
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow


def saved(folder, sizes=(-1, 4), compressed=False):
    """image [.., 4] times a 4x4 matrix of ones."""
    image = opset13.parameter(openvino.PartialShape(list(sizes)), np.float32, "image")
    image.output(0).get_tensor().set_names({"image"})
    scores = opset13.matmul(image, opset13.constant(np.ones((4, 4), np.float32)), False, False)
    scores.output(0).get_tensor().set_names({"scores"})
    openvino.save_model(
        openvino.Model([scores], [image], "net"), folder / "net.xml", compress_to_fp16=compressed
    )
    return OpenvinoSource(target="net.xml", folder=folder)


def written(source, folder, *shape):
    folder.mkdir()
    facts = source.write(folder, [TensorSpec(name="image", shape=list(shape))])
    return facts, openvino_format.open(folder)


@pytest.mark.parametrize(("compressed", "precision"), [(False, "fp32"), (True, "fp16")])
def test_the_files_are_copied_and_described(tmp_path, compressed, precision):
    source = saved(tmp_path, compressed=compressed)
    facts, _ = written(source, tmp_path / "out", "batch", 4)
    for suffix in (".xml", ".bin"):
        assert (tmp_path / f"out/model{suffix}").read_bytes() == (
            tmp_path / f"net{suffix}"
        ).read_bytes()
    assert (facts.outputs, facts.precision) == (("scores",), precision)
    assert facts.facts["output_tensors"] == [{"name": "scores", "dtype": "float32", "shape": [None, 4]}]


def test_the_recipe_may_fix_a_size_that_the_file_leaves_open(tmp_path):
    _, model = written(saved(tmp_path, sizes=(-1, -1)), tmp_path / "out", "batch", 4)
    assert openvino_format.sizes(model.inputs[0]) == [None, 4]
    answer = openvino_format.core().compile_model(model, "CPU")(np.ones((3, 4), np.float32))[0]
    assert answer.tolist() == np.full((3, 4), 4.0).tolist()


def test_the_weights_belong_to_the_key(tmp_path):
    source, digests = saved(tmp_path), FileDigests(tmp_path / "cache")
    before = source.ingredients(digests)
    values = np.full((4, 4), 2.0, np.float32)
    (tmp_path / "net.bin").write_bytes(values.tobytes())
    assert source.ingredients(FileDigests(tmp_path / "other")) != before


def test_weights_that_are_missing_are_named(tmp_path):
    source = saved(tmp_path)
    (tmp_path / "net.bin").unlink()
    ((field, message, hint),) = source.problems()
    assert field == "source"
    assert "net.bin" in message
    assert ".bin" in hint
    with pytest.raises(InputError, match=r"net\.bin"):
        written(source, tmp_path / "out", "batch", 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "input", "shape": ["batch", 4]}, "the file takes image, the recipe has input"),
        ({"name": "image", "shape": ["batch", 3]}, "dimension 1 of image is 4 in the file, 3"),
        ({"name": "image", "shape": [4]}, "2 dimensions in the file, 1 in the recipe"),
        ({"name": "image", "shape": ["batch", 4], "dtype": "uint8"}, "image is float32 in the file"),
    ],
)
def test_other_inputs_get_a_block_to_paste(tmp_path, spec, message):
    source, out = saved(tmp_path), tmp_path / "out"
    out.mkdir()
    with pytest.raises(InputError, match=message) as error:
        source.write(out, [TensorSpec(**spec)])
    assert "{name: 'image', dtype: float32, shape: [batch, 4]}" in error.value.hint


def test_a_damaged_file_is_no_model(tmp_path):
    source = saved(tmp_path)
    text = source.file.read_text()
    source.file.write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match="not a valid OpenVINO model"):
        written(source, tmp_path / "out", "batch", 4)


def test_sizes_that_its_layers_do_not_take_are_an_error_of_the_file(tmp_path):
    with pytest.raises(InputError, match="does not take the recipe's sizes") as error:
        written(saved(tmp_path, sizes=(-1, -1)), tmp_path / "out", "batch", 3)
    assert error.value.place == str(tmp_path / "net.xml")


@pytest.mark.parametrize("source", ["openvino", "litert", "executorch"])
def test_errors_name_the_file_of_the_person_and_no_copy(tmp_path, source):
    kind = sources.find(source)
    (file,) = (tmp_path / f"own{each}" for each in model_files.suffixes(kind.format))
    file.write_bytes(b"<annotation/>")
    (tmp_path / "own.bin").write_bytes(b"")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError) as error:
        kind(target=file.name, folder=tmp_path).write(
            tmp_path / "out", [TensorSpec(name="a", shape=[4])]
        )
    assert error.value.place == str(file)
    assert str(tmp_path / "out") not in error.value.message
