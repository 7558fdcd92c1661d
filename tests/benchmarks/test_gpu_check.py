"""`benchmarks/gpu_check.py` as far as it goes without a GPU: what it says, its recipes, its bars."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import optcli_here

from optcli import recipe as recipes

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "benchmarks" / "gpu_check.py"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.needs("no gpu")
def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path):
    done = run("--out", tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("gpu-check cannot run here: ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["resnet50", "detector", "yolox_nano"])
def test_its_recipes_are_right(module, tmp_path, monkeypatch, name):
    made = module("gpu_recipes")
    data = {role: {"source": "npz:some.npz"} for role in ("calibration", "evaluation")}
    monkeypatch.setattr(made, "_samples", lambda network, folder: data)
    (tmp_path / "work").mkdir()
    np.savez(tmp_path / "work" / "some.npz", image=[0.0], images=[0.0])
    model = tmp_path / "shared" / "models" / "yolox_nano.onnx"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"checked in a build")
    networks = {each.name: each for each in made.networks(tmp_path / "shared")}
    assert next(iter(networks)) == "resnet50", "the bars are its: it comes first"
    network = networks[name]
    checked = recipes.load(made.write(network, tmp_path / "work"))
    staged = [each for stage in made.stages(network).values() for each in stage]
    assert list(checked.variants) == [made.BASELINE, *staged]
    assert not any(variant.required for variant in checked.variants.values())
    assert checked.latency.batch_sizes == network.batch_sizes
    assert all(variant.runner is None or variant.runner.configured.requires().gpu
               for variant in checked.variants.values())  # fmt: skip


def test_there_is_no_trained_detector_where_there_is_no_file(module, tmp_path):
    assert "yolox_nano" not in [each.name for each in module("gpu_recipes").networks(tmp_path)]


def row(host, device=None, **more):
    times = {"host": host, "device": device}
    return {
        "latency": [
            {"batch_size": 8, "region": region, "p50_ms": {"value": value}, "speedup": None}
            for region, value in times.items()
            if value is not None
        ],
        **more,
    }


def found(**resnet):
    return {"tests": None, "networks": {"resnet50": resnet}}


@pytest.mark.parametrize(
    ("engine", "outcome", "said"),
    [
        (row(5.0, 3.9), "pass", "2.56 times (device)"),
        (row(1.0, 4.1), "fail", "2.44 times (device)"),
        (row(4.0), "pass", "3.00 times (host)"),
        ({"note": "skipped"}, "unknown", "not measured"),
    ],
)
def test_how_much_faster_fp16_must_be(module, engine, outcome, said):
    bar = module("gpu_results").bars(found(eager=row(12.0, 10.0), **{"trt-fp16": engine}))[0]
    assert (bar["outcome"], bar["found"]) == (outcome, said)


@pytest.mark.parametrize(("ours", "outcome"), [(1.029, "pass"), (1.031, "fail"), (0.969, "fail")])
def test_device_times_are_held_against_a_bare_loop(module, ours, outcome):
    engine = row(2.0, ours, alone={"batch_size": 8, "by": "bare loop", "p50_ms": 1.0})
    bars = module("gpu_results").bars(found(**{"trt-bf16": engine}))
    assert [bar["outcome"] for bar in bars if "within 3 %" in bar["bar"]] == [outcome]


def test_outputs_must_stay_close_to_fp32(module):
    near, far = row(1.0, sqnr_db=29.0), row(1.0, sqnr_db=27.0)
    results = module("gpu_results")
    bars = results.bars(found(**{"trt-fp16": near, "rtx-fp16": far, "compile": far}))
    assert {bar["bar"]: bar["outcome"] for bar in bars[1:]} == {
        "resnet50 trt-fp16: at least 28 dB": "pass",
        "resnet50 rtx-fp16: at least 28 dB": "fail",
    }


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "pass"), (1, "fail"), (5, "unknown"), (None, "unknown")]
)
def test_the_tests_are_a_bar(module, code, outcome):
    some = {"tests": {"exit_code": code, "summary": "3 passed"}, "networks": {}}
    assert [bar["outcome"] for bar in module("gpu_results").bars(some)][1:] == [outcome]


def test_what_others_print(module):
    alone = module("gpu_results").alone
    assert alone(0, 'warning\n{"p50_ms": 0.5, "version": "8.6.0"}\n') == {
        "by": "bare loop",
        "p50_ms": 0.5,
    }
    line = "[I] GPU Compute Time: min = 0.51 ms, max = 0.6 ms, mean = 0.53 ms, median = 0.52 ms, ..."
    assert alone(0, line) == {"by": "trtexec", "p50_ms": 0.52}
    assert alone(0, "Segmentation fault")["p50_ms"] is None


@pytest.mark.slow
@pytest.mark.long
def test_the_dry_run_goes_all_the_way(module, tmp_path, monkeypatch):
    """Its builds in this process: in processes of their own they would import everything again."""
    check = module("gpu_check")

    def run_here(command, *, cwd, env, stdout, **_):
        assert command[:3] == [sys.executable, "-m", "optcli"]
        said = optcli_here(*command[3:], folder=cwd, together=True, **env)
        stdout.write(said.out)
        return subprocess.CompletedProcess(command, said.code)

    monkeypatch.setattr(check, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run_here}))
    words = ["--dry-run", "--no-tests", "--out", tmp_path / "out", "--work", tmp_path / "work"]
    monkeypatch.setattr(check.sys, "argv", ["gpu_check.py", *map(str, words)])
    assert check.main() == 0
    json_file, page = sorted((tmp_path / "out").iterdir())
    kept = json.loads(json_file.read_text())
    variants = kept["networks"]["tiny"]
    assert list(variants) == ["eager", "script", "layout"]
    for name, variant in variants.items():
        assert [each["batch_size"] for each in variant["latency"]] == [1, 2]
        assert variant["precision"] == "fp32"
        assert name == "eager" or variant["sqnr_db"] > 60
    assert kept["command"]
    assert kept["versions"]["torch"]
    text = page.read_text()
    assert "## tiny" in text
    assert "| script | fp32 |" in text


def test_a_part_can_be_asked_for(module, tmp_path, monkeypatch):
    check, recipes = module("gpu_check"), module("gpu_recipes")
    stages = recipes.stages(recipes.torch_network("resnet50", 224))

    def wanted(*asked):
        words = ["gpu_check.py", "--work", str(tmp_path), *asked]
        monkeypatch.setattr(check.sys, "argv", words)
        one = check.Check(check._options())
        return {(s, name) for s, names in stages.items() for name in names if one._is_wanted(s, name)}

    parts = wanted("--variants", "trt-fp16,aoti", "--jobs", "4")
    assert parts == {("tensorrt", "trt-fp16"), ("torch", "aoti")}
    assert {stage for stage, _ in wanted("--stages", "tensorrt")} == {"tensorrt"}
    assert len(wanted()) == sum(map(len, stages.values()))


@pytest.mark.parametrize(
    ("option", "name", "known"),
    [
        ("--networks", "resnet5", "resnet50"),
        ("--stages", "trt", "tensorrt"),
        ("--variants", "fp16", "trt-fp16"),
    ],
)
def test_a_part_that_does_not_exist_is_an_error(module, monkeypatch, option, name, known):
    check = module("gpu_check")
    monkeypatch.setattr(check.sys, "argv", ["gpu_check.py", option, name])
    said = check._unknown_part(check._options())
    assert said.startswith(f"{option}: found '{name}', wanted some of ")
    assert known in said
    monkeypatch.setattr(check.sys, "argv", ["gpu_check.py", option, known])
    assert check._unknown_part(check._options()) == ""
