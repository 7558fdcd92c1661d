"""Whether the figures that a build prints hold on any day: quickstart, many times, idle and loaded.

    .venv/bin/python benchmarks/headline.py --idle 40 --loaded 20
    .venv/bin/python benchmarks/headline.py --judge-only [--from-samples]

Every run is a fresh `optcli build` that measures latency again (the rest comes from the benchmark's own
store). The truth is what long builds in `table` mode say while nothing is put beside them: before,
between and after the others; each run is held against the two around it, as a shared host drifts.
Loaded runs have one or two busy processes beside them that come and go, by a seed. Each run is appended
to a file of JSON lines at once; started again, the benchmark goes on where it was. The machine must be
idle otherwise. Raw samples are kept in the work folder: `--from-samples` judges what today's code makes
of them, without measuring again.

Printed, and written to benchmarks/results/headline.json (the runs to headline.jsonl beside it), for
the headline (the speed-up of the fastest variant of each run), for all speed-ups and medians, by
variant and batch size and over all: how often the 95 % interval holds the truth, how often it is
withheld, how wide it is. Wanted:

- the interval holds the truth in 90 % of the idle rows, or is withheld; withheld in 15 % at most
- the median half-width of an idle speed-up is 15 % at most
- an idle row is called noisy, or fluctuating, in one of ten rows at most
- under load, of the rows whose estimate is off by more than 15 %, 90 % are withheld or flagged

Ends with 1 where that is not so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import checked

from optcli import environment
from optcli.measure import latency
from optcli.results import Flag
from optcli.store import Store

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "headline.json"
COVERS, WITHHELD, HALF_WIDTH, FLAGGED, NOISY, OFF = 0.90, 0.15, 0.15, 0.90, 0.10, 0.15
# What says on a row, in the terminal or the report, that its figures are in doubt.
_DOUBTS = ("environment-not-fit", "noisy", "fluctuating")

Row = dict[str, Any]
Run = dict[str, Any]


def planned(idle: int, loaded: int, truths: int) -> list[tuple[str, int]]:
    """All runs in order: the idle ones, then the loaded ones; truths first, last and evenly between."""
    runs = [("idle", n) for n in range(idle)] + [("loaded", n) for n in range(loaded)]
    found: list[tuple[str, int]] = []
    for number in range(truths):
        found.append(("truth", number))
        share = len(runs) / max(1, truths - 1)
        found += runs[round(number * share) : round((number + 1) * share)] if truths > 1 else runs
    return found


@contextmanager
def coming_and_going(seed: int) -> Iterator[None]:
    """One or two busy processes for a second to eight, then none for half a second to six; again."""
    rng, end = random.Random(seed), threading.Event()

    def load() -> None:
        while not end.is_set():
            busy = [
                subprocess.Popen([sys.executable, "-c", "while True: pass"])
                for _ in range(rng.choice((1, 2)))
            ]
            end.wait(rng.uniform(1, 8))
            for each in busy:
                each.kill()
                each.wait()
            end.wait(rng.uniform(0.5, 6))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def build(chosen: argparse.Namespace, *settings: str) -> Run:
    """One build that measures again, and what its report says of every row."""
    store = Store(chosen.work / "store")
    for key in store.keys("measurement"):
        store.discard("measurement", key)
    artifacts = chosen.work / "artifacts"
    command = ["build", str(chosen.recipe), "--store", str(chosen.work / "store")]
    command += ["--artifacts", str(artifacts)]
    for setting in (*common(chosen), *settings):
        command += ["--set", setting]
    before = environment.conditions()
    began = time.monotonic()
    done = checked.optcli(*command, wanted=checked.report_of(artifacts), cwd=ROOT)
    (path,) = artifacts.glob("*/report.json")
    report = json.loads(path.read_text())
    chosen.samples = path.with_name("samples.npz")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "measuring_s": report["protocol"]["seconds"]["wall"],
        "load_before": before["load_average"],
        "exit_code": done.code,
        "baseline": report["baseline"],
        "recommendation": report["recommendation"],
        "rows": rows_of({name: one["latency"] for name, one in report["variants"].items()}),
    }


def common(chosen: argparse.Namespace) -> list[str]:
    """The settings of all builds."""
    found = list(chosen.set)
    if chosen.threads is not None:
        found.append(f"latency.threads={chosen.threads}")
    if chosen.batch:
        found.append(f"latency.batch_sizes={json.dumps(chosen.batch)}")
    return found


def rows_of(latencies: Mapping[str, Sequence[Row]]) -> list[Row]:
    """What is said of whole calls, in few words, from each variant's rows as a report has them."""
    return [
        {
            "variant": name,
            "batch_size": row["batch_size"],
            "p50": _bounds(row["p50_ms"]),
            "speedup": _bounds(row["speedup"]),
            "fit": row["fit"],
            "launches": row["launches"],
            "spread": row["spread"],
            "waited": row["waited"],
            "flags": [flag for flag in row["flags"] if flag["kind"] != "too-few-calls"],
        }
        for name, rows in latencies.items()
        for row in rows
        if row["region"] == "host"
    ]


