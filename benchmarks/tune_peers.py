"""What `optcli tune` finds beside what the libraries' own ways make, measured in turns.

    .venv/bin/python benchmarks/tune_peers.py --shared FOLDER --work FOLDER [--networks NAMES] \
        [--minutes 15] [--olive VENV/bin/python]
    .venv/bin/python benchmarks/tune_peers.py --shared FOLDER --work FOLDER --repeats 20 --minutes 5 \
        --networks mobilenet_v3_small_fashion

For each network: a recipe without variants and without hints, `optcli tune` of it from an empty store,
and the peers by their own APIs and defaults, each with a fixed batch of 1 and of 8 and two threads:
NNCF with OpenVINO, ONNX Runtime's `quantize_static` per channel, torchao's PT2E with AOTInductor, and
the search of Olive for as many minutes where `--olive` names an interpreter that has it. The float
network in each runtime is measured, too. All are judged on the same evaluation samples. Then processes
take turns, in random order, in rounds of about 30 ms. The figure is the median over the rounds of (time
of the best peer / time of the winner): above 1 the winner is faster. A peer outside the bar is not the
best; where all are outside, the fastest float network is. `ratio_with_float` lets the float networks
compete always. A peer that failed, or left no INT8 file, is named with the end of what it printed, and
has no times: the ratios are beside the others.

A third part of the labelled samples, which neither the search nor its judgement reads, says what the
winner's promise is worth. `--repeats` runs the search alone with that many seeds, which also divide the
samples; `--first-seed 12` goes on where a run ended. What a network failed of stands in its row.
Results are written after each network; every row has its command and the revision of the code. Ends
with 1 where an aim is missed or a network failed.

One network at a time, on as many days as it takes: `--networks NAME` puts its row in the place of its
older one and leaves the other rows. A run that fails does not replace one that ended well. `--list`
says which rows there are and how long each network takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import checked
import peers
import tune_results
from checked import NotDoneError
from tune_networks import NETWORKS, ROOT, THREADS, Network

RESULTS = ROOT / "benchmarks" / "results" / "tune.json"
INT8 = ("openvino-int8", "onnx-int8", "pt2e-aoti")
FLOAT = ("openvino", "onnx", "aoti")
WINNER = "winner"
_WORKER = Path(__file__).with_name("tune_worker.py")
_SEARCH = "Olive's search"
_PART_S = 1800.0


def main() -> None:
    """Search, make the peers, measure, print a table, write the results."""
    # Whoever ends it ends the search that it waits for, too: one that went on would disturb the next.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = _arguments()
    if given.list:
        print("\n".join(tune_results.listed(given.results, given.minutes, bool(given.olive))))
        return
    if given.work is None:
        sys.exit("--work FOLDER is needed: what is made stays there")
    names = given.networks.split(",")
    if unknown := [name for name in names if name not in NETWORKS]:
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(NETWORKS)}")
    command = "benchmarks/tune_peers.py " + " ".join(_shown(sys.argv[1:]))
    for name in names:
        for seed in range(given.first_seed, given.first_seed + (given.repeats or 1)):
            began = time.monotonic()
            network = NETWORKS[name]
            work = given.work.absolute() / (f"{name}-{seed}" if given.repeats else name)
            row: dict[str, Any] = {"network": name, "seed": seed, "command": command}
            row |= {"when": time.strftime("%Y-%m-%d %H:%M"), "load_before": os.getloadavg()[0]}
            row["revision"] = _revision()
            try:
                if given.repeats:
                    _repeat(network, seed, work, given, row)
                else:
                    _compare(network, work, given, row)
            except (RuntimeError, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
                row["failed"] = f"{type(error).__name__}: {error}"
            row |= {"seconds": round(time.monotonic() - began, 1), "load_after": os.getloadavg()[0]}
            row = _without_paths(row, given)
            tune_results.keep(
                given.results, "repeats" if given.repeats else "networks", row, _machine()
            )
            if given.repeats:
                shutil.rmtree(work, ignore_errors=True)  # 20 stores are large
            print(tune_results.line(row), flush=True)
    found = tune_results.summarize(given.results)
    print(json.dumps(found, indent=1))
    sys.exit(0 if tune_results.reached(given.results, names) else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--minutes", type=float, help="of a search; default: 15, without training 10")
    parser.add_argument("--shared", type=Path, help="holds models/ and datasets/")
    parser.add_argument("--work", type=Path, help="what is made stays here")
    parser.add_argument("--list", action="store_true", help="what was measured, and what each takes")
    parser.add_argument("--olive", help="a Python interpreter that has Olive; default: not run")
    parser.add_argument("--methods", default=",".join((*INT8, *FLOAT)), help="of the peers")
    parser.add_argument("--samples", type=int, help="the most of each judging part; default: all")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--repeats", type=int, help="search so often with different seeds, time nothing"
    )
    parser.add_argument("--first-seed", type=int, default=0, help="where a run of repeats goes on")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def _shown(arguments: Sequence[str]) -> list[str]:
    """The command without the paths of this machine."""
    shown, path = [], False
    for each in arguments:
        shown.append("FOLDER" if path else each)
        path = each in ("--shared", "--work", "--results", "--olive")
    return shown


def _without_paths(row: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """The row without the paths of this machine, which errors and artifacts name."""
    row.get("winner", {}).pop("made", None)
    text = json.dumps(row)
    for folder in filter(None, (given.work, given.shared, ROOT, Path.home())):
        text = text.replace(str(folder.absolute()), "FOLDER")
    found: dict[str, Any] = json.loads(text)
    return found


def _revision() -> str | None:
    """The commit that was measured, with a mark where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _machine() -> dict[str, Any]:
    from optcli import environment

    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    libraries = ["torch", "torchao", "onnxruntime", "openvino", "nncf"]
    return {"cpu": cpu, "cores": os.cpu_count(), "versions": environment.describe(libraries)}


