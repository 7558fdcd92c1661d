"""A peer that failed is named by each benchmark that runs it, and has no figures there."""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from peer_models import onnx_file

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = {
    "passes": {"quantization": {"type": "OnnxStaticQuantization"}},
    "cache_dir": "cache",
    "output_dir": "out",
}


@pytest.fixture
def of(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def olive(of, tmp_path):
    """Olive as `cold_build.py` runs it, with a fake of its interpreter that does so much."""
    models = {"float": ["Relu"], "int8": ["QuantizeLinear"]}
    for kind, operators in models.items():
        onnx_file(tmp_path / f"{kind}.onnx", *operators)

    def make(name, code):
        folder = tmp_path / name
        folder.mkdir()
        python = folder / "python"
        lines = ["import shutil, sys", "from pathlib import Path", "kept = Path.cwd().parent"]
        lines += ["Path('out').mkdir(exist_ok=True)", dedent(code)]
        python.write_text("\n".join([f"#!{sys.executable}", *lines]))
        python.chmod(0o755)
        (folder / f"{name}.json").write_text(json.dumps(SETTINGS))
        return of("cold_build").Olive(str(python), folder / f"{name}.json")

    return make


WORKS = "shutil.copy(kept / 'int8.onnx', 'out/model.onnx')"


def test_a_build_of_olive_that_works_has_times(olive):
    took = olive("works", WORKS).build("cold")
    assert set(took) == {"wall_s", "processor_s"}
    assert took["wall_s"] > 0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"{WORKS}; sys.exit('no such pass')", "ended with 1.*\nno such pass"),
        ("print('Pass run failed.')", r"wrote no \*.onnx.*\nPass run failed."),
        ("shutil.copy(kept / 'float.onnx', 'out/model.onnx')", "no quantized nodes"),
    ],
)
def test_a_build_of_olive_that_fails_has_none(of, olive, code, reason):
    with pytest.raises(of("checked").NotDoneError, match=f"^fails (.|\n)*{reason}"):
        olive("fails", code).build("cold")


@pytest.mark.slow
def test_an_old_model_of_olive_is_none_of_this_run(of, olive):
    peer = olive("old", f"if not Path('cache').exists(): {WORKS}\nPath('cache').mkdir(exist_ok=True)")
    assert peer.build("cold")["wall_s"] > 0
    with pytest.raises(of("checked").NotDoneError, match="wrote no"):
        peer.build("cached")


@pytest.mark.slow
def test_a_peer_that_failed_once_has_no_medians_and_no_further_turns(of, olive, capsys):
    cold_build = of("cold_build")
    breaks = "count = Path('count'); count.write_text(count.exists() * count.read_text() + 'x' if "
    breaks += f"count.exists() else 'x'); len(count.read_text()) > 1 and sys.exit('broken'); {WORKS}"
    who = [olive("works", WORKS), olive("breaks", breaks)]
    runs, failed = cold_build.rounds_of(who, 3, ["cold", "no-op"])
    assert [run["wall_s"] is None for run in runs if run["who"] == "breaks"] == [False, True]
    assert len([run for run in runs if run["who"] == "works"]) == 3
    assert list(failed) == ["breaks"]
    assert "breaks ended with 1" in failed["breaks"]
    found = cold_build.medians(runs)
    assert found["breaks"] == {"cold": {"wall_s": None, "processor_s": None}}
    assert found["works"]["cold"]["wall_s"] > 0
    said = capsys.readouterr().out
    assert "FAILED, cold: breaks ended with 1; the last that it printed:\nbroken" in said
    cold_build.printed({"medians": found, "failed": failed, "phases_s": {}, "steps_s": {}})
    said = capsys.readouterr().out
    assert "breaks FAILED and has no figures: cold, round 1: breaks ended with 1" in said
    assert "works / breaks" not in said


def test_a_build_of_optcli_that_failed_ends_the_benchmark(of, monkeypatch, tmp_path):
    cold_build, checked = of("cold_build"), of("checked")
    (tmp_path / "optcli.py").write_text("print('a bug'); raise SystemExit(1)")
    ours = cold_build.Optcli("beside", tmp_path, tmp_path / "recipe.yaml", tmp_path, [], None)
    with pytest.raises(
        checked.NotDoneError, match=r"beside ended with 1 and wrote no report(.|\n)*a bug"
    ):
        cold_build.rounds_of([ours], 1, ["cold"])


