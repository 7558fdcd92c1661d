"""Building, for each version by the surface of its real bindings."""

import io
import json
import sys
from dataclasses import asdict

import fake_builder
import pytest
from fake_builder import VERSIONS, Script

from optcli.models.engines import EngineError, building, driver
from optcli.models.engines.driver import CudaDevice
from optcli.models.engines.job import EngineJob
from optcli.models.engines.process import JobChannel

PROFILE = {"image": {"min": [1, 3, 8, 8], "opt": [4, 3, 8, 8], "max": [8, 3, 8, 8]}}


class Built:
    """One build by a version's fake: what came of it, what the module was told, what was said."""

    def __init__(self, monkeypatch, folder, version, script=None, gpu=True, product="tensorrt", **job):
        self.module = fake_builder.module(version, script, product)
        monkeypatch.setitem(sys.modules, product, self.module)
        device = CudaDevice(0, "H200", "9.0", 1 << 30, "13.0", "580.1")
        monkeypatch.setattr(driver, "present", lambda: gpu)
        monkeypatch.setattr(driver, "devices", lambda: (device,) if gpu else ())
        monkeypatch.setattr(driver, "absence", lambda: EngineError("no driver", hint="find one"))
        self.out = io.StringIO()
        self.plan = folder / "model.plan"
        wanted = {"profiles": [PROFILE], **job}
        self.job = EngineJob(product, str(folder / "model.onnx"), str(self.plan), **wanted)

    def run(self):
        self.result = building.build(json.loads(json.dumps(asdict(self.job))), JobChannel(self.out))
        return self

    def told(self, call):
        return [
            values[0] if len(values) == 1 else values
            for name, *values in self.module.said
            if name == call
        ]

    def events(self, kind):
        lines = [json.loads(line) for line in self.out.getvalue().splitlines()]
        return [line[kind] for line in lines if kind in line]


@pytest.fixture
def build(monkeypatch, tmp_path):
    def make(version, script=None, **wishes):
        return Built(monkeypatch, tmp_path, version, script, **wishes)

    return make


@pytest.mark.parametrize(
    ("version", "strongly_typed", "flags"),
    [
        ("8.6.0", False, ["EXPLICIT_BATCH"]),
        ("10.16.1.11", False, ["EXPLICIT_BATCH"]),
        ("10.16.1.11", True, ["EXPLICIT_BATCH", "STRONGLY_TYPED"]),
        ("11.4.0.106", True, []),
    ],
)
def test_a_network_is_typed_as_the_version_can(build, version, strongly_typed, flags):
    built = build(version, strongly_typed=strongly_typed).run()
    assert built.told("create_network") == [flags]
    assert built.plan.read_bytes() == b"plan"
    assert built.result["version"] == version
    assert built.result["device"]["compute_capability"] == "9.0"


@pytest.mark.parametrize(
    ("version", "said"), [("8.6.0", "STRONGLY_TYPED"), ("11.4.0.106", "weak typing is gone")]
)
def test_typing_that_a_version_does_not_have_is_refused(build, version, said):
    with pytest.raises(EngineError, match=said):
        build(version, strongly_typed=version == "8.6.0").run()


@pytest.mark.parametrize("version", VERSIONS)
def test_flags_are_set_and_cleared_by_name(build, version):
    weak = version == "8.6.0"
    flags = {"TF32": False, "FP16": weak, "INT8": weak, "SPARSE_WEIGHTS": True, "BF16": False}
    built = build(version, strongly_typed=not weak, flags=flags).run()
    assert set(built.told("set_flag")) == ({"FP16", "INT8"} if weak else set()) | {"SPARSE_WEIGHTS"}
    assert "TF32" in built.told("clear_flag")
    assert set(built.result["flags"]) == set(built.told("set_flag"))


@pytest.mark.parametrize(("version", "flag"), [("8.6.0", "STRIP_PLAN"), ("11.4.0.106", "FP16")])
def test_a_flag_that_the_version_lacks_is_named(build, version, flag):
    with pytest.raises(EngineError, match=f"TensorRT {version} has no builder flag {flag}"):
        build(version, strongly_typed=version != "8.6.0", flags={flag: True}).run()


