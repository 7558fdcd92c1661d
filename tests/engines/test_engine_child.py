"""A process of its own for TensorRT's work: what it says, and every way in which it can end."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import engine_jobs
import pytest

from optcli.models import engines
from optcli.models.engines import EngineError, child

HERE = Path(__file__).parent
ROOM = Path(engines.__file__).parent
MODULES = sorted(ROOM.rglob("*.py"))
# Never reached by what ends by itself.
LONG_S = 300.0


@pytest.fixture(autouse=True)
def _jobs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def run(name, job=None, **more):
    return child.run(f"engine_jobs:{name}", job or {}, **{"timeout_s": LONG_S, **more})


def test_a_result_and_events_come_back_whatever_is_printed():
    heard = []
    assert run("echo", {"a": [1, "é"]}, on_event=heard.append) == {"a": [1, "é"]}
    assert heard == [{"progress": [0.5, "half"]}, {"warned": "careful"}]


def test_a_crash_is_an_error_with_the_last_words_and_what_they_mean():
    with pytest.raises(EngineError) as raised:
        run("crash")
    assert "crashed with a segmentation fault (SIGSEGV, exit 139)" in raised.value.message
    assert "no kernel was found for conv1" in raised.value.message
    assert raised.value.lines == ("[E] first", f"[E] {engine_jobs.SAID}")


@pytest.mark.slow
def test_a_crash_behind_a_script_is_told_as_one(tmp_path):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={HERE} {sys.executable} "$@"\n')
    script.chmod(0o755)
    with pytest.raises(EngineError, match=r"segmentation fault \(SIGSEGV, exit 139\)"):
        run("crash", python=str(script))


def test_one_that_ends_early_is_an_error():
    with pytest.raises(EngineError, match="ended early with exit code 3"):
        run("leave")


@pytest.mark.long
@pytest.mark.slow
def test_the_time_limit_ends_it_and_says_what_was_heard():
    with pytest.raises(EngineError, match="took more than 2 seconds and was stopped") as raised:
        run("hang", timeout_s=2)
    assert "max_seconds" in raised.value.hint


def test_its_own_errors_come_back_as_they_are():
    with pytest.raises(EngineError) as raised:
        run("refuse")
    wanted = {"message": "no", "place": "here", "hint": "try again", "lines": ["[E] x"]}
    assert raised.value.to_record() == wanted


def test_what_python_raises_is_explained_by_the_log():
    with pytest.raises(EngineError, match="ValueError: odd: no kernel was found for conv1"):
        run("fail")


def test_whoever_stops_listening_ends_it():
    pids = []

    class Stopped(Exception):
        pass

    def stop(event):
        pids.append(event["pid"])
        raise Stopped

    with pytest.raises(Stopped):
        run("hang", on_event=stop)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_it_ends_when_its_parent_does():
    process = subprocess.Popen(
        child.command(None, "optcli.models.engines.process"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child.environment(None),
    )
    process.stdin.write(json.dumps({"function": "engine_jobs:hang", "job": {}}).encode() + b"\n")
    process.stdin.flush()
    assert b"log" in process.stdout.readline()  # it is at work
    process.stdin.close()
    assert process.wait(timeout=LONG_S) == -9
    process.stdout.close()


def test_an_interpreter_that_there_is_not_is_named():
    with pytest.raises(EngineError, match="/no/such/python cannot be started: No such file") as raised:
        run("echo", python="/no/such/python")
    assert "OPTCLI_TENSORRT_PYTHON" in raised.value.hint


def test_which_interpreter(monkeypatch):
    monkeypatch.delenv(child.PYTHON, raising=False)
    assert child.interpreter("tensorrt") is None
    monkeypatch.setenv(child.PYTHON, "/opt/python3.10")
    assert child.interpreter("tensorrt") == "/opt/python3.10"
    assert child.interpreter("tensorrt", "/mine") == "/mine"
    assert child.interpreter("tensorrt_rtx") is None


def test_another_interpreter_gets_none_of_this_ones_packages(monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/opt")
    assert not {"PYTHONPATH", "PYTHONHOME"} & child.environment("/opt/python3.10").keys()
    assert child.environment(None)["PYTHONPATH"] == str(HERE)


def test_cuda_loads_kernels_when_they_are_wanted(monkeypatch):
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    assert child.environment(None)["CUDA_MODULE_LOADING"] == "LAZY"
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    assert child.environment(None)["CUDA_MODULE_LOADING"] == "EAGER", "who sets it decides"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_module_is_python_3_10_with_the_standard_library_and_numpy(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    newer = {"StrEnum", "Self", "UTC", "ExceptionGroup", "BaseExceptionGroup", "tomllib", "assert_type"}
    for node in ast.walk(tree):
        assert not isinstance(node, ast.TryStar)
        if isinstance(node, ast.Name | ast.Attribute):
            assert getattr(node, "id", getattr(node, "attr", "")) not in newer
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            assert not newer & {alias.name for alias in node.names}
        for name in names:
            first = name.partition(".")[0]
            own = first == "optcli" and name.startswith("optcli.models.engines")
            assert own or first in {*sys.stdlib_module_names, "numpy"}, name


@pytest.mark.slow
def test_importing_them_needs_nothing_of_optcli_itself():
    paths = [path.relative_to(ROOM).with_suffix("") for path in MODULES if path.stem != "__init__"]
    names = [".".join(path.parts) for path in paths]
    code = (
        "import sys, types, importlib; package = sys.modules['optcli'] = types.ModuleType('optcli'); "
        f"package.__path__ = [{str(ROOM.parents[1])!r}]; "
        f"[importlib.import_module('optcli.models.engines.' + name) for name in {names!r}]; "
        "ours = {n for n in sys.modules if n.startswith('optcli.') and 'engines' not in n}; "
        "print(sorted(ours - {'optcli.models'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