def test_a_report_of_an_earlier_build_is_none_of_this_run(of, monkeypatch, tmp_path):
    headline, checked = of("headline"), of("checked")
    report = tmp_path / "artifacts" / "quickstart" / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text("{}")
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho a bug; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    chosen = argparse.Namespace(work=tmp_path, recipe=report, set=[], threads=None, batch=[])
    with pytest.raises(checked.NotDoneError, match="left only what was there before"):
        headline.build(chosen)


@pytest.fixture
def row():
    return {"network": "digits", "minutes": 0.01, "peers": {}, "times": {}}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('print("no memory"); sys.exit(1)', "Olive's search ended with 1.*\nno memory"),
        ("print('done')", "without an answer"),
        ("print(json.dumps({'path': None}))", "chose no model"),
        ("print(json.dumps({'path': 'float.onnx'}))", "chose float.onnx, but it has no quantized"),
        ("print(json.dumps({'path': 'absent.onnx'}))", "absent.onnx is missing"),
    ],
)
def test_a_search_of_olive_without_an_int8_model_has_no_figures(
    of, monkeypatch, tmp_path, capsys, row, said, reason
):
    tune_peers = of("tune_peers")
    onnx_file(tmp_path / "float.onnx", "Relu")
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport json, sys\n{said}\n")
    program.chmod(0o755)
    monkeypatch.setattr(tune_peers, "_alone", lambda *_: {"config": "told.json"})
    given = argparse.Namespace(olive=str(program))
    network = of("tune_networks").NETWORKS["digits"]
    assert tune_peers._olive(network, {"work": str(tmp_path)}, given, row) == []
    assert set(row["peers"]) == {"olive"}
    failed = row["peers"]["olive"]["failed"]
    assert re.search(reason, failed, re.DOTALL), failed
    assert f"digits: olive FAILED: {failed}" in capsys.readouterr().err


def test_a_peer_that_is_not_made_is_named_and_not_compared_with(of, monkeypatch, capsys, row):
    tune_peers, checked = of("tune_peers"), of("checked")

    def alone(what, payload):
        if payload["method"] == "onnx-int8":
            raise checked.NotDoneError("peer of onnx-int8", "ended with 1", "no such operator")
        return {"path": "model.xml"}

    monkeypatch.setattr(tune_peers, "_alone", alone)
    network = of("tune_networks").NETWORKS["digits"]
    found = tune_peers._peers(network, {}, argparse.Namespace(methods="onnx-int8,openvino-int8"), row)
    assert {each["method"] for each in found} == {"openvino-int8"}
    for size in network.batch_sizes:
        assert set(row["peers"][f"onnx-int8, batch {size}"]) == {"failed"}
    assert "onnx-int8, batch 1 FAILED: peer of onnx-int8 ended with 1" in capsys.readouterr().err
    told = {**row, "winner": {"label": "x"}, "ratios": {}}
    assert "FAILED, and not compared with: onnx-int8, batch 1" in of("tune_results").line(told)


@pytest.mark.slow
def test_a_peer_that_dies_while_it_is_timed_has_no_times(of, monkeypatch, tmp_path):
    tune_peers, checked = of("tune_peers"), of("checked")
    worker = tmp_path / "worker.py"
    worker.write_text(
        dedent("""\
        import json, sys
        method = json.loads(sys.stdin.readline())["method"]
        if method == "unopened":
            sys.exit("no such file")
        print("seconds 0.01", flush=True)
        for number, line in enumerate(sys.stdin):
            if method == "dies" and number == 1:
                sys.exit("no memory")
            print("seconds 0.01", flush=True)
        """)
    )
    monkeypatch.setattr(tune_peers, "_WORKER", worker)
    base = {"work": str(tmp_path)}
    rivals = [{"method": name, "size": 1} for name in ("lives", "dies", "unopened")]
    times, died = tune_peers._in_turns(base, rivals, 3)
    assert times == {"lives": {"ms": 10.0, "rounds_ms": [10.0] * 3}}
    assert {method: error.printed for method, error in died.items()} == {
        "dies": "no memory",
        "unopened": "no such file",
    }
    monkeypatch.setattr(tune_peers, "WINNER", "dies")
    with pytest.raises(checked.NotDoneError, match="dies died while it was timed"):
        tune_peers._in_turns(base, rivals, 3)