def from_samples(run: Run, folder: Path) -> Run:
    """The run as today's code sees what was measured; as it is where the samples are gone."""
    path = folder / f"{run['kind']}-{run['index']}.npz"
    if not path.exists():
        return run
    rows = latency.to_results(latency.load(path))
    dumped = {name: [row.model_dump(mode="json") for row in found] for name, found in rows.items()}
    return {**run, "rows": rows_of(dumped)}


def _bounds(found: dict[str, Any] | None) -> list[float] | None:
    return None if found is None else [found["value"], found["low"], found["high"]]


def truth_of(runs: Sequence[Run], baseline: str) -> dict[str, dict[str, Any]]:
    """By row: the geometric means of the truths, and by how much they drifted (most over least)."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for row in run["rows"]:
            known = found.setdefault(_key(row), {"p50": [], "speedup": []})
            for figure in ("p50", "speedup"):
                if row["fit"] and row[figure] is not None:
                    known[figure].append(row[figure][0])
    return {
        key: {
            figure: {
                "value": math.exp(sum(map(math.log, values)) / len(values)),
                "drift": max(values) / min(values) - 1,
                "from": len(values),
            }
            for figure, values in figures.items()
            if values and not (figure == "speedup" and key.startswith(f"{baseline}, "))
        }
        for key, figures in found.items()
    }


def beside_truths(runs: Sequence[Run]) -> list[Run]:
    """The runs in their order, each with the truth of the builds before and after it.

    A shared host is another machine an hour later: all truths together are nobody's.
    """
    found = []
    for place, run in enumerate(runs):
        before = [each for each in runs[:place] if each["kind"] == "truth"][-1:]
        after = [each for each in runs[place:] if each["kind"] == "truth"][:1]
        found.append({**run, "truth": truth_of([*before, *after], run["baseline"])})
    return found


def _key(row: Row) -> str:
    return f"{row['variant']}, batch {row['batch_size']}"


def coverage(runs: Sequence[Run], truth: dict[str, dict[str, Any]], figure: str) -> dict[str, Any]:
    """Over all rows and by row: how often the interval holds the truth, is withheld, how wide it is."""
    held: dict[str, list[bool | None]] = {}
    widths: dict[str, list[float]] = {}
    for run in runs:
        for row in run["rows"]:
            known = run.get("truth", truth).get(_key(row), {}).get(figure)
            if known is None:  # the baseline over itself, or a truth that could not be told
                continue
            told = row[figure] if row["fit"] else None
            holds = None if told is None else told[1] <= known["value"] <= told[2]
            held.setdefault(_key(row), []).append(holds)
            if told is not None:
                widths.setdefault(_key(row), []).append((told[2] - told[1]) / 2 / told[0])
    everything = [each for one in held.values() for each in one]
    return {
        "all": _counted(everything, [each for one in widths.values() for each in one]),
        "rows": {key: _counted(one, widths.get(key, [])) for key, one in held.items()},
    }


def _counted(held: Sequence[bool | None], widths: Sequence[float]) -> dict[str, Any]:
    told = [each for each in held if each is not None]
    return {
        "count": len(held),
        "withheld": _share(len(held) - len(told), len(held)),
        "covered_of_told": _share(sum(told), len(told)),
        "covered_or_withheld": _share(sum(told) + len(held) - len(told), len(held)),
        "median_half_width": round(median(widths), 4) if widths else None,
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def headlines(runs: Sequence[Run], truth: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """By run: the speed-up of what seems the fastest at the first batch size, as `coverage` counts."""
    fastest = [
        min(
            (row for row in run["rows"] if row["batch_size"] == run["rows"][0]["batch_size"]),
            key=lambda row: float(row["p50"][0]),
        )
        for run in runs
    ]
    alone = [{**run, "rows": [row]} for run, row in zip(runs, fastest, strict=True)]
    return coverage(alone, truth, "speedup")["all"]


def off(runs: Sequence[Run], truth: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Rows whose speed-up is off by more than 15 %: how many, and how many of them say so.

    Where the speed-up is withheld, the estimate is what the two medians of the row would give.
    """
    wrong, withheld, flagged, held = [], 0, 0, 0
    for run in runs:
        base = {row["batch_size"]: row for row in run["rows"] if row["variant"] == run["baseline"]}
        for row in run["rows"]:
            known = run.get("truth", truth).get(_key(row), {}).get("speedup")
            other = base.get(row["batch_size"])
            if known is None or other is None:
                continue
            told = row["speedup"]
            value = told[0] if told else other["p50"][0] / row["p50"][0]
            if abs(value / known["value"] - 1) <= OFF:
                continue
            doubted = any(_doubts(one).intersection(_DOUBTS) for one in (row, other))
            wrong.append({"row": _key(row), "estimate": round(value, 3), "told": told is not None})
            withheld += told is None
            flagged += told is None or doubted
            held += told is not None and told[1] <= known["value"] <= told[2]
    return {
        "rows": len(wrong),
        "withheld": _share(withheld, len(wrong)),
        "withheld_or_flagged": _share(flagged, len(wrong)),
        "interval_holds_the_truth": _share(held, len(wrong)),
        "which": wrong,
    }