def test_8_6_is_kept_to_its_own_kernels(build):
    built = build("8.6.0", strongly_typed=False).run()
    assert built.told("set_tactic_sources") == [["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]]
    assert built.told("set_preview_feature") == [
        ["DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805", True]
    ]
    assert build("11.4.0.106").run().told("set_tactic_sources") == []


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_the_parser_computes_normalizations_itself_where_it_can_be_told(build, version):
    assert build(version).run().told("parser.set_flag") == ["NATIVE_INSTANCENORM"]


def test_kept_layers_are_bound_to_fp32_under_weak_typing(build):
    built = build("8.6.0", strongly_typed=False, kept=["conv"]).run()
    assert built.told("precision") == ["FLOAT"]
    assert built.told("set_output_type") == [["conv", "FLOAT"]]


def test_a_kept_layer_that_there_is_not_is_named(build):
    with pytest.raises(EngineError, match="no layer of the parsed network is called head"):
        build("8.6.0", strongly_typed=False, kept=["head"]).run()


@pytest.mark.parametrize("version", VERSIONS)
def test_all_settings_reach_the_configuration(build, version):
    built = build(
        version,
        strongly_typed=version != "8.6.0",
        pools={"WORKSPACE": 1 << 20, "TACTIC_DRAM": 1 << 30}
        if version != "8.6.0"
        else {"WORKSPACE": 1 << 20},
        optimization_level=5,
        aux_streams=0,
        hardware="ampere_plus",
    ).run()
    assert ["WORKSPACE", 1 << 20] in built.told("set_memory_pool_limit")
    assert built.told("builder_optimization_level") == [5]
    assert built.told("max_aux_streams") == [0]
    assert built.told("profiling_verbosity") == ["DETAILED"]
    assert built.told("hardware_compatibility_level") == ["AMPERE_PLUS"]
    shapes = ([1, 3, 8, 8], [4, 3, 8, 8], [8, 3, 8, 8])
    assert built.told("add_optimization_profile") == [{"image": shapes}]


def test_a_pool_that_the_version_lacks_is_named_with_those_that_it_has(build):
    with pytest.raises(EngineError, match=r"TensorRT 8\.6\.0 has no MemoryPoolType\.NO_SUCH") as raised:
        build("8.6.0", strongly_typed=False, pools={"NO_SUCH": 1}).run()
    assert "WORKSPACE" in raised.value.hint


@pytest.mark.parametrize(
    ("version", "watched"), [("8.6.0", False), ("10.16.1.11", True), ("11.4.0.106", True)]
)
def test_progress_is_told_where_the_version_has_a_monitor(build, version, watched):
    built = build(version, strongly_typed=version != "8.6.0").run()
    told = [each for each in built.events("progress") if each[1] == "Building"]
    assert bool(told) == watched
    assert all(0 < fraction <= 1 for fraction, _ in told)


def test_several_profiles_are_all_added(build):
    two = [PROFILE, {"image": {"min": [9, 3, 8, 8], "opt": [16, 3, 8, 8], "max": [16, 3, 8, 8]}}]
    assert len(build("11.4.0.106", profiles=two).run().told("add_optimization_profile")) == 2


def test_a_network_whose_sizes_are_fixed_gets_no_profile(build):
    script = Script(inputs={"image": [1, 3, 8, 8]})
    assert build("11.4.0.106", script, profiles=[]).run().told("add_optimization_profile") == []


def test_profiles_are_checked_against_the_parsed_network(build):
    script = Script(inputs={"other": [-1, 3, 8, 8]})
    built = build("11.4.0.106", script)
    with pytest.raises(EngineError, match="profile 0 names image, and the model has other"):
        built.run()
    assert built.told("add_optimization_profile") == []


def test_a_profile_that_tensorrt_refuses_is_explained(build):
    text = (
        "Invalid optimization profiles for input tensors image, please ensure that the optimization "
        "profiles satisfy MIN<=OPT<=MAX."
    )
    script = Script(profile_fits=False, logs=[("ERROR", text)])
    with pytest.raises(
        EngineError, match="takes no optimization profile 0: an optimization profile of image"
    ):
        build("11.4.0.106", script).run()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_parser_cannot_read_is_named_by_node_and_operator(build, version):
    text = "No importer registered for op: NoSuchOp. Plugin not found"
    script = Script(errors=[{"node": 4, "name": "bad1", "operator": "NoSuchOp", "text": text}])
    where = "node number 4" if version == "8.6.0" else r"node bad1 \(NoSuchOp\)"
    with pytest.raises(EngineError, match=f"{where}: the parser knows no such operator"):
        build(version, script, strongly_typed=version != "8.6.0").run()


def test_no_plan_is_an_error_with_tensorrts_last_words(build):
    script = Script(
        plan=None,
        logs=[("WARNING", "hm"), ("ERROR", "Could not find any implementation for node conv.")],
    )
    with pytest.raises(EngineError, match="built no engine: no kernel was found for conv") as raised:
        build("11.4.0.106", script).run()
    assert raised.value.lines == ("[E] Could not find any implementation for node conv.",)
    assert "workspace_mib" in raised.value.hint


def test_a_builder_that_does_not_start_is_an_error_with_the_reason(build):
    logs = [
        ("WARNING", "CUDA initialization failure with error: 35. Please check your CUDA installation")
    ]
    with pytest.raises(EngineError, match="cannot start its builder: CUDA error 35"):
        build("8.6.0", Script(builder_starts=False, logs=logs), strongly_typed=False).run()


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_driver_nothing_of_tensorrt_is_touched(build, version):
    built = build(version, gpu=False)
    with pytest.raises(EngineError, match="no driver"):
        building.build(asdict(built.job), JobChannel(built.out))
    assert built.module.said == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engine_is_inspected_where_it_was_built(build, version):
    layer = {"Name": "conv", "LayerType": "Conv", "Inputs": [{"Format/Datatype": "Half"}]}
    script = Script(information=json.dumps({"Layers": [layer]}))
    found = build(version, script, strongly_typed=version != "8.6.0").run().result["engine"]
    assert found["detailed"]
    assert found["precisions"] == {"fp16": 1}


def test_an_engine_that_does_not_open_is_not_inspected(build):
    assert build("11.4.0.106", Script(opens=False)).run().result["engine"] is None


def test_without_a_gpu_no_runtime_is_started(build):
    built = build("1.7.1.116", gpu=False, product="tensorrt_rtx").run()
    assert built.result["engine"] is None
    assert built.told("Runtime") == []


def test_the_timing_cache_is_kept_and_used_again(build, tmp_path):
    path = tmp_path / "store" / "timing.cache"
    first = build("10.16.1.11", timing_cache=str(path)).run()
    assert first.result["timing_cache"] == {"before": 0, "after": 6}
    second = build("10.16.1.11", timing_cache=str(path)).run()
    assert second.result["timing_cache"] == {"before": 6, "after": 12}
    assert [each.name for each in path.parent.iterdir()] == ["timing.cache"]


def test_a_timing_cache_of_another_device_is_begun_anew(build, tmp_path):
    path = tmp_path / "timing.cache"
    path.write_bytes(b"of another GPU")
    built = build("10.16.1.11", Script(cache_fits=False), timing_cache=str(path)).run()
    assert built.result["timing_cache"]["before"] == 0
    assert path.read_bytes() == b"+timed"


def test_tensorrt_rtx_needs_no_driver_and_has_no_timing_cache(build, tmp_path):
    path = tmp_path / "timing.cache"
    wishes = {"timing_cache": str(path), "targets": ["SM86", "SM120"]}
    built = build("1.7.1.116", gpu=False, product="tensorrt_rtx", **wishes).run()
    assert len(built.events("warned")) == 1
    assert "no timing cache" in built.events("warned")[0]
    assert not path.exists()
    assert built.told("num_compute_capabilities") == [2]
    assert built.told("set_compute_capability") == [["SM86", 0], ["SM120", 1]]
    assert built.result["device"] is None


def test_an_architecture_that_tensorrt_rtx_does_not_know_is_named(build):
    with pytest.raises(EngineError, match=r"TensorRT-RTX 1\.7\.1\.116 has no ComputeCapability\.SM90"):
        build("1.7.1.116", gpu=False, product="tensorrt_rtx", targets=["SM90"]).run()


def test_tensorrt_has_no_targets(build):
    with pytest.raises(EngineError, match="has no ComputeCapability"):
        build("11.4.0.106", targets=["SM86"]).run()
