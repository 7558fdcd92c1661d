"""The fake TensorRT has nothing that the real ones lack: what an execution calls is there.

Held against what `extract_surface.py` wrote down of 8.6 to 11.4, and against TensorRT-RTX itself.
"""

import importlib
import json
from pathlib import Path

import fake_tensorrt
import pytest
from needs import imported

pytestmark = pytest.mark.slow

CLASSES = ("Runtime", "ICudaEngine", "IExecutionContext", "Refitter", "OnnxParserRefitter")
SURFACES = sorted((Path(__file__).parent / "surface").glob("*.json"))
ENUMS = ("DataType", "TensorIOMode", "TensorLocation")


# What their instances have besides.
INSTANCES = {
    "Runtime": {"engine_host_code_allowed"},
    "ICudaEngine": {"num_io_tensors", "num_optimization_profiles", "num_layers", "num_aux_streams"},
    "IExecutionContext": {"engine"},
}


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_") and name != "last"}


@pytest.fixture(scope="module")
def rtx():
    return imported("tensorrt_rtx")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("version", SURFACES, ids=[path.stem for path in SURFACES])
def test_every_version_has_what_the_fake_has(version, name):
    known = json.loads(version.read_text())["classes"]
    if name not in known:
        assert name == "OnnxParserRefitter"  # execution.py asks before it uses it
        assert version.stem == "tensorrt-8.6.0"
        return
    lacking = (public(getattr(fake_tensorrt, name)) | INSTANCES.get(name, set())) - set(known[name])
    assert not lacking


@pytest.mark.parametrize("name", CLASSES)
def test_what_the_fake_has_the_real_one_has(rtx, name):
    kind = getattr(fake_tensorrt, name)
    lacking = (public(kind) | INSTANCES.get(name, set())) - set(dir(getattr(rtx, name)))
    assert not lacking


def test_what_only_tensorrt_rtx_has(rtx):
    fake = fake_tensorrt.as_rtx()
    assert hasattr(rtx.ICudaEngine, "create_runtime_config")
    assert public(fake.ICudaEngine) <= set(dir(rtx.ICudaEngine))
    for name in ("IRuntimeConfig", "IRuntimeCache"):
        assert public(getattr(fake_tensorrt, name)) <= set(dir(getattr(rtx, name)))
    assert {each.name for each in fake.CudaGraphStrategy} <= set(rtx.CudaGraphStrategy.__members__)


def test_there_are_surfaces():
    assert {path.stem.partition("-")[0] for path in SURFACES} == {"tensorrt", "tensorrt_rtx"}
    assert len(SURFACES) >= 4


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_these_members(rtx, name):
    known = set(getattr(rtx, name).__members__) | {"NONE"}
    assert {each.name for each in getattr(fake_tensorrt, name)} <= known


def test_an_allocator_is_asked_by_these_names(rtx):
    said = rtx.IOutputAllocator.__doc__
    for name in ("reallocate_output", "reallocate_output_async", "notify_shape"):
        assert f"def {name}(self, tensor_name" in said


def test_an_allocator_and_a_logger_are_made_of_the_real_bases(rtx):
    from optcli.models.engines import messages
    from optcli.models.engines.running import slots

    heard = []
    messages.collector(rtx, heard.append).log(rtx.ILogger.Severity.ERROR, "no")
    assert [str(line) for line in heard] == ["[E] no"]
    allocator = slots.allocator_of(rtx, None)
    assert isinstance(allocator, rtx.IOutputAllocator)
    allocator.notify_shape("logits", rtx.Dims([2, 3]))
    assert allocator.shape == (2, 3)


def test_real_enums_and_shapes_are_read_as_the_fake_ones(rtx):
    from optcli.models.engines.bindings import dimensions, enum_name

    assert enum_name(rtx.TensorIOMode.INPUT) == "INPUT"
    assert enum_name(rtx.TensorLocation.HOST) == "HOST"
    assert enum_name(rtx.DataType.BF16) == "BF16"
    assert dimensions(rtx.Dims([-1, 3])) == [-1, 3]


def test_its_runtime_configuration_takes_these_values(rtx):
    # The only instance there is without a GPU is the class itself: properties that can be set.
    assert rtx.IRuntimeConfig.cuda_graph_strategy.fset is not None
    assert rtx.Runtime.engine_host_code_allowed.fset is not None


def test_the_module_is_loaded_by_name(rtx):
    assert importlib.import_module("optcli.models.engines.bindings").load("tensorrt_rtx").module is rtx