def test_a_row_by_hand_that_failed_has_no_figures(of, monkeypatch, tmp_path):
    by_hand, checked = of("by_hand"), of("checked")
    made = {
        "onnx": {"runner": "onnxruntime"},
        "compile": {"failed": "no compiler"},
        "openvino": {"runner": "openvino"},
    }

    def alone(what, payload):
        if what == "ours":
            return made
        if what == "by_hand" and payload["method"] == "onnx":
            raise checked.NotDoneError("the library by hand", "ended with 1", f"no {tmp_path}")
        return (
            {"path": "model"}
            if what == "by_hand"
            else {"ours_ms": 1.0, "by_hand_ms": 0.0, "ratio": 0.0}
        )

    monkeypatch.setattr(by_hand, "_alone", alone)
    given = argparse.Namespace(work=tmp_path, shared=None, methods="onnx,compile,openvino", rounds=1)
    rows = by_hand._network_rows("resnet50", given)
    assert len(rows) == 6
    for row in rows:
        assert [row[name] for name in by_hand._FIGURES] == [None] * 4
    reasons = {row["method"]: row["failed"] for row in rows}
    assert reasons["onnx"].startswith(
        "the library by hand ended with 1; the last that it printed:\nno "
    )
    assert reasons["compile"] == "optcli built none: no compiler"
    assert reasons["openvino"] == "the comparison ended well and gave 0.0 for by_hand_ms"


def test_a_way_by_hand_that_leaves_no_int8_fails(of, monkeypatch, tmp_path):
    peers, path = of("peers"), tmp_path / "model.onnx"
    monkeypatch.setattr(peers, "_from_onnx", lambda *_: None)
    onnx_file(path, "QuantizeLinear")  # of an earlier run
    with pytest.raises(ValueError, match="missing or empty"):
        peers.from_onnx("onnx-int8", path, None, 1, path, attends=False)
    monkeypatch.setattr(peers, "_from_onnx", lambda *_: onnx_file(path, "Relu"))
    with pytest.raises(ValueError, match="no quantized nodes"):
        peers.from_onnx("onnx-int8", path, None, 1, path, attends=False)
    named = ("onnx-int8", "onnx-nncf", "openvino-int8-performance", "pt2e-aoti")
    assert all(map(peers.quantizes, named))
    assert not any(map(peers.quantizes, ("onnx", "openvino", "openvino-bf16", "aoti", "compile")))


def test_a_training_loop_that_fails_has_no_figures(of):
    training, checked = of("training"), of("checked")

    def fails():
        raise checked.NotDoneError("the plain loop (train)", "ended with 1", "no memory")

    contenders = {"finetune": lambda: {"images_per_s": 3.0}, "training loop": fails}
    turns, failed = training._turns(contenders, 2)
    assert turns == {"finetune": [{"images_per_s": 3.0}] * 2, "training loop": []}
    assert failed["training loop"].endswith("no memory")
    found = training._summary(turns, failed)
    assert found["images_per_s"] == {"finetune": 3.0, "training loop": None}
    assert found["ratios"] == {}


def test_a_bare_loop_that_fails_leaves_its_bar_unknown(of):
    results = of("gpu_results")
    text = '{"p50_ms": 0.5}\nSegmentation fault'
    for code, reason in ((139, "ended with 139"), (None, "did not end in time")):
        alone = results.alone(code, text)
        assert (alone["p50_ms"], alone["failed"], alone["printed"]) == (None, reason, text)
    silent = results.alone(0, "nothing")
    assert (silent["p50_ms"], silent["failed"]) == (None, "printed no median")
    latency = [{"batch_size": 8, "region": "device", "p50_ms": {"value": 1.0}, "speedup": None}]
    engine = {"latency": latency, "alone": {"batch_size": 8, **silent}}
    found = {"tests": None, "networks": {"resnet50": {"trt-bf16": engine}}}
    bar = next(bar for bar in results.bars(found) if "within 3 %" in bar["bar"])
    assert (bar["outcome"], bar["found"]) == ("unknown", "the loop alone printed no median")
