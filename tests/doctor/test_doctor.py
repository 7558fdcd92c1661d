"""What the doctor says of machines, packages, runtimes and stores that are well, and that are not."""

from __future__ import annotations

import json
import sys

import pytest
from commands import optcli_here
from needs import needs
from tiny_project import write_model

from optcli import environment
from optcli.errors import ExitCode
from optcli.models.engines import EngineError, driver
from optcli.report import terminal
from optcli.scaffold.doctor import Check, Examination, document, examine, machine, packages, storage
from optcli.scaffold.doctor.runtimes import RUNTIMES, TriedRuntime, runtime_checks
from optcli.store import Store
from optcli.workers import confinement


def one(state, core=False, name="x"):
    return Check(group="g", name=name, state=state, found="f", core=core)


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([one("ok", core=True), one("broken"), one("absent"), one("note")], ExitCode.DONE),
        ([one("ok"), one("broken", core=True)], ExitCode.MISSING),
        ([one("absent", core=True)], ExitCode.MISSING),
    ],
)
def test_the_exit_code_is_the_cores(checks, code):
    assert Examination(checks=tuple(checks)).exit_code == code


def test_the_lines_name_what_is_broken():
    checks = (one("ok"), one("broken", core=True, name="torch"))
    text = terminal.text(document(Examination(checks=checks)))
    assert "torch  broken  f\n" in text
    assert text.endswith("\nthe core does not work: torch\n")


@pytest.mark.parametrize(
    ("quota", "limit"), [(1.5, "limited by a CPU quota of 1.5 cores"), (None, "limited by affinity")]
)
def test_what_limits_the_cores_is_named(monkeypatch, quota, limit):
    monkeypatch.setattr(environment, "cpu_quota", lambda: quota)
    monkeypatch.setattr(environment, "usable_cores", lambda: 1)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    assert limit in machine.cores()[0].found


@pytest.mark.parametrize(
    ("flags", "state", "says"),
    [
        (["avx2", "avx512_vnni"], "ok", "VNNI (avx512_vnni)"),
        (["avx2", "avx_vnni", "amx_int8"], "ok", "AMX"),
        (["asimddp"], "ok", "dot products"),
        (["avx2", "fma"], "note", "saturates"),
        ([], "note", "slower than FP32"),
    ],
)
def test_what_the_flags_mean_for_int8(flags, state, says):
    int8, _ = machine.arithmetic({"flags": flags})
    assert int8.state == state
    assert says in int8.found
    assert (state == "ok") or int8.hint or not flags


def test_bf16_is_told_with_what_openvino_makes_of_it():
    assert "optcli has it stay in f32" in machine.arithmetic({"flags": ["amx_bf16"]})[1].found
    assert "AVX-512" in machine.arithmetic({"flags": ["avx512f"]})[1].found


def test_an_old_python():
    assert machine.python((3, 10, 1)).state == "broken"
    assert machine.python(sys.version_info[:3]).state == "ok"


