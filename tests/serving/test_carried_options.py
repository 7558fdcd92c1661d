"""What a variant is measured with is what serves it: every option of every runner, in every consumer.

A server that optcli writes is told an option, or the deployment is refused and names it. Everything
else that runs a variant is handed the options as a whole.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from small_variants import IMAGE, variant

from optcli.artifact import Artifact, Format
from optcli.errors import InputError
from optcli.files.digest import of_value
from optcli.gate import latency as gate_latency
from optcli.gate.baselines.manifest import ManifestVariant, described
from optcli.measure.latency.messages import MeasureRequest
from optcli.measure.latency.process import MeasuringProcess
from optcli.pipeline.plan import PlannedVariant
from optcli.runners import Runner, find, names
from optcli.serving import inference
from optcli.serving.deploy import model_configuration, ray_runtimes, repository
from optcli.serving.deploy.instructions import for_triton
from optcli.serving.deploy.interface import Interface
from optcli.serving.deploy.model_configuration import ModelBatching, ServedModel
from optcli.settings.gate import GateSettings

FILES = Path(ray_runtimes.__file__).parent / "ray_files"
# Each runner with the first format that it runs, which is the one it is measured with here.
FIRST = {name: find(name).runs[0] for name in names()}
# What is no option of a session: servers compile the sizes that were compiled and measured.
SIZES = {"shapes", "batch_sizes"}
# Options of dictionaries and of other values that a type does not give away.
OTHER = {
    ("onnxruntime", "provider_options"): [{"use_arena": False}],
    ("onnxruntime", "cuda_graphs"): [True],
    ("tensorrt", "python"): ["/usr/bin/python3"],
    ("tensorrt_rtx", "kernel_cache"): ["kernels"],
}
# What an option is only taken with.
WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("onnxruntime", "cuda_graphs"): {"provider": "cuda"},
    ("onnxruntime", "tf32"): {"provider": "cuda"},
    ("torchscript", "tf32"): {"device": "cuda"},
    ("torch", "tf32"): {"device": "cuda"},
    ("aoti", "tf32"): {"device": "cuda"},
}
CASES = [
    (name, option)
    for name in names()
    for option in find(name).model_fields
    if option not in SIZES | {"threads"}
]


def others(name: str, option: str) -> list[Any]:
    """Values of an option that are not its default one."""
    if (name, option) in OTHER:
        return OTHER[name, option]
    about = find(name).model_fields[option]
    default, kinds = about.default, [about.annotation]
    values: list[Any] = []
    while kinds:
        kind = kinds.pop()
        if get_origin(kind) is Literal:
            values += get_args(kind)
        elif get_args(kind):
            kinds += get_args(kind)
        elif kind is bool:
            values += [True, False]
        elif kind is int:
            values.append((default or 0) + 1)
    if option == "device" and str in (about.annotation,):
        values = ["GPU.1"] if name == "openvino" else ["cuda:1"]
    return [value for value in values if value != default]


def settings(name: str, option: str, value: Any) -> dict[str, Any]:
    return {"threads": 2, **WITH.get((name, option), {}), option: value}


def test_every_option_has_another_value_to_try():
    """Who adds an option of a kind that is not known here says above which values it may have."""
    assert CASES
    for name, option in CASES:
        assert others(name, option), f"{name}: {option}"
        for value in others(name, option):
            assert getattr(find(name).model_validate(settings(name, option, value)), option) == value


# --- What is handed the options as a whole -----------------------------------------------------------


def told(name: str, options: dict[str, Any]) -> list[Runner]:
    """The runner that each consumer opens, by the options that a plan of a build gives."""
    runner, format = find(name).model_validate(options), FIRST[name]
    planned = PlannedVariant("v", (), name, runner, False, (), (), ())
    carried = planned.runner_options(4)
    artifact = Artifact("a" * 64, format, Path("x"), "fp32", 1, of_value([]), {})
    packed = {
        "artifact": described(artifact).model_dump(mode="json"),
        "runner": name,
        "options": json.loads(json.dumps(carried)),
        "made_by": [],
        "files": {},
    }
    kept = SimpleNamespace(artifact=artifact, runner=name, options=carried)
    built = SimpleNamespace(options=carried, runner=runner)
    return [
        MeasuringProcess(MeasureRequest(artifact, (), name, carried, None, (), 0))._runner,
        find(name).model_validate(ManifestVariant.model_validate(packed).options),
        find(name).model_validate(
            gate_latency.candidate("v", kept, GateSettings(threads=2)).options  # type: ignore[arg-type]
        ),
        find(name).model_validate(
            inference._options(built, 1, 2)  # type: ignore[arg-type]
        ),
    ]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_workers_packs_the_gate_and_infer_run_what_was_measured(name, option):
    for value in others(name, option):
        options = settings(name, option, value)
        for opened in told(name, options):
            assert opened == find(name).model_validate(options)


# --- Bundles: the same calls of the library ----------------------------------------------------------


@dataclass
class Calls:
    """A library that notes how a model is opened."""

    seen: list[Any] = field(default_factory=list)

    def onnxruntime(self) -> ModuleType:
        calls = self

        class SessionOptions:
            def __init__(self) -> None:
                object.__setattr__(self, "said", {})

            def __setattr__(self, name: str, value: Any) -> None:
                self.said[name] = value

            def add_session_config_entry(self, key: str, value: str) -> None:
                self.said[key] = value

        class Session:
            def __init__(self, path: str, options: Any, providers: Any, **_: Any) -> None:
                plain = [each if isinstance(each, str) else each[0] for each in providers]
                given = [dict(each[1]) for each in providers if not isinstance(each, str) and each[1]]
                calls.seen.append((options.said, plain, given))

            def get_inputs(self) -> list[Any]:
                return []

            def get_outputs(self) -> list[Any]:
                return []

        module = ModuleType("onnxruntime")
        levels = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
        module.GraphOptimizationLevel = SimpleNamespace(  # type: ignore[attr-defined]
            **{f"ORT_{level}": level for level in levels}
        )
        module.SessionOptions = SessionOptions  # type: ignore[attr-defined]
        module.InferenceSession = Session  # type: ignore[attr-defined]
        return module

    def openvino(self) -> ModuleType:
        calls = self

        class Compiled:
            inputs = outputs = ()

            def __init__(self, said: dict[str, Any]) -> None:
                self.said = said

            def get_property(self, name: str) -> Any:
                return SimpleNamespace(get_type_name=lambda: self.said[name])

            def create_infer_request(self) -> None:
                return None

        class Core:
            def read_model(self, path: str) -> Any:
                return SimpleNamespace(inputs=(), outputs=(), get_ops=list, get_ordered_ops=list)

            def compile_model(self, model: Any, device: str, said: dict[str, Any]) -> Compiled:
                calls.seen.append((device, dict(said)))
                return Compiled(said)

        module = ModuleType("openvino")
        module.Core = Core  # type: ignore[attr-defined]
        return module


def served(name: str, options: dict[str, Any]):
    return replace(
        variant(Path("model"), FIRST[name], IMAGE, runner={"name": name, **options}),
        effective={"name": name, "threads": options["threads"]},
    )


def opened_by_bundle(name: str, runtime: Any, patch: pytest.MonkeyPatch) -> None:
    """Have the file of a bundle open the model."""
    bundle = {
        "file": runtime.file,
        "threads": 2,
        "runner": {
            "settings": {**runtime.settings, "batch_sizes": [], "padded_from": {}, "any_size": True}
        },
        "inputs": [{"name": "image", "shape": [-1, 3]}],
        "outputs": [],
    }
    feed = {"image": np.zeros((1, 3), np.float32)}
    try:
        _loaded(runtime.model, patch).Model(Path("model"), bundle).run(feed)
    except AttributeError:  # the fake computes nothing
        return


def _loaded(module: str, patch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"carried_{module}", FILES / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, f"carried_{module}", made)
    spec.loader.exec_module(made)
    return made


BUNDLED = [case for case in CASES if (FIRST[case[0]], case[0]) in ray_runtimes._RUNTIMES]


@pytest.mark.parametrize(("name", "option"), BUNDLED)
def test_a_bundle_opens_the_model_as_the_runner_does_or_refuses(name, option, monkeypatch):
    for value in others(name, option):
        built = served(name, settings(name, option, value))
        runtime, refused = None, ""
        try:
            runtime = ray_runtimes.runtime_of(built)
        except InputError as error:
            refused = error.message
        if runtime is None:
            # Bundles are for the CPU: an option for a GPU is refused with the GPU.
            assert "another device" in refused
            continue
        if name not in ("onnxruntime", "openvino"):
            pytest.fail(f"the bundle does not say what becomes of {option}")
        calls = Calls()
        monkeypatch.setitem(sys.modules, name, getattr(calls, name)())
        apart = built.runner.beside_others()
        opened_by_bundle(name, runtime, monkeypatch)
        opened = built.runner.model_copy(update=apart)
        _opened_by_runner(opened, name)
        by_bundle, by_runner = calls.seen
        assert by_bundle == by_runner
        # An option that nothing is told of is lost, in the runner as well. `pin_threads` is the one
        # that replicas have otherwise, which is noted.
        usual = find(name)(threads=2)
        if option in apart:
            assert not runtime.notes
            assert option in ray_runtimes.runtime_of(served(name, {"threads": 2})).notes[0]
            continue
        calls.seen.clear()
        _opened_by_runner(usual.model_copy(update=apart), name)
        assert calls.seen != [by_runner]


def _opened_by_runner(runner: Any, name: str) -> None:
    if name == "onnxruntime":
        runner._open("model/model.onnx", Artifact("k", Format.ONNX, Path("model"), "fp32", 1, "d", {}))
        return
    import openvino

    core = openvino.Core()
    runner._loaded = runner._compiled(core, core.read_model(""))
    runner._require_precision()


def test_replicas_have_the_runners_environment():
    built = served("torchscript", {"threads": 2})
    runtime = ray_runtimes.runtime_of(built)
    assert runtime.environment == built.runner.environment()
    assert runtime.environment["OMP_WAIT_POLICY"] == "PASSIVE"


# --- Triton and KServe -------------------------------------------------------------------------------

TRITON = [
    (name, option)
    for name, option in CASES
    if name in ("onnxruntime", "openvino", "torchscript", "tensorrt")
]


# Without CUDA graphs, and with a TensorRT of its own, whichever interpreter of this machine has one.
AS_TRITON_HAS_IT = [("cuda_graphs", "off"), ("python", "/usr/bin/python3")]


def configured(name: str, options: dict[str, Any], **effective: Any) -> tuple[str, str, Any]:
    """The configuration and the command that starts Triton, as text, and the notes."""
    built = served(name, options)
    if name == "openvino":
        built = replace(built, artifact=replace(built.artifact, format=Format.OPENVINO))
    built = replace(built, effective={**built.effective, **effective})
    backend = repository.backend_for(built)
    one = ServedModel("small", (), Interface((), ()), backend, ModelBatching(8), 1, 5.0, 10, None)
    return str(model_configuration.message(one)), for_triton(one)[0].command, backend.notes


@pytest.mark.parametrize(("name", "option"), TRITON)
def test_triton_is_told_every_option_or_the_deployment_names_it(name, option):
    around = {"threads": 2, **WITH.get((name, option), {})}
    usual = configured(name, around)
    for value in others(name, option):
        # What was measured follows the options.
        measured = {
            ("tensorrt", "cuda_graphs"): {"cuda_graphs": value},
            ("tensorrt", "profile"): {"profile": value},
            ("torchscript", "device"): {"provider": value},
        }.get((name, option), {})
        now, refused = None, ""
        try:
            now = configured(name, settings(name, option, value), **measured)
        except InputError as error:
            refused = error.message
        if now is None:
            assert option in refused or str(value) in refused
        else:
            assert now != usual or (option, value) in AS_TRITON_HAS_IT


@pytest.mark.parametrize(
    ("options", "untold"),
    [
        ({"name": "onnxruntime", "provider": "cuda", "cuda_graphs": True}, "cuda_graphs"),
        (
            {
                "name": "onnxruntime",
                "provider": "cuda",
                "provider_options": {"enable_cuda_graph": True},
            },
            "provider_options",
        ),
        (
            {
                "name": "onnxruntime",
                "provider": "tensorrt",
                "provider_options": {"trt_fp16_enable": True, "trt_int8_enable": True},
            },
            "provider_options",
        ),
        (
            {
                "name": "onnxruntime",
                "provider": "openvino",
                "provider_options": {"num_streams": 2},
            },
            "provider_options",
        ),
        ({"name": "openvino", "precision": "f16"}, "precision"),
        ({"name": "openvino", "pin_threads": False}, "pin_threads"),
    ],
)
def test_what_triton_cannot_be_told_is_refused_by_name(options, untold):
    name = options.pop("name")
    with pytest.raises(InputError, match=f"cannot be told .*: {untold}\n"):
        configured(name, {"threads": 2, **options})


def test_what_nvidia_rounds_by_itself_is_exact_where_it_was_measured_so():
    text, command, _ = configured("onnxruntime", {"threads": 2, "provider": "cuda"})
    assert 'key: "use_tf32"' in text
    assert 'value: "0"' in text
    assert "-e NVIDIA_TF32_OVERRIDE=0" in command
    text, command, _ = configured("onnxruntime", {"threads": 2, "provider": "cuda", "tf32": True})
    assert 'value: "1"' in text
    assert "NVIDIA_TF32_OVERRIDE" not in command


def test_options_of_tensorrt_in_onnx_runtime_have_tritons_names():
    options = {"trt_fp16_enable": True, "trt_max_workspace_size": 1024, "trt_dla_core": 1}
    text, _, _ = configured(
        "onnxruntime", {"threads": 2, "provider": "tensorrt", "provider_options": options}
    )
    for key, value in (
        ("precision_mode", "FP16"),
        ("max_workspace_size_bytes", "1024"),
        ("trt_dla_core", "1"),
    ):
        assert f'key: "{key}"' in text
        assert f'value: "{value}"' in text
    assert "trt_fp16_enable" not in text


def test_an_engine_is_served_as_it_was_measured():
    text, command, _ = configured("tensorrt", {"threads": 2, "device": 1}, cuda_graphs="on", profile=2)
    assert "graphs: true" in text
    assert 'profile: "2"' in text
    assert "--gpus '\"device=1\"'" in command
    plain, command, _ = configured("tensorrt", {"threads": 2}, cuda_graphs="off (not wanted)")
    assert "graphs" not in plain
    assert "--gpus 1 " in command


def test_torchscript_that_was_measured_on_a_gpu_is_served_on_one():
    text, command, _ = configured("torchscript", {"threads": 2}, provider="cuda:0")
    assert "KIND_GPU" in text
    assert "-e NVIDIA_TF32_OVERRIDE=0" in command
    text, command, notes = configured("torchscript", {"threads": 2}, optimize_for_inference=True)
    assert "KIND_CPU" in text
    assert "-e OMP_WAIT_POLICY=PASSIVE" in command
    assert any("optimize_for_inference" in note for note in notes)
