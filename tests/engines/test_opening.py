"""Opening an engine: what does not fit is told before TensorRT's Runtime is touched."""

import sys

import fake_tensorrt
import numpy as np
import pytest
from fake_driver import engine, plan

from optcli.models.engines import EngineError, driver, sidecar
from optcli.models.engines.running.execution import open_here


@pytest.fixture
def tensorrt(monkeypatch):
    """The fake as the module `tensorrt`; notes whether its Runtime was made."""
    made = []

    class Runtime(fake_tensorrt.Runtime):
        def __init__(self, logger):
            made.append(logger)
            super().__init__(logger)

    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    monkeypatch.setattr(fake_tensorrt, "Runtime", Runtime)
    return made


def job(folder, **options):
    return {"folder": str(folder), "product": "tensorrt", **options}


def test_an_engine_runs(cuda, tensorrt, tmp_path):
    execution = open_here(job(engine(tmp_path)))
    execution.bind({"image": np.ones((2, 3), "float32")})
    execution.execute()
    assert np.all(execution.fetch()["logits"] == 2)
    assert execution.notes == {"precision": "fp16", "built_on": None}
    execution.close()


def test_without_a_driver_the_runtime_is_never_touched(tensorrt, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
    with pytest.raises(EngineError, match="no NVIDIA driver"):
        open_here(job(engine(tmp_path)))
    assert tensorrt == []


def truncated(folder):
    path = folder / sidecar.PLAN
    path.write_bytes(path.read_bytes()[:-10])


def foreign(folder):
    path = folder / sidecar.PLAN
    path.write_bytes(b"x" * path.stat().st_size)


def changed(folder):
    path = folder / sidecar.FILE
    path.write_text(path.read_text().replace('"9.0"', '"8.9"'))


def without_sidecar(folder):
    (folder / sidecar.FILE).unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "the engine is truncated"),
        (foreign, "the engine is not the one that engine.json describes"),
        (changed, "engine.json was changed after it was written"),
        (without_sidecar, "there is no engine.json"),
    ],
)
def test_a_damaged_engine_is_told_before_anything_is_loaded(tensorrt, tmp_path, damage, said):
    folder = engine(tmp_path)
    damage(folder)
    with pytest.raises(EngineError, match=said) as raised:
        open_here(job(folder))
    assert "optcli build" in raised.value.hint
    assert str(folder) in raised.value.place
    assert tensorrt == []


@pytest.mark.parametrize(
    ("built", "both"),
    [
        (
            {"product": "tensorrt_rtx", "version": "1.7.1"},
            ["TensorRT-RTX 1.7.1", "TensorRT 10.16.1.11"],
        ),
        ({"version": "8.6.0"}, ["TensorRT 8.6.0", "TensorRT 10.16.1.11"]),
        ({"version": "11.4.0.106", "compatible": ("version",)}, ["TensorRT 11.4.0.106", "is older"]),
        ({"compute_capability": "8.6", "gpu": "RTX A4000"}, ["RTX A4000", "8.6", "Fake GPU 0", "9.0"]),
    ],
)
def test_what_was_built_by_or_for_something_else_names_both_sides(
    cuda, tensorrt, tmp_path, built, both
):
    with pytest.raises(EngineError) as raised:
        open_here(job(engine(tmp_path, **built)))
    for side in both:
        assert side in raised.value.message
    assert "optcli build" in raised.value.hint
    assert tensorrt == []


def test_a_version_compatible_engine_may_run_its_code(cuda, tensorrt, tmp_path):
    content = plan(host_code=True)
    folder = engine(tmp_path, content, version="8.6.0", compatible=("version",))
    open_here(job(folder)).close()


def test_another_model_of_gpu_is_a_doubt(cuda, tensorrt, tmp_path):
    execution = open_here(job(engine(tmp_path, gpu="NVIDIA H100")))
    assert execution.notes["built_on"] == "NVIDIA H100"
    execution.close()


def test_a_gpu_that_is_not_there(cuda, tensorrt, tmp_path):
    with pytest.raises(EngineError, match="no GPU 3"):
        open_here(job(engine(tmp_path), device=3))


def stripped(folder, model=None):
    """An engine without weights, and the model that has them."""
    engine(folder, plan(stripped=True), stripped=True)
    if model is not None:
        (folder / "weights").mkdir()
        (folder / "weights" / "model.onnx").write_text(model)
    return folder


def test_an_engine_without_weights_gets_them_from_the_model_beside_it(cuda, tensorrt, tmp_path):
    execution = open_here(job(stripped(tmp_path, "good")))
    execution.bind({"image": np.ones((2, 3), "float32")})
    execution.execute()
    assert np.all(execution.fetch()["logits"] == 2)
    execution.close()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "the engine holds no weights, and the model that has them is not beside it"),
        ("other", "the weights do not fit the engine: conv.weight has another shape"),
        ("some", "the engine lacks weights: conv.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(cuda, tensorrt, tmp_path, model, said):
    with pytest.raises(EngineError, match=said) as raised:
        open_here(job(stripped(tmp_path, model)))
    assert raised.value.place.endswith("weights/model.onnx")
    assert "build" in raised.value.hint


def test_weights_cannot_be_put_into_engines_of_old_versions(cuda, tensorrt, tmp_path, monkeypatch):
    monkeypatch.delattr(fake_tensorrt, "OnnxParserRefitter")
    with pytest.raises(EngineError, match="wanted TensorRT 10 or newer"):
        open_here(job(stripped(tmp_path, "good")))


def test_a_place_for_kernels_that_is_not_there_is_told_at_once(cuda, tensorrt, tmp_path):
    place = str(tmp_path / "nowhere" / "kernels")
    with pytest.raises(EngineError, match="no folder for the file of kernels") as raised:
        open_here(job(engine(tmp_path), kernel_cache=place))
    assert raised.value.place == place
    assert tensorrt == []