def doubts(runs: Sequence[Run]) -> dict[str, float | None]:
    """The share of rows with each doubt."""
    rows = [row for run in runs for row in run["rows"]]
    return {kind: _share(sum(kind in _doubts(row) for row in rows), len(rows)) for kind in _DOUBTS}


def _doubts(row: Row) -> set[str]:
    """The kinds of a row's flags."""
    return {Flag.model_validate(flag).kind for flag in row["flags"]}


def judged(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that is said of the runs, and whether it is as wanted."""
    by_kind = {kind: [r for r in runs if r["kind"] == kind] for kind in ("truth", "idle", "loaded")}
    truth = truth_of(by_kind["truth"], runs[0]["baseline"])
    runs = beside_truths(runs)
    by_kind = {kind: [run for run in runs if run["kind"] == kind] for kind in by_kind}
    found: dict[str, Any] = {"truth": truth, "without_truth": _untold(runs, truth)}
    for kind in ("idle", "loaded"):
        found[kind] = {
            "runs": len(by_kind[kind]),
            "median_seconds": _median([run["seconds"] for run in by_kind[kind]]),
            "median_measuring_s": _median([run["measuring_s"] for run in by_kind[kind]]),
            "speedup": coverage(by_kind[kind], truth, "speedup"),
            "p50": coverage(by_kind[kind], truth, "p50"),
            "headline": headlines(by_kind[kind], truth),
            "doubts": doubts(by_kind[kind]),
            "spread": _deciles([r["spread"] for run in by_kind[kind] for r in run["rows"]]),
            "waited": _deciles([r["waited"] for run in by_kind[kind] for r in run["rows"]]),
            "off": off(by_kind[kind], truth),
        }
    found["wanted"] = wanted(found)
    return found


def _untold(runs: Sequence[Run], truth: dict[str, dict[str, Any]]) -> list[str]:
    """The rows that cannot be judged, as no truth was told of them."""
    keys = {_key(row) for run in runs for row in run["rows"] if row["variant"] != run["baseline"]}
    return sorted(key for key in keys if "speedup" not in truth.get(key, {}))


def _deciles(values: Sequence[float]) -> list[float]:
    """From the smallest to the largest; bars can be set by these."""
    ordered = sorted(values)
    return [ordered[round(tenth / 10 * (len(ordered) - 1))] for tenth in range(11)] if ordered else []


def _median(values: Sequence[float]) -> float | None:
    return round(median(values), 1) if values else None


def wanted(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each target with what was found; `kept` is None where nothing was measured that could tell."""
    idle, loaded = found["idle"], found["loaded"]
    at_least: Callable[[float, float], bool] = lambda value, bar: value >= bar  # noqa: E731
    at_most: Callable[[float, float], bool] = lambda value, bar: value <= bar  # noqa: E731
    headline = idle["headline"]
    targets = {
        "idle: the headline holds the truth or is withheld": (
            headline["covered_or_withheld"],
            COVERS,
            at_least,
        ),
        "idle: the headline holds the truth where it is told": (
            headline["covered_of_told"],
            COVERS,
            at_least,
        ),
        "idle: the headline is withheld": (headline["withheld"], WITHHELD, at_most),
        "idle: median half-width of the headline": (
            headline["median_half_width"],
            HALF_WIDTH,
            at_most,
        ),
        "idle: speed-up holds the truth or is withheld": (
            idle["speedup"]["all"]["covered_or_withheld"],
            COVERS,
            at_least,
        ),
        "idle: speed-up holds the truth where it is told": (
            idle["speedup"]["all"]["covered_of_told"],
            COVERS,
            at_least,
        ),
        "idle: median holds the truth where it is told": (
            idle["p50"]["all"]["covered_of_told"],
            COVERS,
            at_least,
        ),
        "idle: speed-up is withheld": (idle["speedup"]["all"]["withheld"], WITHHELD, at_most),
        "idle: median half-width of the speed-up": (
            idle["speedup"]["all"]["median_half_width"],
            HALF_WIDTH,
            at_most,
        ),
        "idle: rows called noisy": (idle["doubts"]["noisy"], NOISY, at_most),
        "idle: rows called fluctuating": (idle["doubts"]["fluctuating"], NOISY, at_most),
        "loaded: estimates off by over 15 % are withheld or flagged": (
            loaded["off"]["withheld_or_flagged"],
            FLAGGED,
            at_least,
        ),
        "loaded: speed-up holds the truth or is withheld": (
            loaded["speedup"]["all"]["covered_or_withheld"],
            COVERS,
            at_least,
        ),
    }
    return {
        name: {"found": value, "wanted": bar, "kept": None if value is None else keeps(value, bar)}
        for name, (value, bar, keeps) in targets.items()
    }


def said(found: dict[str, Any]) -> str:
    """The table that is printed."""
    lines = [
        f"{'':26} {'truth':>8} {'drift':>6} |{'idle: held':>11}{'withheld':>9}{'± half':>7} |"
        f"{'loaded: held':>13}{'withheld':>9}{'± half':>7}"
    ]
    for figure in ("speedup", "p50"):
        lines.append({"speedup": "speed-up", "p50": "p50 ms"}[figure])
        for key, known in found["truth"].items():
            if figure not in known:
                continue
            line = f"  {key:24} {known[figure]['value']:8.3f} {known[figure]['drift']:6.1%} |"
            for kind, width in (("idle", 11), ("loaded", 13)):
                line += _columns(found[kind][figure]["rows"].get(key), width) + " |"
            lines.append(line.rstrip(" |"))
        line = f"  {'all':24} {'':15} |"
        for kind, width in (("idle", 11), ("loaded", 13)):
            line += _columns(found[kind][figure]["all"], width) + " |"
        lines.append(line.rstrip(" |"))
    for kind in ("idle", "loaded"):
        one = found[kind]
        off_by = one["off"]
        deciles = {word: one[word] for word in ("spread", "waited") if one[word]}
        lines += [f"{kind}: deciles of {word} {found}" for word, found in deciles.items()]
        lines.append(
            f"{kind}: {one['runs']} runs of {one['median_seconds']} s, "
            f"{one['median_measuring_s']} s of it measuring (medians); "
            f"off by over 15 %: {off_by['rows']} rows, withheld "
            f"{_percent(off_by['withheld'])}, or flagged {_percent(off_by['withheld_or_flagged'])}; "
            + ", ".join(f"{word} {_percent(share)}" for word, share in one["doubts"].items())
        )
    if found["without_truth"]:
        lines.append(f"no truth, not judged: {'; '.join(found['without_truth'])}")
    for name, one in found["wanted"].items():
        word = {True: "kept", False: "BROKEN", None: "not told"}[one["kept"]]
        lines.append(f"{word:8} {name}: {_percent(one['found'])} (wanted {_percent(one['wanted'])})")
    return "\n".join(lines)


def _columns(found: dict[str, Any] | None, width: int) -> str:
    if found is None:
        return " " * (width + 16)
    shares = (found["covered_of_told"], found["withheld"], found["median_half_width"])
    return "".join(
        f"{_percent(share):>{size}}" for share, size in zip(shares, (width, 9, 7), strict=True)
    )


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.1%}"


