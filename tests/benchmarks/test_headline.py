"""`benchmarks/headline.py`: what it says of runs whose answer is known."""

import importlib
import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
UNFIT = {"kind": "environment-not-fit", "figures": {}}
NOISY = {"kind": "noisy", "figures": {"lost": 0.09}}


@pytest.fixture
def headline(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module("headline")


def run(kind, index, speedup, p50=(1.0, 0.9, 1.1), flags=(), fit=True):
    base = {"variant": "eager", "batch_size": 1, "p50": [10.0, 9.0, 11.0], "speedup": [1.0, 1.0, 1.0]}
    other = {"variant": "onnx", "batch_size": 1, "p50": list(p50), "speedup": speedup}
    about = {"fit": fit, "launches": 3, "spread": 0.01, "waited": 0.0}
    return {
        "kind": kind,
        "index": index,
        "seconds": 30.0,
        "measuring_s": 20.0,
        "baseline": "eager",
        "rows": [{**base, **about, "flags": []}, {**other, **about, "flags": list(flags)}],
    }


def test_truths_come_first_last_and_between(headline):
    order = headline.planned(4, 2, 3)
    assert [kind for kind, _ in order] == [
        *("truth", "idle", "idle", "idle", "truth", "idle", "loaded", "loaded", "truth")
    ]
    assert sorted(order) == sorted({*order})
    assert [kind for kind, _ in headline.planned(1, 1, 1)] == ["truth", "idle", "loaded"]


def test_runs_that_keep_what_is_wanted(headline):
    truths = [run("truth", n, [value, 9.5, 10.5]) for n, value in enumerate((9.9, 10.1))]
    idle = [run("idle", n, [10.2, 9.5, 11.0]) for n in range(10)]
    loaded = [run("loaded", n, [10.2, 9.0, 11.5]) for n in range(3)]
    loaded.append(run("loaded", 3, None, p50=(0.5, 0.4, 0.6), flags=[UNFIT], fit=False))
    found = headline.judged([*truths, *idle, *loaded])
    known = found["truth"]["onnx, batch 1"]["speedup"]
    assert (known["value"], known["drift"]) == (
        pytest.approx(10.0, rel=1e-3),
        pytest.approx(0.0202, abs=1e-4),
    )
    assert "speedup" not in found["truth"]["eager, batch 1"]
    assert found["loaded"]["speedup"]["all"]["withheld"] == 0.25
    assert found["loaded"]["off"]["rows"] == 1
    assert found["loaded"]["off"]["withheld_or_flagged"] == 1
    assert found["idle"]["speedup"]["rows"]["onnx, batch 1"]["median_half_width"] == 0.0735
    assert all(one["kept"] for one in found["wanted"].values())
    assert "speed-up holds the truth or is withheld: 100.0% (wanted 90.0%)" in headline.said(found)


def test_wrong_figures_without_a_word_break_what_is_wanted(headline):
    truth = run("truth", 0, [10.0, 9.5, 10.5])
    idle = [run("idle", n, [16.0, 14.0, 19.0]) for n in range(4)]
    loaded = [
        run("loaded", n, [16.0, 14.0, 19.0], flags=flags) for n, flags in enumerate(((), [NOISY]))
    ]
    found = headline.judged([truth, *idle, *loaded])
    assert found["idle"]["speedup"]["all"]["covered_or_withheld"] == 0
    assert found["loaded"]["off"]["withheld_or_flagged"] == 0.5
    broken = {name for name, one in found["wanted"].items() if one["kept"] is False}
    assert "idle: speed-up holds the truth where it is told" in broken
    assert "loaded: estimates off by over 15 % are withheld or flagged" in broken


def test_runs_are_kept_one_by_one_and_not_repeated(headline, tmp_path, monkeypatch):
    asked = []

    def build(chosen, *settings):
        asked.append(settings)
        if len(asked) == 3:
            raise KeyboardInterrupt
        told = run("", 0, [10.0, 9.0, 11.0])
        del told["kind"], told["index"]
        return {**told, "at": "2026-01-01T00:00:00+00:00"}

    monkeypatch.setattr(headline, "build", build)
    line = ["headline.py", "--idle", "1", "--loaded", "0", "--truths", "2", "--work", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*line, "--results", str(tmp_path / "found.json")])
    with pytest.raises(KeyboardInterrupt):
        headline.main()
    assert asked == [(), ("latency.mode=table",), ()]
    assert headline.main() == 0
    assert asked[3:] == [(), ("latency.mode=table",)]
    lines = [json.loads(each) for each in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [(each["kind"], each["index"]) for each in lines] == [
        ("truth", 0),
        ("idle", 0),
        ("truth", 1),
    ]
    assert json.loads((tmp_path / "found.json").read_text())["idle"]["runs"] == 1
