"""Where the time of the tests goes: by room, by test and by what a test starts.

    python benchmarks/suite_cost.py run costs.jsonl -n auto --dist worksteal --suite all
    python benchmarks/suite_cost.py table costs.jsonl [--longest 40] [--beside before.jsonl]

`run` gives pytest what follows the file, with this module as a plugin. Each process that runs tests
writes a line a test: seconds of set-up, call and tear-down, processor seconds, and what it started. It
looks at its descendants four times a second, so it misses what lives shorter, but for the count of
processes that the test itself starts, which an audit hook sees. Processes that leave the tree of their
parent are not seen.

Seconds are of one process of pytest: with `-n 2` the run takes about half their sum.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

RESULTS = "SUITE_COST_RESULTS"
SAMPLED_S = 0.25
LIBRARIES = {
    "torch": "libtorch_cpu.so",
    "onnxruntime": "onnxruntime_pybind11_state",
    "openvino": "libopenvino.so",
}
# What a process is, by its command line; the first that matches.
KINDS = (
    ("ray cluster", re.compile(r"gcs_server(\s|$)")),
    ("ray process", re.compile(r"raylet|ray::|/ray/|ray\.util|\bray (start|stop)\b")),
    ("compiler", re.compile(r"cc1plus|cc1(\s|$)|g\+\+|/(gcc|cc|as|ld|collect2)(\s|$)")),
    ("optcli worker", re.compile(r"optcli\.workers|warm_workers|_fork_server")),
    ("optcli command", re.compile(r"-m optcli(\s|$)|bin/optcli(\s|$)")),
    ("server", re.compile(r"redis-server|moto_server|tritonserver|serve run|launch\.py|s3_server")),
    ("pytest", re.compile(r"pytest|execnet")),
)
# By this a test is told from others: the first of these that it starts.
STARTED = (
    *("ray cluster", "ray process", "server", "compiler", "optcli command", "process with torch"),
    *("optcli worker", "pytest", "other"),
)


class Recorder:
    """The plugin: one line of JSON a test, written when the test has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._test: dict[str, Any] | None = None
        self._processes: dict[int, dict[str, Any]] = {}
        self._own = psutil.Process()
        self._lock = threading.Lock()
        sys.addaudithook(self._heard)
        threading.Thread(target=self._sample, daemon=True).start()

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._test is None:
            return
        if event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
            self._test["started"][event] += 1

    def _sample(self) -> None:
        while True:
            time.sleep(SAMPLED_S)
            if self._test is not None:
                with self._lock:
                    self._look()

    def _look(self) -> None:
        try:
            children = self._own.children(recursive=True)
        except psutil.Error:
            return
        for child in children:
            known = self._processes.get(child.pid)
            try:
                if known is None or known["created"] != child.create_time():
                    known = {"created": child.create_time(), "kind": "", "libraries": [], "cpu": 0.0}
                    known["test"], known["looks"] = self._test, 0
                    self._processes[child.pid] = known
                known["looks"] += 1
                if known["looks"] in (1, 4, 12, 40):
                    known["kind"] = _kind(" ".join(child.cmdline()))
                    maps = Path(f"/proc/{child.pid}/maps").read_text()
                    known["libraries"] = [name for name, file in LIBRARIES.items() if file in maps]
                times = child.cpu_times()
                known["cpu"] = times.user + times.system
            except (psutil.Error, OSError):
                continue

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        own = os.times()
        test: dict[str, Any] = {"test": item.nodeid, "seconds": {}, "started": Counter()}
        test["marks"] = sorted(m for m in ("slow", "long", "gpu") if item.get_closest_marker(m))
        test["at"] = time.time()
        self._test = test
        try:
            return (yield)
        finally:
            with self._lock:
                if any(test["started"].values()):
                    self._look()
                self._test = None
                of_this = [each for each in self._processes.values() if each["test"] is test]
                # Those that live on are counted for the test that started them, up to here.
                self._processes = {
                    pid: p for pid, p in self._processes.items() if p["test"] is not test
                }
                for pid in [p.pid for p in _alive(self._own)]:
                    self._processes.setdefault(
                        pid, {"created": _created(pid), "kind": "", "libraries": [], "cpu": 0.0,
                              "test": None, "looks": 100},
                    )  # fmt: skip
            now = os.times()
            test["processor_s"] = round(now.user + now.system - own.user - own.system, 3)
            by_kind: dict[str, list[float]] = defaultdict(list)
            libraries: Counter[str] = Counter()
            for each in of_this:
                by_kind[each["kind"]].append(round(each["cpu"], 2))
                libraries.update(each["libraries"])
            test["processes"] = by_kind
            test["libraries"] = libraries
            with self._path.open("a") as file:
                file.write(json.dumps(test) + "\n")

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._test is not None:
            self._test["seconds"][report.when] = round(report.duration, 4)
            self._test["outcome"] = report.outcome


