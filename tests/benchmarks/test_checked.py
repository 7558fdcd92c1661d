"""What the benchmarks count as done: by fakes that crash, write nothing, or leave what was there."""

import importlib
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
from peer_models import onnx_file

REPOSITORY = Path(__file__).resolve().parents[2]
WRITES = "from pathlib import Path; Path('out').mkdir(exist_ok=True); Path('out/model.txt').{}"


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module("checked")


@pytest.fixture
def ran(checked, tmp_path):
    """Run a line of Python as a peer that has to write `out/model.txt`."""

    def run(code, check=bool, **more):
        wanted = checked.Wanted(tmp_path / "out", "*.txt", check)
        return checked.run("peer", [sys.executable, "-c", code], wanted=wanted, cwd=tmp_path, **more)

    return run


def test_who_works_is_timed(ran, tmp_path):
    done = ran("print('hello'); " + WRITES.format("write_text('model')"), keep=tmp_path / "said.log")
    assert done.code == 0
    assert 0 < done.wall_s < 60
    assert done.processor_s > 0
    assert done.stdout == "hello\n"
    assert "hello" in (tmp_path / "said.log").read_text()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"{WRITES.format('touch()')}; print('why'); raise SystemExit(1)", "ended with 1"),
        ("print('why')", "wrote no *.txt"),
        (f"print('why'); {WRITES.format('touch()')}", "it is empty"),
        ("import os, sys; print('why'); sys.stdout.flush(); os.kill(os.getpid(), 9)", "ended with -9"),
    ],
)
def test_who_fails_or_writes_nothing_has_no_time(checked, ran, tmp_path, code, reason):
    with pytest.raises(checked.NotDoneError, match=r"^peer ") as found:
        ran(code, keep=tmp_path / "said.log")
    assert reason in found.value.reason
    assert found.value.printed == "why"
    assert str(found.value).endswith("the last that it printed:\nwhy")
    assert "why" in (tmp_path / "said.log").read_text()


@pytest.mark.slow
def test_a_result_of_an_earlier_run_is_none(checked, ran):
    ran(WRITES.format("write_text('model')"))
    with pytest.raises(checked.NotDoneError, match="left only what was there before"):
        ran("pass")
    ran(WRITES.format("write_text('model')"))  # written again, though the same


def test_a_result_must_be_what_was_asked_for(checked, ran):
    def refuse(path):
        raise ValueError(f"it is {path.read_text()}")

    with pytest.raises(checked.NotDoneError, match=r"ended with 0 and wrote .*, but it is float"):
        ran(WRITES.format("write_text('float')"), refuse)


@pytest.mark.long
@pytest.mark.slow
def test_who_does_not_end_or_start_has_no_time(checked, tmp_path):
    code = "import time; print('why', flush=True); time.sleep(60)"
    with pytest.raises(checked.NotDoneError, match=r"did not end within 2 s(.|\n)*why"):
        checked.run("peer", [sys.executable, "-c", code], timeout=2)
    with pytest.raises(checked.NotDoneError, match="peer could not be started"):
        checked.run("peer", [str(tmp_path / "no-such-program")])


def test_verdicts_of_optcli_are_answers_and_a_crash_with_the_same_code_is_none(
    checked, monkeypatch, tmp_path
):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nprintf "$SAID"; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("SAID", '{"outcome": "rejected"}')
    assert checked.optcli_answer("build") == {"outcome": "rejected"}
    with pytest.raises(checked.NotDoneError, match="optcli build ended with 1 and wrote no report"):
        checked.optcli("build", wanted=checked.report_of(tmp_path / "artifacts"))
    monkeypatch.setenv("SAID", "Traceback: no such module")
    with pytest.raises(
        checked.NotDoneError, match=r"ended with 1 without an answer(.|\n)*no such module"
    ):
        checked.optcli_answer("build")
    with pytest.raises(checked.NotDoneError, match="ended with 1"):
        checked.optcli("deploy", fine=(0,))


@pytest.mark.slow
def test_the_last_line_is_the_answer(checked):
    python = partial(checked.answer, "peer")
    assert python([sys.executable, "-c", "print('a word'); print('[1]')"]) == [1]
    with pytest.raises(checked.NotDoneError, match="without an answer"):
        python([sys.executable, "-c", "print('[1]'); print('a word')"])
    with pytest.raises(checked.NotDoneError, match="without an answer"):
        python([sys.executable, "-c", "pass"])


@pytest.mark.parametrize("value", [None, 0, -1.0, float("nan"), float("inf"), "3"])
def test_a_figure_is_above_zero(checked, value):
    checked.figures("peer", {"rate": 3}, "rate")
    with pytest.raises(checked.NotDoneError, match="for rate"):
        checked.figures("peer", {"rate": value}, "rate")
    with pytest.raises(checked.NotDoneError, match="gave None for more"):
        checked.figures("peer", {"rate": 3}, "rate", "more")


@pytest.mark.parametrize(
    "operator", ["QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "ConvInteger"]
)
def test_an_onnx_model_in_int8_has_quantized_nodes(checked, tmp_path, operator):
    checked.model(onnx_file(tmp_path / "int8.onnx", "Relu", operator), quantized=True)
    plain = onnx_file(tmp_path / "plain.onnx", "Relu")
    checked.model(plain)
    with pytest.raises(ValueError, match="no quantized nodes"):
        checked.model(plain, quantized=True)
    plain.write_bytes(plain.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"cannot load it|no nodes"):
        checked.model(plain)
    with pytest.raises(ValueError, match="no nodes"):
        checked.model(onnx_file(tmp_path / "none.onnx"))
    with pytest.raises(ValueError, match="missing or empty"):
        checked.model(tmp_path / "absent.onnx")
    with pytest.raises(ValueError, match="not called as a model is"):
        checked.model(plain.rename(tmp_path / "model.bin"))


def test_an_openvino_model_is_two_files(checked, tmp_path):
    path = tmp_path / "model.xml"
    path.write_text("<net><layers><layer type='Convolution'/></layers></net>")
    with pytest.raises(ValueError, match=r"model.bin is missing or empty"):
        checked.model(path)
    path.with_suffix(".bin").write_bytes(b"weights")
    checked.model(path)
    with pytest.raises(ValueError, match="no quantized nodes"):
        checked.model(path, quantized=True)
    path.write_text("<net><layers><layer type='FakeQuantize'/></layers></net>")
    checked.model(path, quantized=True)
    path.write_text("<net><layers>")
    with pytest.raises(ValueError, match="no XML"):
        checked.model(path)


def test_a_package_of_pytorch_is_an_archive(checked, tmp_path):
    path = tmp_path / "model.pt2"

    def write(code):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data/aotinductor/model/wrapper.cpp", code)

    write("aoti_torch_cpu_convolution(x)")
    checked.model(path)
    with pytest.raises(ValueError, match="no quantized nodes"):
        checked.model(path, quantized=True)
    write("aoti_torch_cpu__qconv_pointwise_tensor(x)")
    checked.model(path, quantized=True)
    path.write_bytes(b"half of an archive")
    with pytest.raises(ValueError, match="no archive"):
        checked.model(path)


def test_a_benchmark_ends_with_what_was_not_done(checked):
    def stopped():
        raise checked.NotDoneError("peer", "ended with 1", "why")

    with pytest.raises(SystemExit, match="peer ended with 1; the last that it printed:\nwhy"):
        checked.told(stopped)
    with pytest.raises(SystemExit) as ended:
        checked.told(lambda: 1)
    assert ended.value.code == 1
