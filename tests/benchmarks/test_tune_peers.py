"""`benchmarks/tune_peers.py`: its recipes and parts, and what it says of known measurements."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from optcli.recipe import load

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def of(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def results(of):
    return of("tune_results")


@pytest.fixture
def networks(of):
    return of("tune_networks")


def times(**medians):
    return {
        name: {"ms": ms, "rounds_ms": [ms * f for f in (0.9, 1, 1.1)]} for name, ms in medians.items()
    }


def row(name, one, eight, **more):
    found = {size: {"ratio": r, "ratio_with_float": r} for size, r in (("1", one), ("8", eight))}
    tuning = {
        "trials": [],
        "stopped_because": "time",
        "findings": [],
        "left_out": [],
        "next_idea": None,
    }
    base = {"network": name, "seed": 0, "ratios": found, "winner": {"label": "x"}, "tuning": tuning}
    return base | more


def test_a_peer_outside_the_bar_is_not_the_best(results):
    measured = times(winner=1.0, fast=1.1, slow=3.0, plain=2.0)
    within = {"fast": False, "slow": True, "plain": True}
    found = results.ratios(measured, within, ("plain",))
    assert (found["best"], found["ratio"]) == ("slow", pytest.approx(3.0))
    assert (found["best_with_float"], found["ratio_with_float"]) == ("plain", pytest.approx(2.0))
    assert not found["no_int8_peer_inside"]


def test_where_no_quantized_peer_is_inside_a_float_one_is_the_best(results):
    found = results.ratios(times(winner=1.0, q=0.5, plain=2.0), {"q": False, "plain": True}, ("plain",))
    assert found["no_int8_peer_inside"]
    assert (found["best"], found["ratio"]) == ("plain", pytest.approx(2.0))
    nothing = results.ratios(times(winner=1.0, q=0.5), {"q": False}, ())
    assert "best" not in nothing
    assert "ratio" not in nothing
    unwon = results.ratios(times(q=0.5), {"q": True}, ())
    assert unwon["best"] == "q"
    assert "ratio" not in unwon


def test_a_loss_is_paired_and_has_an_interval(results):
    reference = {"value": 0.75, "right": [1, 1, 1, 0] * 100}
    found = {"value": 0.5, "right": [1, 1, 0, 0] * 100}
    lost = results.loss(reference, found, 0.25)
    assert (lost["loss"], lost["inside"], lost["samples"]) == (0.25, True, 400)
    assert lost["interval"][0] < 0.25 < lost["interval"][1]
    assert not results.loss(reference, found, 0.24)["inside"]
    assert "interval" not in results.loss(
        {"value": 0.3, "right": None}, {"value": 0.3, "right": None}, 0
    )


def test_means_and_aims(results, tmp_path):
    path = tmp_path / "tune.json"
    results.keep(path, "networks", row("digits", 1.0, 1.0), {})
    results.keep(path, "networks", row("digits", 2.0, 3.0), {})  # replaces the first
    results.keep(path, "networks", row("resnet20_cifar10", 1.0, 1.0), {"cpu": "one"})
    known = json.loads(path.read_text())
    assert [each["machine"] for each in known["networks"]] == [{}, {"cpu": "one"}]
    found = results.summarize(path)["trained"]
    assert found["ratio"]["1"] == {
        "count": 2,
        "geometric_mean": pytest.approx(math.sqrt(2)),
        "least": 1.0,
    }
    assert results.reached(path, ["digits", "resnet20_cifar10"])
    assert not results.reached(path, ["resnet20_cifar10"])  # its mean alone is too small
    results.keep(path, "networks", row("vit_tiny_fashion", 9.0, 9.0, failed="it died"), {})
    assert not results.reached(path, ["digits", "vit_tiny_fashion"])
    assert results.summarize(path)["trained"]["failed"] == ["vit_tiny_fashion"]


def test_networks_that_are_trained_here_have_a_mean_of_their_own(results, tmp_path):
    path = tmp_path / "tune.json"
    results.keep(path, "networks", row("digits", 2.0, 3.0), {})
    results.keep(path, "networks", row("regnet_y_400mf_fashion", 1.0, 1.2), {})
    found = results.summarize(path)
    assert found["trained"]["ratio"]["1"]["geometric_mean"] == pytest.approx(2.0)
    assert found["trained here"]["ratio"]["8"]["geometric_mean"] == pytest.approx(1.2)
    assert results.reached(path, ["digits"])
    assert not results.reached(path, ["digits", "regnet_y_400mf_fashion"])


def test_a_network_without_stored_weights_is_trained_once(networks, tmp_path):
    network = networks.NETWORKS["shufflenet_v2_x0_5_fashion"]
    (tmp_path / "models").mkdir()
    script = """\