def lines_of(path: Path) -> list[Run]:
    """The runs done so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    """Run what is not done yet, judge all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--idle", type=int, default=40)
    parser.add_argument("--loaded", type=int, default=20)
    parser.add_argument("--truths", type=int, default=4)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "quickstart.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "optcli-headline")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--judge-only", action="store_true", help="run nothing")
    parser.add_argument("--from-samples", action="store_true", help="judge what today's code says")
    chosen = parser.parse_args()
    chosen.recipe = chosen.recipe.resolve()
    chosen.samples = Path()
    chosen.work.mkdir(parents=True, exist_ok=True)
    log = chosen.work / "runs.jsonl"
    asked = {"recipe": chosen.recipe.name, "settings": common(chosen), "seed": chosen.seed}
    runs = lines_of(log)
    if runs and any(run["asked"] != asked for run in runs):
        raise SystemExit(f"{log} holds runs of other settings: name another --work, or remove it")
    done = {(run["kind"], run["index"]) for run in runs}
    order = [] if chosen.judge_only else planned(chosen.idle, chosen.loaded, chosen.truths)
    if order and not runs:
        build(chosen)  # fills the store; not counted
    for kind, index in order:
        if (kind, index) in done:
            continue
        if kind == "loaded":
            with coming_and_going(chosen.seed * 1000 + index):
                run = build(chosen)
        else:
            run = build(chosen, *(["latency.mode=table"] if kind == "truth" else []))
        runs.append({"kind": kind, "index": index, "asked": asked, **run})
        if chosen.samples.is_file():
            kept = chosen.work / "samples"
            kept.mkdir(exist_ok=True)
            shutil.copyfile(chosen.samples, kept / f"{kind}-{index}.npz")
        with log.open("a") as stream:
            stream.write(json.dumps(runs[-1]) + "\n")
        first = "; ".join(
            f"{row['variant']} {row['speedup'][0]:.3g}" if row["speedup"] else f"{row['variant']} n/a"
            for row in run["rows"]
            if row["batch_size"] == run["rows"][0]["batch_size"]
        )
        print(f"{kind} {index}: {run['seconds']} s, {first}", flush=True)
    if not runs:
        raise SystemExit(f"{log} has no runs yet")
    if chosen.from_samples:
        runs = [from_samples(run, chosen.work / "samples") for run in runs]
    found = judged(runs)
    about = {
        "measured": [runs[0]["at"], runs[-1]["at"]],
        "environment": environment.describe(("torch", "onnxruntime", "openvino")),
        "asked": asked,
    }
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    chosen.results.write_text(json.dumps({**about, **found}, indent=1) + "\n")
    chosen.results.with_suffix(".jsonl").write_text(log.read_text())
    print(said(found))
    judged_kinds = {run["kind"] for run in runs}
    return int(
        any(
            one["kept"] is False or (one["kept"] is None and name.partition(":")[0] in judged_kinds)
            for name, one in found["wanted"].items()
        )
    )


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    checked.told(main)
