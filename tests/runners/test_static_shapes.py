"""Static shapes: each size its own form, sizes in between padded or sent to the form for any size."""

import numpy as np
import pytest
from pydantic import ValidationError
from tiny_networks import INPUTS, apply, artifact, feed, torch_artifact

from optcli.artifact import Format
from optcli.errors import RunnerError
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners import _shapes
from optcli.runners._shapes import StaticForms, described, observed, sizes_of
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec


def spec(name="x", shape=("batch", 3), **more):
    return TensorSpec.model_validate({"name": name, "shape": list(shape), **more})


class Form:
    """Doubles its input; remembers what it was given."""

    def __init__(self, size):
        self.size, self.given = size, []

    def bind(self, feed):
        self.given.append({name: array.copy() for name, array in feed.items()})
        if self.size is not None:
            assert all(len(array) == self.size for array in feed.values())

    def execute(self):
        pass

    def fetch(self):
        return {"y": self.given[-1]["x"] * 2}


class Made:
    """What a model was compiled for, and clocks that make one form of it slower."""

    def __init__(self, monkeypatch, slow=()):
        self.forms, self.slow = {}, slow
        monkeypatch.setattr(_shapes, "_seconds", self._seconds)

    def __call__(self, size):
        self.forms[size] = Form(size)
        return self.forms[size]

    def _seconds(self, calls, feed):
        return 2.0 if calls.size in self.slow else 1.0


def run(forms, count):
    x = np.arange(3.0 * count).reshape(count, 3)
    forms.bind({"x": x})
    forms.execute()
    found = forms.fetch()["y"]
    assert np.array_equal(found, x * 2)


@pytest.mark.parametrize(
    ("slow", "said", "filled"),
    [((None,), {3: "padded to 4"}, True), ((4,), {3: "the form for any size"}, False)],
)
def test_a_size_in_between_goes_where_it_takes_less_time(monkeypatch, slow, said, filled):
    made = Made(monkeypatch, slow)
    forms = StaticForms(made, (4, 1), [spec()], can_pad=True)
    run(forms, 1)
    run(forms, 4)
    assert (list(made.forms), forms.destinations) == ([1, 4], {})
    run(forms, 3)
    assert (list(made.forms), forms.destinations) == ([1, 4, None], said)
    assert observed(forms)["padded_batch_sizes"] == ({"3": 4} if filled else {})
    assert described(forms)["can_pad"] is True
    assert forms.current is made.forms[4 if filled else None]
    last = forms.current.given[-1]["x"]
    assert len(last) == (4 if filled else 3)
    if filled:
        assert np.array_equal(last[3], last[2]), "the last sample once more"
    run(forms, 4)


def test_a_batch_above_all_sizes_goes_to_the_form_for_any(monkeypatch):
    made = Made(monkeypatch, slow=(None,))
    forms = StaticForms(made, (1, 4), [spec()], can_pad=True)
    run(forms, 9)
    assert forms.current is made.forms[None]
    assert described(forms)["compiled_batch_sizes"] == [1, 4]
    assert set(described(forms)["compile_ms"]) == {"1", "4", "any"}
    assert observed(forms)["other_batch_sizes"] == {"9": "the form for any size"}


@pytest.mark.parametrize(
    ("inputs", "can_pad"),
    [
        ([spec()], False),
        ([spec(), spec("mask", (4, 3))], True),
        ([spec(), spec("pairs", ("batch", "batch"))], True),
        ([spec(), spec("other", ("rows", 3))], True),
    ],
    ids=["an output without a batch", "a fixed input", "the batch twice", "two symbols"],
)
def test_what_cannot_be_padded_is_not(monkeypatch, inputs, can_pad):
    made = Made(monkeypatch, slow=(None,))
    forms = StaticForms(made, (4,), inputs, can_pad=can_pad)
    run(forms, 3)
    assert forms.destinations == {3: "the form for any size"}
    assert described(forms)["can_pad"] is False


def test_sizes_are_those_that_the_inputs_take():
    wide = spec(batch={"min": 1, "opt": 8, "max": 16})
    assert sizes_of((8, 1, 8), [wide]) == (1, 8)
    with pytest.raises(RunnerError, match="batch_sizes has 32, the inputs take 1 to 16"):
        sizes_of((1, 32), [wide])
    assert sizes_of(None, [wide]) == (8,)
    assert sizes_of((1, 8), [spec(shape=(1, 3))]) == ()


RUNNERS = [OnnxruntimeRunner, OpenvinoRunner]
IMAGE = INPUTS["Conv"]