def _compare(network: Network, work: Path, given: argparse.Namespace, row: dict[str, Any]) -> None:
    """Fill the row of one network: the search, the peers, their accuracy, their times."""
    base = _searched(network, 0, work, given, row)
    contenders = [*_peers(network, base, given, row), *_olive(network, base, given, row)]
    judged = {"float": _judged({**base, "method": "eager"}, ("evaluation", "third"))}
    row["float"] = {part: each["value"] for part, each in judged["float"].items()}
    ready = []
    for each in contenders:
        name = f"{each['method']}, batch {each['size']}"
        try:
            found = _judged({**base, **each}, ("evaluation",))["evaluation"]
        except NotDoneError as error:
            _failed(row, name, error)
            continue
        loss = judged["float"]["evaluation"]["value"] - found["value"]
        inside = tune_results.inside(loss, network.max_drop)
        row["peers"][name] |= {"value": found["value"], "loss": loss, "inside": inside}
        ready.append(each)
    winner = row.get("winner")
    if winner is not None:
        _third(network, base, winner, judged["float"])
    for size in network.batch_sizes:
        # A winner that is none leaves the peers' times without a ratio, which is told.
        rivals = [each for each in ready if each["size"] == size]
        if winner is not None:
            rivals.append({"method": WINNER, "made": winner["made"], "size": size})
        times, died = _in_turns(base, rivals, given.rounds)
        for method, error in died.items():
            _failed(row, f"{method}, batch {size}", error)
        row["times"][str(size)] = times
        insides = {
            method: row["peers"][f"{method}, batch {size}"]["inside"]
            for method in times
            if method != WINNER
        }
        row["ratios"][str(size)] = tune_results.ratios(row["times"][str(size)], insides, FLOAT)
    row["limits"] = tune_results.limits(row, network)


def _repeat(
    network: Network, seed: int, work: Path, given: argparse.Namespace, row: dict[str, Any]
) -> None:
    """Fill the row of one search: what its winner loses on samples that nobody read."""
    base = _searched(network, seed, work, given, row)
    if "winner" in row:
        _third(network, base, row["winner"], _judged({**base, "method": "eager"}, ("third",)))


