"""Where the time of the tests goes: by room, by test and by what a test starts.

    python benchmarks/suite_cost.py run costs.jsonl -n auto --dist worksteal --suite all
    python benchmarks/suite_cost.py table costs.jsonl [--tests 40] [--beside before.jsonl]

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
from collections.abc import Iterable
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


def rows(groups: dict[str, list[dict[str, Any]]]) -> Iterable[list[str]]:
    """One row a group: tests, seconds, and what they started."""
    for name, tests in sorted(groups.items(), key=lambda pair: -sum(map(total, pair[1]))):
        kinds: Counter[str] = Counter()
        libraries: Counter[str] = Counter()
        for test in tests:
            kinds.update({kind: len(each) for kind, each in test["processes"].items()})
            libraries.update(test["libraries"])
        long = sum(total(test) for test in tests if "long" in test["marks"])
        light = sum(total(test) for test in tests if not test["marks"])
        yield [
            name,
            str(len(tests)),
            f"{sum(map(total, tests)):.0f}",
            f"{long:.0f}",
            f"{light:.0f}",
            str(sum(sum(test["started"].values()) for test in tests)),
            str(kinds["optcli command"]),
            str(kinds["ray cluster"]),
            str(kinds["server"]),
            str(kinds["compiler"]),
            str(libraries["torch"]),
        ]


COLUMNS = [
    "room", "tests", "seconds", "of them long", "of them unmarked", "processes started",
    "optcli commands", "Ray clusters", "servers", "compilers", "processes with torch",
]  # fmt: skip


def table(results: Path, longest: int) -> None:
    """Print the rooms, then the longest files and tests, in Markdown."""
    head, tests = read(results)
    print(f"{len(tests)} tests, {sum(map(total, tests)):.0f} s in all, wall {head['wall_s']:.0f} s\n")
    by_room: dict[str, list[dict[str, Any]]] = defaultdict(list)
    by_file: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test in tests:
        by_room[room(test)].append(test)
        by_file[test["test"].partition("::")[0].removeprefix("tests/")].append(test)
    for groups in (by_room, by_file):
        print("| " + " | ".join(COLUMNS) + " |")
        print("| --- |" + " ---: |" * (len(COLUMNS) - 1))
        for row in list(rows(groups))[:longest]:
            print("| " + " | ".join(row) + " |")
        print()
    for test in sorted(tests, key=total, reverse=True)[:longest]:
        print(f"{total(test):7.1f}  {','.join(test['marks']):10} {test['test']}")


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("results", type=Path)
    other = commands.add_parser("table")
    other.add_argument("results", type=Path)
    other.add_argument("--longest", type=int, default=40)
    options, rest = parser.parse_known_args()
    if options.command == "run":
        return run(options.results, rest)
    table(options.results, options.longest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