def _alive(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _created(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


def _kind(command: str) -> str:
    return next((name for name, pattern in KINDS if pattern.search(command)), "other")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests, not in the one that hands them out."""
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if RESULTS in os.environ and not hands_out:
        folder = Path(os.environ[RESULTS])
        config.pluginmanager.register(Recorder(folder / f"{os.getpid()}.jsonl"), "suite cost")


def run(results: Path, arguments: list[str]) -> int:
    """Run pytest with those arguments and write what each test cost; pytest's exit code."""
    folder = results.with_suffix(".parts")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    environment = {
        **os.environ,
        RESULTS: str(folder.resolve()),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
        ),
    }
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-p", "suite_cost", *arguments]
    code = subprocess.run(command, env=environment, check=False).returncode
    lines = [line for part in sorted(folder.iterdir()) for line in part.read_text().splitlines()]
    head = {"wall_s": round(time.monotonic() - started, 1), "code": code, "arguments": arguments}
    results.write_text("\n".join([json.dumps(head), *lines]) + "\n")
    return code


def read(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head of a run and its tests; a folder of parts is read as an unfinished run."""
    if results.is_dir():
        lines = [line for part in sorted(results.iterdir()) for line in part.read_text().splitlines()]
        return {"wall_s": float("nan")}, [json.loads(line) for line in lines]
    head, *lines = results.read_text().splitlines()
    return json.loads(head), [json.loads(line) for line in lines]


def total(test: dict[str, Any]) -> float:
    """The seconds of one test, its fixtures included."""
    return float(sum(test["seconds"].values()))


def room(test: dict[str, Any]) -> str:
    """The folder of `tests/` in which the test lies, or its file at the top."""
    parts = test["test"].partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else "(top)"


def started(test: dict[str, Any]) -> str:
    """The costliest kind of thing that a test starts, by the order of STARTED."""
    processes = {kind for kind, each in test["processes"].items() if each}
    if test["libraries"].get("torch"):
        processes.add("process with torch")
    return next((kind for kind in STARTED if kind in processes), "nothing that was seen")


def mark(test: dict[str, Any]) -> str:
    """The level of a test: `long`, `slow` or `fast`."""
    return next((each for each in ("long", "slow") if each in test["marks"]), "fast")


def processor(test: dict[str, Any]) -> float:
    """Processor seconds of the test's own process and of those that it started and that were seen."""
    return float(test["processor_s"] + sum(sum(each) for each in test["processes"].values()))


def rows(
    name: Callable[[dict[str, Any]], str], tests: list[dict[str, Any]], before: list[dict[str, Any]]
) -> Iterable[list[str]]:
    """One row a group, the costliest first; `before` adds the seconds that another run took."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test in tests:
        groups[name(test)].append(test)
    others: dict[str, float] = defaultdict(float)
    for test in before:
        others[name(test)] += total(test)
    for group, members in sorted(groups.items(), key=lambda pair: -sum(map(total, pair[1]))):
        by_mark: dict[str, float] = defaultdict(float)
        for test in members:
            by_mark[mark(test)] += total(test)
        figures = [sum(map(total, members)), sum(map(processor, members))]
        figures += [by_mark[each] for each in ("long", "slow", "fast")]
        figures += [others[group]] if before else []
        yield [group, str(len(members)), *(f"{each:.0f}" for each in figures)]


COLUMNS = ["tests", "seconds", "processor", "long", "slow", "fast"]


def table(results: Path, longest: int, beside: Path | None) -> None:
    """Print rooms, what tests start and files in Markdown, then the longest tests."""
    head, tests = read(results)
    other, before = read(beside) if beside else ({}, [])
    for label, run, which in (("", head, tests), ("before: ", other, before)):
        if which:
            seconds = sum(map(total, which))
            print(f"{label}{len(which)} tests, {seconds:.0f} s in all, wall {run['wall_s']:.0f} s")
    groups = {"room": room, "starts": started, "file": lambda test: test["test"].partition("::")[0]}
    for what, name in groups.items():
        columns = [what, *COLUMNS, *(["seconds before"] if beside else [])]
        print(f"\n| {' | '.join(columns)} |")
        print("| --- |" + " ---: |" * (len(columns) - 1))
        for row in list(rows(name, tests, before))[:longest]:
            print(f"| {' | '.join(row)} |")
    print()
    for test in sorted(tests, key=total, reverse=True)[:longest]:
        print(f"{total(test):7.1f}  {mark(test)}  {test['test']}")


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("results", type=Path)
    other = commands.add_parser("table")
    other.add_argument("results", type=Path)
    other.add_argument("--longest", type=int, default=40)
    other.add_argument("--beside", type=Path)
    options, rest = parser.parse_known_args()
    if options.command == "run":
        return run(options.results, rest)
    table(options.results, options.longest, options.beside)
    return 0


if __name__ == "__main__":
    sys.exit(main())