def test_a_gpu_whose_driver_does_not_answer(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = machine.gpu()
    assert (found.state, bool(found.hint)) == ("broken", True)
    assert "version mismatch" in found.found
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 570.86, 143771 MiB, 9.0'\n")
    assert machine.gpu().found == "NVIDIA H200 (driver 570.86, 143771 MiB, compute capability 9.0)"


def test_both_onnxruntimes_at_once():
    assert packages.both_onnxruntimes({"onnxruntime-gpu": "1.2"}) == []
    (found,) = packages.both_onnxruntimes({"onnxruntime": "1.1", "onnxruntime-gpu": "1.2"})
    assert found.state == "broken"
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in found.hint


@pytest.mark.parametrize(
    ("torch", "torchvision", "wanted", "names"),
    [
        ("2.12.0+cpu", "0.27.0", "2.12.0", []),
        ("2.12.0", "0.27.0", None, []),
        ("2.13.0+cu130", "0.28.0", "2.13.0", ["torch version"]),
        ("2.12.0", "0.28.0", "2.13.0", ["torchvision version"]),
        ("2.13.0", "0.27.0", "2.12.0", ["torch version", "torchvision version"]),
        (None, None, None, []),
    ],
)
def test_torch_and_torchvision(torch, torchvision, wanted, names):
    found = packages.torch_versions(torch, torchvision, wanted)
    assert [each.name for each in found] == names
    assert all(each.core and each.hint for each in found)


def test_a_runtime_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(environment, "version", lambda name: None)
    (found,) = runtime_checks(TriedRuntime("openvino", "openvino", "openvino_devices", core=True))
    assert (found.state, found.core, found.hint) == ("absent", True, "pip install openvino")


def test_tensorrt_is_not_touched_without_a_gpu(monkeypatch):
    monkeypatch.setattr(environment, "version", lambda name: "11.4")
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    (found,) = runtime_checks(TriedRuntime("tensorrt", "tensorrt", "no_such_trial", gpu=True))
    assert (found.state, found.found) == ("absent", "11.4, not tried: there is no GPU")


@pytest.mark.slow
def test_a_library_that_does_not_load_and_one_that_crashes(tmp_path, monkeypatch):
    package = tmp_path / "openvino"
    package.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    trial = TriedRuntime("openvino", "openvino", "openvino_devices", core=True)
    (package / "__init__.py").write_text("raise ImportError('libopenvino.so.2640: no such file')\n")
    (found,) = runtime_checks(trial)
    assert (found.state, found.core) == ("broken", True)
    assert "libopenvino.so.2640: no such file" in found.found
    assert found.hint == "pip install --force-reinstall --no-deps openvino"
    (package / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (found,) = runtime_checks(trial)
    assert found.state == "broken"
    assert "segmentation fault" in found.found


def test_a_store_that_is_damaged_and_one_that_cannot_be_written(tmp_path, monkeypatch):
    place, _, entries = storage.checks(tmp_path / "none")
    assert (place.state, entries.state) == ("ok", "ok")
    assert not (tmp_path / "none").exists(), "looking makes nothing"
    store = Store(tmp_path / "store")
    with store.lock("artifact", "a" * 64), store.work("artifact", "a" * 64) as work:
        write_model(work / "model.onnx")
        made = store.put("artifact", "a" * 64, work, {}, {"step": "x"})
    assert storage.checks(store.root)[2].found.startswith("1 entry,")
    file = made.path / "model.onnx"
    file.chmod(0o644)
    file.write_bytes(b"x" * file.stat().st_size)
    entries = storage.checks(store.root)[2]
    assert (entries.state, entries.hint) == ("broken", "optcli cache verify --repair")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert storage.checks(store.root)[0].state == "broken"


@pytest.mark.slow
@pytest.mark.parametrize(
    "runtime", [each for each in RUNTIMES if each.core], ids=lambda each: each.name
)
def test_what_is_installed_here_runs(runtime):
    found = runtime_checks(runtime)
    assert found[0].core
    assert found[0].state == "ok", found[0]
    assert not [each for each in found if each.state == "broken" and not environment.has_gpu()]


@pytest.mark.long
@pytest.mark.slow
def test_torch_compile_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    (found,) = runtime_checks(next(each for each in RUNTIMES if each.name == "torch.compile"))
    assert (found.state, found.core) == ("broken", False)
    assert "apt-get install g++" in found.hint


@pytest.mark.long
@pytest.mark.slow
def test_the_whole_examination_as_json(tmp_path, monkeypatch):
    import optcli.scaffold.doctor as doctor

    monkeypatch.setattr(doctor, "RUNTIMES", ())
    found = examine(tmp_path)
    assert {each.group for each in found.checks} == {"machine", "packages", "store"}
    assert Examination.model_validate_json(found.model_dump_json(by_alias=True)) == found
    package = tmp_path / "openvino"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('broken on purpose')\n")
    # What each runtime says when it works is tested below, and all of it by a tutorial.
    few = [each for each in RUNTIMES if each.name in ("torch", "openvino")]
    monkeypatch.setattr(doctor, "RUNTIMES", few)
    said = optcli_here("doctor", "--json", folder=tmp_path, PYTHONPATH=str(tmp_path), OPTCLI_STORE="")
    assert said.code == 3, said.err
    checks = {each["name"]: each for each in json.loads(said.out)["checks"]}
    assert checks["openvino"]["state"] == "broken"
    assert checks["torch"]["state"] == "ok"
    assert not (tmp_path / "artifacts").exists()


def test_the_driver_of_cuda(monkeypatch):
    missing = EngineError("there is no NVIDIA driver here: libcuda.so.1", hint="run elsewhere")
    monkeypatch.setattr(driver, "absence", lambda: missing)
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    assert (machine.cuda_driver().state, machine.cuda_driver().hint) == ("absent", "")
    monkeypatch.setattr(environment, "has_gpu", lambda: True)
    found = machine.cuda_driver()
    assert (found.state, found.found, found.hint) == ("broken", missing.message, "run elsewhere")
    card = driver.CudaDevice(0, "NVIDIA H200", "9.0", 150_000_000_000, "13.0", "580.65.06")
    monkeypatch.setattr(driver, "absence", lambda: None)
    monkeypatch.setattr(driver, "devices", lambda: (card,))
    found = machine.cuda_driver()
    assert found.state == "ok"
    assert found.found == (
        "580.65.06, for CUDA 13.0 and older: NVIDIA H200, compute capability 9.0, 150 GB"
    )


def elsewhere():
    return next(each for each in RUNTIMES if each.name == "OPTCLI_TENSORRT_PYTHON")


def test_no_other_interpreter_is_looked_for_where_none_is_named(monkeypatch):
    monkeypatch.delenv("OPTCLI_TENSORRT_PYTHON", raising=False)
    assert runtime_checks(elsewhere()) == []


@pytest.mark.slow
def test_another_interpreter_that_is_not_there_and_one_without_tensorrt(monkeypatch, tmp_path):
    monkeypatch.setenv("OPTCLI_TENSORRT_PYTHON", str(tmp_path / "python3.10"))
    (found,) = runtime_checks(elsewhere())
    assert (found.state, found.core) == ("broken", False)
    assert "python3.10 cannot be started: No such file or directory" in found.found
    assert "OPTCLI_TENSORRT_PYTHON" in found.hint
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("OPTCLI_TENSORRT_PYTHON", str(bare))
    (found,) = runtime_checks(elsewhere())
    assert found.state == "broken"
    assert "TensorRT cannot be loaded: No module named 'tensorrt'" in found.found


@pytest.mark.slow
def test_tensorrt_rtx_builds_an_engine_with_and_without_a_gpu():
    needs("package", "tensorrt_rtx")
    runtime = next(each for each in RUNTIMES if each.name == "tensorrt_rtx")
    (found,) = runtime_checks(runtime)
    assert found.state != "broken", found.found
    if not driver.present():
        assert (found.state, found.hint) == ("note", "")
        assert found.found.endswith("builds engines, which need a GPU to run")


@pytest.mark.parametrize(
    ("walls", "state", "said"),
    [
        (confinement.Walls(files=True, network=True), "ok", "Landlock and seccomp: workers"),
        (confinement.Walls(files=False, network=True), "note", "seccomp, for the network alone"),
        (confinement.Walls(files=False, network=False), "note", "none"),
    ],
)
def test_the_wall_around_models_from_elsewhere_is_named(walls, state, said):
    check = machine.walls(walls, apart=False)
    assert (check.state, check.found[: len(said)]) == (state, said)
    assert bool(check.hint) == (state == "note")


def test_what_a_confined_worker_can_still_do_is_named():
    both = confinement.Walls(files=True, network=True)
    here, elsewhere = (machine.walls(both, apart=apart).found for apart in (True, False))
    assert "seccomp and namespaces: workers" in here
    assert "seccomp: workers" in elsewhere
    assert ["cores" in each for each in (here, elsewhere)] == [False, True]