import sys
from pathlib import Path
name, out = sys.argv[1], Path(sys.argv[sys.argv.index("--out") + 1])
path = out / f"{name}_fashion.safetensors"
path.write_text(" ".join([*(path.read_text().split() if path.exists() else []), *sys.argv[2:6]]))
"""
    (tmp_path / "models" / "train_fashion.py").write_text(script)
    work = tmp_path / "work" / network.name
    work.mkdir(parents=True)
    for _ in range(2):
        networks.train(network, tmp_path, work)
    path = networks.weights(network, tmp_path, work)
    assert path.read_text() == f"--size 64 --epochs {network.epochs}"
    assert work not in path.parents  # a search begins by removing its folder
    stored = networks.NETWORKS["vit_tiny_fashion"]
    networks.train(stored, tmp_path, work)
    assert networks.weights(stored, tmp_path, work).parent == tmp_path / "models"


def test_a_run_that_fails_does_not_replace_one_that_ended_well(results, tmp_path):
    path = tmp_path / "tune.json"
    results.keep(path, "networks", row("digits", 2.0, 3.0), {"cpu": "one"})
    failed = {"network": "digits", "seed": 0, "when": "later", "failed": "it died"}
    results.keep(path, "networks", failed, {"cpu": "two"})
    (kept,) = json.loads(path.read_text())["networks"]
    assert kept["ratios"]["1"]["ratio"] == 2.0
    assert kept["machine"] == {"cpu": "one"}
    assert kept["failed_again"] == {"when": "later", "failed": "it died"}
    assert not results.reached(path, ["digits"])
    results.keep(path, "networks", row("digits", 2.0, 3.0), {"cpu": "two"})
    assert results.reached(path, ["digits"])


def test_the_list_says_what_was_measured_and_how_long_each_takes(results, tmp_path):
    path = tmp_path / "tune.json"
    done = row("digits", 2.0, 3.0)
    done |= {"when": "2026-11-23 03:14", "revision": "abc", "seconds": 1200.0}
    done["tuning"]["seconds"] = 900.0
    results.keep(path, "networks", done, {})
    lines = results.listed(path, None, has_olive=False)
    (digits,) = [line for line in lines if line.startswith("digits")]
    assert "about  20 min" in digits
    assert digits.endswith("2026-11-23 03:14 at abc: batch 1 2.00, batch 8 3.00")
    (other,) = [line for line in lines if line.startswith("resnet50")]
    assert "about  30 min" in other
    assert other.endswith("not measured")
    (digits,) = [e for e in results.listed(path, 6.0, has_olive=True) if e.startswith("digits")]
    assert "about  19 min" in digits  # Olive's search takes a third longer than it is given
    done["peers"] = {f"onnx-olive, batch {size}": {"made_in_s": 120.0} for size in (1, 8)}
    results.keep(path, "networks", done, {})
    (digits,) = [e for e in results.listed(path, 6.0, has_olive=False) if e.startswith("digits")]
    assert "about   9 min" in digits


def test_the_repeats_count_winners_on_the_third_part(results, tmp_path):
    path = tmp_path / "tune.json"
    for seed in range(20):
        judged = {"loss": 0.02 if seed == 0 else 0.004, "inside": seed != 0}
        winner = {"validation_loss": 0.002, "third_judged": judged}
        each = {"network": "digits", "seed": seed, "winner": winner}
        results.keep(path, "repeats", each, {})
    found = results.summarize(path)["repeats"]["digits"]
    assert (found["inside_on_the_third_part"], found["searches"]) == (19, 20)
    assert found["mean_optimism"] == pytest.approx((0.018 + 19 * 0.002) / 20)
    assert results.reached(path, ["digits"])
    results.keep(path, "repeats", {"network": "digits", "seed": 1, "failed": "it died"}, {})
    assert not results.reached(path, ["digits"])


def test_what_limits_a_network_comes_from_its_trials(results, networks):
    trials = [
        {"label": "small", "stage": "outside", "score": 3.0, "loss": 0.04},
        {"label": "smaller", "stage": "timed", "score": 4.0, "loss": None},
        {"label": "broken", "stage": "outside", "score": None, "loss": None},
    ]
    one = row("digits", 1.2, 2.0)
    one["tuning"]["trials"] = trials
    found = results.limits(one, networks.NETWORKS["digits"])
    assert found["below"] == {"1": 1.2}
    assert found["fastest_outside_the_bar"]["label"] == "small"
    assert found["fastest_untrained"]["label"] == "smaller"
    assert results.limits(row("digits", 1.3, 1.5), networks.NETWORKS["digits"]) is None
    assert results.limits(row("resnet50", 1.0, 1.0), networks.NETWORKS["resnet50"]) is None


def test_parts_are_disjoint_and_follow_the_seed(networks):
    shares = {"validation": 0.3, "evaluation": 0.4, "third": 0.3}
    parts = networks.divided(1000, 3, shares, None)
    assert [len(each) for each in parts.values()] == [300, 400, 300]
    assert sorted(np.concatenate(list(parts.values()))) == list(range(1000))
    again, other = (networks.divided(1000, seed, shares, 50) for seed in (3, 4))
    assert [len(each) for each in again.values()] == [50, 50, 50]
    assert set(again["third"]) <= set(parts["third"])
    assert set(other["third"]) != set(again["third"])


def test_the_recipe_of_the_digits_is_read_and_gives_no_hint(networks, tmp_path):
    network = networks.NETWORKS["digits"]
    counts = networks.write_samples(network, None, tmp_path, seed=1, most=50)
    assert {part: counts[part] for part in ("validation", "evaluation", "third")} == dict.fromkeys(
        ("validation", "evaluation", "third"), 50
    )
    path = networks.write_recipe(network, None, tmp_path, seed=1)
    written = json.loads(path.read_text())
    assert not {"variants", "tune", "matrix"} & set(written)
    read = load(path, ("variants={eager: []}",))
    assert set(read.data) == {"training", "calibration", "validation", "evaluation"}
    assert "third" not in path.read_text()
    with np.load(tmp_path / "third.npz") as third, np.load(tmp_path / "samples.npz") as others:
        seen = {image.tobytes() for image in others["image"]}
        assert not [image for image in third["image"] if image.tobytes() in seen]


def test_a_network_that_fails_is_recorded_and_the_next_one_begins(of, monkeypatch, tmp_path, capsys):
    tune_peers = of("tune_peers")
    began = []

    def search(network, seed, work, given, row):
        began.append(network.name)
        raise RuntimeError("no such file")

    monkeypatch.setattr(tune_peers, "_searched", search)
    path = tmp_path / "tune.json"
    told = ["--work", str(tmp_path / "work"), "--networks", "digits,resnet50", "--results", str(path)]
    monkeypatch.setattr(sys, "argv", ["tune_peers.py", *told])
    with pytest.raises(SystemExit) as ended:
        tune_peers.main()
    assert ended.value.code == 1
    assert began == ["digits", "resnet50"]
    rows = json.loads(path.read_text())["networks"]
    assert [each["failed"] for each in rows] == ["RuntimeError: no such file"] * 2
    assert str(tmp_path) not in path.read_text()
    assert "digits" in capsys.readouterr().out


def test_the_command_names_no_path_of_this_machine(of):
    shown = of("tune_peers")._shown(["--work", "/a", "--minutes", "2", "--olive", "/b/python"])
    assert shown == ["--work", "FOLDER", "--minutes", "2", "--olive", "FOLDER"]
