"""ONNX Runtime's providers: never the CPU in another's stead, options that are known, calls on a GPU.

Falling back is real here wherever there is no GPU: `onnxruntime-gpu` then computes on the CPU and does
not raise. Calls on a GPU are tried on a fake driver that holds work back until somebody waits.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from needs import needs

from optcli import environment
from optcli.errors import MissingError, RunnerError
from optcli.models.formats import onnxruntime_providers
from optcli.models.formats.onnxruntime_providers import PROVIDERS
from optcli.runners import _onnxruntime
from optcli.runners._onnxruntime import (
    OnnxruntimeCudaCalls,
    assigned,
    on_the_cpu,
    opened,
    require_used,
)
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

WITHOUT_GPU = pytest.mark.needs("no gpu")  # where there is one, nothing falls back


@pytest.fixture
def model(tmp_path):
    """x + x, of any number of rows of two."""
    from onnx import TensorProto, helper, save

    node = helper.make_node("Add", ["x", "x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in ("x", "y")]
    graph = helper.make_graph([node], "tiny", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(made, tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def settings():
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 4
    return made


@WITHOUT_GPU
def test_onnx_runtime_falls_back_silently_and_we_do_not(model):
    needs("onnxruntime for gpus")
    silent = onnxruntime.InferenceSession(model, settings(), providers=["CUDAExecutionProvider"])
    assert silent.get_providers() == ["CPUExecutionProvider"], "what this guards against"
    with pytest.raises(RunnerError, match="the provider cuda cannot be used") as failure:
        opened(model, settings(), "cuda", {})
    assert "fell back to CPUExecutionProvider" in failure.value.message
    assert "onnxruntime-gpu[cuda,cudnn]" in failure.value.hint
    with pytest.raises(RunnerError, match="the provider tensorrt cannot be used") as failure:
        opened(model, settings(), "tensorrt", {})
    assert "tensorrt_engine" in failure.value.hint


def test_a_provider_that_this_build_lacks_and_no_plug_in_brings(model, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    for name in ("openvino", "tensorrt_rtx", "webgpu", "mlx"):
        with pytest.raises(RunnerError, match="is built without it") as failure:
            opened(model, settings(), name, {})
        assert failure.value.hint.startswith("pip install onnxruntime-ep-")


def test_a_plug_in_that_finds_nothing_to_run_on_and_one_that_does_not_load(model, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=None))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime_providers, "plugin_devices", lambda provider: [])
    with pytest.raises(RunnerError, match="finds nothing here that it can run on"):
        opened(model, settings(), "openvino", {})

    def fails(provider):
        raise RuntimeError("libcuda.so.1: cannot open shared object file\nand more")

    monkeypatch.setattr(onnxruntime_providers, "plugin_devices", fails)
    with pytest.raises(RunnerError, match=r"libcuda\.so\.1: cannot open shared object file"):
        opened(model, settings(), "tensorrt_rtx", {})


@pytest.mark.parametrize("name", ["openvino", "tensorrt_rtx"])
def test_a_plug_in_that_is_installed_runs_or_says_why_not(model, name):
    package = PROVIDERS[name].plugin
    needs("package", package)
    try:
        usable = bool(onnxruntime_providers.plugin_devices(PROVIDERS[name]))
    except Exception:
        usable = False
    if not usable:
        with pytest.raises(RunnerError, match=f"the provider {name} cannot be used"):
            opened(model, settings(), name, {})
        return
    session = opened(model, settings(), name, {})
    assert session.get_providers()[0] == PROVIDERS[name].name
    assert session.run(None, {"x": np.ones((3, 2), np.float32)})[0].tolist() == [[2.0, 2.0]] * 3


def test_a_plug_in_that_fails_in_a_call_does_not_go_on_with_the_cpu(model, monkeypatch):
    """ONNX Runtime does so, in the middle of a call, unless it is told not to."""
    asked = []
    device = SimpleNamespace(type=SimpleNamespace(name="NPU"), vendor="Fake")
    offered = SimpleNamespace(ep_name="QNNExecutionProvider", device=device)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=None))
    monkeypatch.setattr(onnxruntime_providers, "plugin_devices", lambda provider: [offered] * 2)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [offered], raising=False)
    session = SimpleNamespace(get_providers=lambda: ["QNNExecutionProvider"])

    def start(path, options, **more):
        asked.append(more)
        return session

    monkeypatch.setattr(onnxruntime, "InferenceSession", start)
    given = SimpleNamespace(
        add_session_config_entry=lambda *_: None,
        add_provider_for_devices=lambda devices, options: asked.append((len(devices), options)),
    )
    assert opened(model, given, "qnn", {"backend_type": "htp"}) is session
    assert asked == [(1, {"backend_type": "htp"}), {"enable_fallback": 0}]
    # Registered, it is listed with those that ONNX Runtime has: it is opened as a plug-in again.
    names = ["QNNExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    assert opened(model, given, "qnn", {}) is session
    assert _onnxruntime.device_of(PROVIDERS["qnn"]) == "NPU of Fake"
    monkeypatch.setattr(onnxruntime, "get_ep_devices", list, raising=False)
    assert _onnxruntime.device_of(PROVIDERS["qnn"]) is None


def test_qualcomm_s_simulator_computes_and_what_it_cannot_is_an_error(model):
    needs("package", "onnxruntime_qnn")
    for _ in range(2):
        options = settings()
        options.add_free_dimension_override_by_name("N", 3)
        session = opened(model, options, "qnn", {"backend_type": "htp"})
        assert session.run(None, {"x": np.ones((3, 2), np.float32)})[0].tolist() == [[2.0, 2.0]] * 3
    with pytest.raises(RunnerError, match="takes none of the 1 operators") as failure:
        opened(model, settings(), "qnn", {"backend_type": "htp"})
    assert "shapes: static" in failure.value.hint


def test_a_provider_that_is_given_nothing_to_do_is_an_error(model):
    options = settings()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    assert assigned(session) == {"CPUExecutionProvider": 1}
    idle = SimpleNamespace(
        get_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
        get_provider_graph_assignment_info=session.get_provider_graph_assignment_info,
    )
    with pytest.raises(RunnerError, match="takes none of the 1 operators: CPUExecutionProvider"):
        require_used(idle, "cuda")


def test_operators_that_are_left_to_the_cpu_are_said():
    assert on_the_cpu({"CUDAExecutionProvider": 95, "CPUExecutionProvider": 5}) == []
    (flag,) = on_the_cpu({"CUDAExecutionProvider": 5, "CPUExecutionProvider": 5})
    assert (flag.kind, flag.figures) == ("operators-on-cpu", {"operators": 5, "total": 10})


@pytest.mark.parametrize(
    ("provider", "options", "says"),
    [
        ("cuda", {"use_tf_32": 1}, "did you mean 'use_tf32'?"),
        ("tensorrt", {"fp16_enable": True}, "did you mean 'trt_fp16_enable'?"),
        ("cuda", {"user_compute_stream": 1}, "given by optcli"),
        ("cpu", {"device_id": 0}, "cpu knows no option 'device_id'"),
        ("qnn", {"htp_performance": "burst"}, "did you mean 'htp_performance_mode'?"),
        ("webgpu", {"preferred_layout": "NHWC"}, "did you mean 'preferredLayout'?"),
    ],
)
def test_options_that_a_provider_does_not_know(provider, options, says):
    with pytest.raises(ValueError, match="provider_options") as failure:
        OnnxruntimeRunner(provider=provider, provider_options=options)
    assert says in str(failure.value)


def test_known_options_and_what_is_for_gpus_alone():
    runner = OnnxruntimeRunner(provider="tensorrt", provider_options={"trt_fp16_enable": True})
    assert runner.requires().gpu
    assert _onnxruntime.words({"a": True, "b": False, "c": 4, "d": "x"}) == {
        "a": "1", "b": "0", "c": "4", "d": "x",
    }  # fmt: skip
    assert runner.environment()["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "NVIDIA_TF32_OVERRIDE" not in OnnxruntimeRunner(provider="cuda", tf32=True).environment()
    assert "NVIDIA_TF32_OVERRIDE" not in OnnxruntimeRunner().environment()
    with pytest.raises(ValueError, match="are for GPUs"):
        OnnxruntimeRunner(cuda_graphs=True)
    assert not OnnxruntimeRunner(provider="openvino").requires().gpu
    needs = OnnxruntimeRunner(provider="tensorrt_rtx").requires()
    assert (needs.gpu, "onnxruntime_ep_nv_tensorrt_rtx" in needs.packages) == (True, True)
    assert OnnxruntimeRunner(provider="qnn").requires().packages[-1] == "onnxruntime_qnn"
    assert not OnnxruntimeRunner(provider="qnn").requires().gpu


@WITHOUT_GPU
def test_a_runner_without_a_gpu_says_what_is_missing(model, monkeypatch):
    assert [one.what for one in environment.missing(OnnxruntimeRunner(provider="cuda").requires())]
    from optcli.artifact import Artifact, Format

    made = Artifact("key", Format.ONNX, __import__("pathlib").Path(model).parent, "fp32", 0, "", {})
    spec = TensorSpec(name="x", shape=["batch", 2])
    with pytest.raises(MissingError, match="the provider cuda needs a GPU"):
        OnnxruntimeRunner(provider="cuda").open(made, [spec])


class Gpu:
    """Memory of the host; copies and computations happen when somebody waits for the stream."""

    device = SimpleNamespace(index=0, name="fake")

    def __init__(self):
        self.log, self.work, self.kept = [], [], []

    def create(self, function, destroy, *arguments):
        if function in ("cuMemAlloc_v2", "cuMemHostAlloc"):
            memory = (ctypes.c_ubyte * arguments[0])()
            self.kept.append(memory)
            return ctypes.c_void_p(ctypes.addressof(memory))
        return ctypes.c_void_p(id(object()))

    def destroy(self, handle):
        self.log.append("free")

    def call(self, function, *arguments):
        if function.startswith("cuMemcpy"):
            target, source = (each.value if hasattr(each, "value") else each for each in arguments[:2])
            size = arguments[2]
            self.work.append(lambda: ctypes.memmove(target, source, size))
        if function == "cuStreamSynchronize":
            work, self.work = self.work, []
            for each in work:
                each()
        if function == "cuEventElapsedTime":
            arguments[0]._obj.value = 0.25
        said = {"cuMemcpyHtoD": "in", "cuMemcpyDtoH": "out"}
        said |= {"cuStreamSynchronize": "wait", "cuEventRecord": "event"}
        known = (word for start, word in said.items() if function.startswith(start))
        self.log.append(next(known, function))


class Binding:
    """I/O binding of a network that doubles: where an output is not bound, it takes memory itself."""

    def __init__(self, gpu):
        self.gpu, self.inputs, self.outputs = gpu, {}, {}

    def bind_input(self, name, device, index, dtype, shape, address):
        self.inputs[name] = (dtype, tuple(shape), address)

    def bind_output(self, name, device, index, kind=None, shape=None, address=None):
        self.outputs[name] = address

    def get_outputs(self):
        shape = self.inputs["x"][1]
        return [
            SimpleNamespace(
                data_type=lambda: "tensor(float)",
                element_type=lambda: 1,
                shape=lambda: list(shape),
                data_ptr=lambda: self.where,
            )
        ]

    def run(self, options):
        dtype, shape, address = self.inputs["x"]
        count = int(np.prod(shape))
        made = np.empty(count, dtype)
        self.gpu.kept.append(made)
        self.where = where = self.outputs["y"] or made.ctypes.data

        def doubled():
            source = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
            ctypes.memmove(where, (source * 2).ctypes.data, 4 * count)

        self.gpu.work.append(doubled)
        try:
            graph = options.get_run_config_entry("gpu_graph_id")
        except RuntimeError:  # was not set
            graph = "-"
        self.gpu.log.append(f"run {graph}")


@pytest.fixture
def calls():
    from optcli.models.engines.driver import Stream

    gpu, bindings = Gpu(), []

    def binding():
        bindings.append(Binding(gpu))
        return bindings[-1]

    session = SimpleNamespace(
        io_binding=binding, run_with_iobinding=lambda each, options: each.run(options)
    )

    def make(*, graphs):
        made = OnnxruntimeCudaCalls(session, ["y"], frozenset(), gpu, Stream(gpu), graphs=graphs)
        return made, gpu, bindings

    return make


def call(made, rows):
    made.bind({"x": np.full((rows, 2), rows, np.float32)})
    made.execute()
    return made.fetch()["y"]


def test_a_call_on_a_gpu_is_in_order_and_timed_around_the_computing(calls):
    made, gpu, _ = calls(graphs=False)
    assert made.device_ms() is None
    assert call(made, 2).tolist() == [[4.0, 4.0]] * 2
    assert gpu.log == ["in", "event", "run -", "event", "wait", "out", "wait"]
    assert made.device_ms() == 0.25


def test_other_shapes_take_the_same_memory_and_results_stay(calls):
    made, _, bindings = calls(graphs=False)
    first = call(made, 3)
    call(made, 1)
    assert call(made, 5).shape == (5, 2)
    assert first.tolist() == [[6.0, 6.0]] * 3
    assert len(bindings) == 1


def test_what_is_still_being_copied_is_not_written_over(calls):
    made, gpu, _ = calls(graphs=False)
    made.bind({"x": np.ones((1, 2), np.float32)})
    made.bind({"x": np.full((1, 2), 3, np.float32)})
    assert gpu.log == ["in", "wait", "in"]
    made.execute()
    assert made.fetch()["y"].tolist() == [[6.0, 6.0]]


def test_a_cuda_graph_for_each_shape_at_addresses_that_stay(calls):
    made, gpu, bindings = calls(graphs=True)
    for rows in (2, 3, 2, 3):
        assert call(made, rows).tolist() == [[2.0 * rows] * 2] * rows
    runs = [each for each in gpu.log if each and each.startswith("run")]
    assert runs == ["run -1", "run 1", "run -1", "run 2", "run 1", "run 2"]
    assert len(bindings) == 2
    assert all(each.outputs["y"] for each in bindings), "outputs are bound to memory that stays"


def test_bfloat16_becomes_float32():
    halves = np.array([1.5, -2.0], np.float32).view(np.uint32) >> 16
    plain = _onnxruntime._plain(halves.astype(np.uint16), "tensor(bfloat16)")
    assert plain.tolist() == [1.5, -2.0]
    assert _onnxruntime._type("tensor(bfloat16)").itemsize == 2
    assert _onnxruntime._type("tensor(double)") == np.float64


def test_nothing_bound_says_so(calls):
    with pytest.raises(RunnerError, match="nothing is bound"):
        calls(graphs=False)[0].execute()


def test_layers_that_float64_lacks_are_said(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    from optcli.artifact import Artifact, Format

    sizes = {"image": [1, 1, 4, 4], "kernel": [1, 1, 3, 3], "out": [1, 1, 2, 2]}
    image, kernel, out = (
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in sizes.items()
    )
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "kernel"], ["out"])], "g", [image, kernel], [out]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    double = Artifact("key", Format.ONNX, tmp_path, "fp64", 0, "digest", {"outputs": ["out"]})
    with pytest.raises(RunnerError) as caught:
        OnnxruntimeRunner(threads=1).load(double)
    assert ".float()" in caught.value.hint