@pytest.fixture(scope="module")
def onnx(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return apply(
        ExportOnnx(exporter="torchscript"), torch_artifact(folder, "Conv"), folder / "onnx", IMAGE
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNNERS)
def test_static_forms_compute_what_the_dynamic_one_does(onnx, kind):
    static = kind(threads=1, shapes="static", batch_sizes=(1, 4)).open(onnx, IMAGE)
    with static, kind(threads=1).open(onnx, IMAGE) as dynamic:
        said = static.effective()
        assert (said["shapes"], said["compiled_batch_sizes"]) == ("static", [1, 4])
        assert dynamic.effective()["shapes"] == "dynamic"
        for size in (4, 1, 3, 9, 3):
            values = feed(IMAGE, size, seed=size)
            wanted, found = dynamic.run(values)["output"], static.run(values)["output"]
            assert found.shape == wanted.shape
            assert np.allclose(found, wanted, atol=1e-5)
        assert set(static.observed()["other_batch_sizes"]) == {"3", "9"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNNERS)
def test_a_padded_batch_is_cut_again(onnx, kind, monkeypatch):
    monkeypatch.setattr(_shapes, "_seconds", lambda calls, feed: 9.0 - len(next(iter(feed.values()))))
    values = feed(IMAGE, 3)
    with kind(threads=1, shapes="static", batch_sizes=(1, 4)).open(onnx, IMAGE) as static:
        found = static.run(values)["output"]
        assert static.observed()["other_batch_sizes"] == {"3": "padded to 4"}
        assert static.observed()["padded_batch_sizes"] == {"3": 4}
    with kind(threads=1).open(onnx, IMAGE) as dynamic:
        assert np.allclose(found, dynamic.run(values)["output"], atol=1e-5)


@pytest.mark.slow
def test_openvino_compiles_its_own_format_for_sizes_too(onnx, tmp_path):
    made = apply(ToOpenvino(), onnx, tmp_path / "openvino", IMAGE)
    values = feed(IMAGE, 4)
    with OpenvinoRunner(threads=1, shapes="static", batch_sizes=(4,)).open(made, IMAGE) as static:
        found = static.run(values)["output"]
        assert static.effective()["compiled_batch_sizes"] == [4]
    with OpenvinoRunner(threads=1).open(made, IMAGE) as dynamic:
        assert np.allclose(found, dynamic.run(values)["output"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("fixed_batch", "shapes"), [(False, "static"), (True, "dynamic")])
def test_openvino_compiles_for_sizes_where_the_batch_is_open(tmp_path, fixed_batch, shapes):
    """An input that never varies does not keep it from that, a height that varies does not allow it."""
    import openvino
    from openvino import opset13

    image = opset13.parameter([4 if fixed_batch else -1, 3, -1], np.float32, name="image")
    factors = opset13.parameter([1, 3, 1], np.float32, name="factors")
    for node, name in ((image, "image"), (factors, "factors")):
        node.output(0).set_names({name})
    product = opset13.multiply(image, factors)
    product.output(0).set_names({"output"})
    model = openvino.Model([product], [image, factors], "scaled")
    openvino.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    made = artifact(tmp_path, Format.OPENVINO)
    inputs = [spec("image", ("batch", 3, "height")), spec("factors", (1, 3, 1))]
    values = {"image": np.ones((4, 3, 5), np.float32), "factors": np.full((1, 3, 1), 2, np.float32)}
    with OpenvinoRunner(threads=1, shapes="static", batch_sizes=(4,)).open(made, inputs) as runner:
        assert runner.effective()["shapes"] == shapes
        assert np.array_equal(runner.run(values)["output"], 2 * values["image"])


def test_onnx_runtimes_own_format_cannot_be_compiled_for_sizes(tmp_path):
    (tmp_path / "model.ort").touch()
    with pytest.raises(RunnerError, match="shapes: static is for ONNX files") as raised:
        OnnxruntimeRunner(shapes="static").open(artifact(tmp_path, Format.ORT), IMAGE)
    assert "leave `shapes` out" in raised.value.hint


@pytest.mark.slow
def test_a_batch_without_a_name_cannot_be_fixed_in_onnx_runtime(onnx, tmp_path):
    import onnx as library

    model = library.load(onnx.path / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    library.save(model, tmp_path / "model.onnx")
    nameless = artifact(tmp_path, Format.ONNX)
    with pytest.raises(RunnerError, match="has no name in the file") as raised:
        OnnxruntimeRunner(shapes="static").open(nameless, IMAGE)
    assert "shapes: dynamic" in raised.value.hint
    with OpenvinoRunner(threads=1, shapes="static", batch_sizes=(2,)).open(nameless, IMAGE) as model:
        assert model.run(feed(IMAGE, 2))["output"].shape == (2, 5)


def test_static_shapes_are_for_the_cpu():
    with pytest.raises(ValidationError, match="shapes: static is for `provider: cpu`"):
        OnnxruntimeRunner(provider="cuda", shapes="static")
    with pytest.raises(ValidationError):
        OpenvinoRunner(batch_sizes=(0,))