def _searched(
    network: Network, seed: int, work: Path, given: argparse.Namespace, row: dict[str, Any]
) -> dict[str, Any]:
    """Write recipe and samples, run `optcli tune`; gives what every worker is told."""
    shutil.rmtree(work, ignore_errors=True)  # trials and artifacts of an earlier run cost no time
    work.mkdir(parents=True)
    minutes = given.minutes or network.minutes
    base = {"network": network.name, "work": str(work), "seed": seed}
    base |= {"shared": str(given.shared.absolute()) if given.shared else None}
    row |= {"minutes": minutes, "max_drop": network.max_drop, "peers": {}, "times": {}, "ratios": {}}
    row["samples"] = _alone("prepare", {**base, "most": given.samples})
    row["tuning"], tuned = _tuned(network, work, minutes, seed)
    if tuned is not None:
        made = _alone("winner", {**base, "recipe": tuned["path"], "variant": tuned["variant"]})
        row["winner"] = {**tuned, "made": made}
        row["winner"].pop("path")
    return base


def _tuned(
    network: Network, work: Path, minutes: float, seed: int
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What the search answers, and its winner where it has one."""
    options = ["--minutes", str(minutes), "--seed", str(seed), "--json"]
    places = ["--store", str(work / "store"), "--artifacts", str(work / "artifacts")]
    recipe = str(work / f"{network.name}.yaml")
    # A search without a winner ends with a verdict, and has an answer, too.
    found = checked.optcli_answer(
        *("tune", recipe, *options, *places),
        keep=work / "tune.log",
        env=_environment(),
        timeout=180 * minutes + _PART_S,
    )
    winner = next((each for each in found["finalists"] if each["variant"] == found["winner"]), None)
    if winner is not None:
        trial = next(each for each in found["trials"] if each["number"] == winner["trial"])
        winner = {**winner, "label": trial["label"], "passes": trial["passes"], "path": found["path"]}
    return tune_results.of_search(found), winner


def _peers(
    network: Network, base: dict[str, Any], given: argparse.Namespace, row: dict[str, Any]
) -> list[dict[str, Any]]:
    """The peers that could be made, for each batch size."""
    found = []
    for method in filter(None, given.methods.split(",")):
        for size in network.batch_sizes:
            name = f"{method}, batch {size}"
            if network.family == "coco" and "aoti" in method:
                row["peers"][name] = {"not_run": "it starts from a PyTorch network: this is a file"}
                continue
            one = {"method": method, "size": size}
            try:
                began = time.monotonic()
                one |= _alone("peer", {**base, **one})
                row["peers"][name] = {"made_in_s": round(time.monotonic() - began, 1)}
                found.append(one)
            except NotDoneError as error:
                _failed(row, name, error)
    return found


def _failed(row: dict[str, Any], name: str, error: Exception) -> None:
    """A peer has no figures in its row but why it failed, which is printed at once, too."""
    row["peers"][name] = {"failed": str(error)}
    print(f"{row['network']}: {name} FAILED: {error}", file=sys.stderr, flush=True)


def _olive(
    network: Network, base: dict[str, Any], given: argparse.Namespace, row: dict[str, Any]
) -> list[dict[str, Any]]:
    """What Olive's search chooses, for each batch size: one file with any batch."""
    if not given.olive or network.family == "coco":
        reason = "its accuracy metrics know no mAP" if given.olive else "no --olive PYTHON was given"
        row["peers"]["olive"] = {"not_run": reason}
        return []
    try:
        began = time.monotonic()
        config = _alone("olive", {**base, "minutes": row["minutes"]})["config"]
        search = Path(__file__).parent / "olive" / "search.py"
        done = checked.run(
            _SEARCH,
            [given.olive, str(search), config],
            keep=Path(base["work"]) / "olive.log",
            timeout=180 * row["minutes"] + _PART_S,
            env={**_environment(), "OLIVE_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": str(THREADS)},
        )
        said = checked.last_line(_SEARCH, done)
        if said["path"] is None:
            raise NotDoneError(_SEARCH, "ended well and chose no model", done.stdout + done.stderr)
        try:
            checked.model(Path(said["path"]), quantized=True)
        except ValueError as error:
            raise NotDoneError(_SEARCH, f"chose {said['path']}, but {error}") from None
    except NotDoneError as error:
        _failed(row, "olive", error)
        return []
    seconds = round(time.monotonic() - began, 1)
    for size in network.batch_sizes:
        about = {"made_in_s": seconds, "chosen": said["chosen"], "models": said["models"]}
        row["peers"][f"{tune_results.OLIVE}, batch {size}"] = about
    return [
        {"method": tune_results.OLIVE, "size": size, "path": said["path"]}
        for size in network.batch_sizes
    ]


def _third(
    network: Network, base: dict[str, Any], winner: dict[str, Any], reference: dict[str, Any]
) -> None:
    """What the winner loses on evaluation and third samples, as this script counts it."""
    size = max(network.batch_sizes)
    parts = tuple(reference)
    found = _judged({**base, "method": WINNER, "made": winner["made"], "size": size}, parts)
    for part in parts:
        winner[f"{part}_judged"] = tune_results.loss(reference[part], found[part], network.max_drop)


def _judged(payload: dict[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """By part the value of the metric, and which samples are right where the metric tells."""
    # The largest that the network takes: a file may have its batch fixed.
    size = max(NETWORKS[payload["network"]].batch_sizes)
    found = _alone("judge", {"size": size, **payload, "parts": list(parts)})
    return {part: found[part] for part in parts if part in found}


def _in_turns(
    base: dict[str, Any], rivals: list[dict[str, Any]], rounds: int
) -> tuple[dict[str, Any], dict[str, NotDoneError]]:
    """Milliseconds of each by round, from processes that take turns in random order; and who died.

    Who died has no times. Raises NotDoneError where it was the winner.
    """
    chance = random.Random(0)
    times: dict[str, list[float]] = {}
    died: dict[str, NotDoneError] = {}

    def dies(error: NotDoneError, method: str) -> None:
        if method == WINNER:
            raise error
        died[method] = error
        times.pop(method, None)

    with ExitStack() as stack:
        running: dict[str, _Serving] = {}
        for each in rivals:
            method = each["method"]
            try:
                running[method] = stack.enter_context(_Serving({**base, **each}))
                times[method] = []
            except NotDoneError as error:
                dies(error, method)
        for _ in range(rounds):
            for method in chance.sample(list(times), len(times)):
                count = max(2, round(peers.ROUND_S / running[method].usual_s))
                try:
                    times[method].append(round(1e3 * running[method].take_turn(count), 6))
                except NotDoneError as error:
                    dies(error, method)
    return {method: {"ms": median(each), "rounds_ms": each} for method, each in times.items()}, died


class _Serving:
    """A process with an open artifact that calls it when told."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self._log = Path(payload["work"]) / f"serve-{payload['method']}.log"
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            env=_environment(payload),
        )
        self._method = payload["method"]
        try:
            self.usual_s = self._ask(json.dumps(payload))
        except NotDoneError:
            self.__exit__()
            raise

    def __enter__(self) -> _Serving:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def take_turn(self, count: int) -> float:
        """Seconds of a call, the median of so many."""
        return self._ask(str(count))

    def _ask(self, line: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it died of is read below
        while answer := self._process.stdout.readline():
            if answer.startswith("seconds "):
                return float(answer.split()[1])
        said = self._log.read_text()
        raise NotDoneError(self._method, "died while it was timed", said)


def _alone(what: str, payload: dict[str, Any]) -> dict[str, Any]:
    """A task of `tune_worker.py` in a fresh process. Raises NotDoneError with what it printed."""
    method = f" of {payload['method']}" if "method" in payload else ""
    found: dict[str, Any] = checked.answer(
        f"{what}{method}",
        [sys.executable, str(_WORKER), what],
        input=json.dumps(payload),
        timeout=_PART_S,
        env=_environment(payload),
    )
    return found


def _environment(payload: dict[str, Any] | None = None) -> dict[str, str]:
    """The variables of this process, and those that the runner of the artifact wants."""
    from optcli.runners import find

    made = (payload or {}).get("made")
    runner = find(made["runner"] if made else "torch")
    own = runner(threads=THREADS).environment()
    return {**os.environ, **own, "PYTHONPATH": checked.path_of(ROOT)}


if __name__ == "__main__":
    main()
