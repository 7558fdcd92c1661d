"""How much the tests find: errors planted into optcli one by one, and the first test that fails.

    python benchmarks/mutants.py draw --seed 1 --count 120 > mutants.json
    python benchmarks/mutants.py reach mutants.json REACHED.txt COSTS.jsonl [--tree FOLDER] ARGUMENTS
    python benchmarks/mutants.py run mutants.json RESULTS.jsonl --costs COSTS.jsonl [--tree FOLDER] \
        [--reached REACHED.txt] [--minutes 10] [--jobs 1] [--only ID ...]
    python benchmarks/mutants.py table RESULTS.jsonl [BEFORE.jsonl]

`draw` takes lines of `optcli/` by chance, each that can be changed as likely as the next, and changes
one place of each (`mutant_edits.py`).

`reach` runs the suite once, by pytest's ARGUMENTS, and notes which tests come to the place of which
mutant, in processes too that they start (`mutant_reach.py`), and what each test costs. With its result
`run` gives a mutant these tests only.

`run` plants each mutant into a copy of the tree and runs tests until one fails: first those of `make
fast`, of the mutant's own room and then of the others; then `slow` and `long` tests of its room, and
at last those of the others. Rooms that import the mutated module come first among the others, and
files that take less time first among equals. COSTS is written by `suite_cost.py run` in the same
tree: it says which tests there are, how they are marked and how long they take. Tests that do not fit
into what is left of `--minutes` are not run (`cut`). RESULTS gets a line a mutant at once; ids that
have one are not run again.

A failure counts if the test passes alone in the tree without the mutant. Otherwise the test is noted as
flaky, and the others go on. Tests that do not end count as failed (`how` is `hang`) if they took over
three times what COSTS says and a minute more; if the mutant's time is over before that, they do not.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import suite_cost
from mutant_copies import LATE, Copy
from mutant_edits import Mutant, draw
from mutant_reach import LOG, Reached, read_reached, with_markers

REPOSITORY = Path(__file__).resolve().parents[1]
LEVELS = {"": "fast", "slow": "test", "long": "test-all"}
# What a mutant meets in turn: tests with this mark, of its own room or of the others.
TURNS = (("", True), ("", False), ("slow", True), ("long", True), ("slow", False), ("long", False))
_PASSED, _WRONG_USE = (0, 5), 4  # exit codes of pytest; 5 is for no tests
_SAID = re.compile(r"(\S+\.py::.+?)( <- .*?)?( (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*)? *$")
Test = dict[str, Any]  # a line of COSTS
Line = dict[str, Any]  # a line of RESULTS


def importing(tree: Path) -> dict[str, set[str]]:
    """The rooms whose code or tests import each module."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in [*(tree / "optcli").rglob("*.py"), *(tree / "tests").rglob("*.py")]:
        room = _room(path.relative_to(tree).as_posix())
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [each.name for each in node.names]
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}", *(f"{node.module}.{name}" for name in names)]
                for name in names:
                    rooms[name].add(room)
    return rooms


def _room(path: str) -> str:
    return suite_cost.room({"test": path})


def _file(test: str) -> str:
    return test.partition("::")[0]


def _function(test: str) -> str:
    """The id of a test without its parameters."""
    return test.partition("[")[0]


def stages(
    mutant: Mutant, tests: Sequence[Test], rooms: Mapping[str, set[str]]
) -> Iterator[tuple[str, list[Test]]]:
    """The tests in the order in which a mutant meets them: a level, and what one pytest runs."""
    module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    near, own = rooms.get(module, set()), _room(mutant.path)
    found: dict[tuple[str, bool], list[Test]] = defaultdict(list)
    for test in tests:
        if "gpu" not in test["marks"]:
            mark = next((mark for mark in ("long", "slow") if mark in test["marks"]), "")
            found[mark, suite_cost.room(test) == own].append(test)
    for turn in TURNS:
        files: dict[str, list[Test]] = defaultdict(list)  # whole ones: their tests share fixtures
        for test in found[turn]:
            files[_file(test["test"])].append(test)
        order = sorted(files, key=lambda file: (_room(file) not in near, _seconds(files[file]), file))
        yield LEVELS[turn[0]], [test for file in order for test in files[file]]


def reaching(mutant: Mutant, tests: Sequence[Test], reached: Reached) -> list[Test]:
    """The tests that come to the place of a mutant; all where that was not seen, as on import."""
    names = reached.get(mutant.id)
    return [t for t in tests if {t["test"], _file(t["test"])} & names] if names else list(tests)


def _seconds(tests: Sequence[Test]) -> float:
    return sum(map(suite_cost.total, tests))


def fitting(tests: Sequence[Test], seconds: float) -> list[Test]:
    """The tests that fit into that time, in their order; of a file none after one that does not."""
    full, taken = set(), []
    for test in tests:
        if _file(test["test"]) in full or suite_cost.total(test) > seconds:
            full.add(_file(test["test"]))
        else:
            seconds -= suite_cost.total(test)
            taken.append(test)
    return taken


def _patience(tests: Sequence[Test]) -> float:
    """How many seconds tests may take before they hang."""
    return 60 + 3 * _seconds(tests)


def judge(mutant: Mutant, order: Iterator[tuple[str, list[Test]]], copy: Copy, minutes: float) -> Line:
    """What became of a mutant."""
    began = time.monotonic()
    found: Line = {**asdict(mutant), "outcome": "survived", "level": None, "test": None, "how": None}
    found |= {"tried": 0, "cut": False, "flaky": []}
    for level, waiting in order:
        while waiting and found["outcome"] == "survived":
            left = began + 60 * minutes - time.monotonic()
            chosen = fitting(waiting, left)
            found["cut"] |= len(chosen) < len(waiting)
            limit = min(left, _patience(chosen))
            with copy.with_mutant(mutant) as planted:
                if not planted:
                    return {**found, "outcome": "gone"}
                code, started, failed = attempt(copy, chosen, limit) if chosen else (0, [], None)
            found["tried"] += len(started)
            if code == LATE and limit == left:
                found["cut"], failed = True, None
            if failed is None:
                break
            if passes(copy, failed, chosen):
                how = "hang" if code == LATE else "failure"
                found |= {"outcome": "killed", "level": level, "test": failed, "how": how}
            else:
                found["flaky"].append(failed)
                left_out = [t for t in chosen if t["test"] in started or _is(t, failed)]
                waiting = [t for t in chosen if left_out and t not in left_out]
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def attempt(copy: Copy, tests: Sequence[Test], limit: float) -> tuple[int, list[str], str | None]:
    """Pytest's exit code, the tests that began, and the one that failed."""
    asked = [test["test"] for test in tests]
    code, output = copy.pytest(asked, limit)
    if code == _WRONG_USE and "ERROR collecting" not in output:
        # Parameters that stand in ids are others with the mutant: take all that there are now.
        gone = {_function(test) for test in asked if _function(test) in output}
        asked = list(dict.fromkeys(_function(t) if _function(t) in gone else t for t in asked))
        code, output = copy.pytest(asked, limit)
    said = [found[1] for line in output.splitlines() if (found := _SAID.match(line))]
    known = {*asked, *map(_function, asked)}
    started = list(dict.fromkeys(t for t in said if t in known or _function(t) in known))
    return code, started, None if code in _PASSED else _failed(output, [*asked[:1], *started])


def _failed(output: str, started: Sequence[str]) -> str:
    """What ended a run: a file that cannot be imported, a test that was skipped, or the last one."""
    if unread := re.search(r"^_+ ERROR collecting (\S+) _+$", output, re.MULTILINE):
        return unread[1]
    skipped = re.search(r"^(\S+\.py::.+?) was skipped ", output, re.MULTILINE)  # by tests/suite.py
    if skipped and not re.search(r"^(FAILED|ERROR) ", output, re.MULTILINE):
        return skipped[1]
    return started[-1]


def _is(test: Test, failed: str) -> bool:
    """Whether a test is what failed, with whatever parameters."""
    return failed in (_file(test["test"]), test["test"]) or _function(test["test"]) == _function(failed)


def passes(copy: Copy, failed: str, tests: Sequence[Test]) -> bool:
    """Whether what failed passes alone, without the mutant."""
    same = [test for test in tests if _is(test, failed)]
    if "::" not in failed:
        return copy.pytest([failed], _patience([]), "--collect-only")[0] == 0
    known = any(test["test"] == failed for test in same)
    return copy.pytest([failed if known else _function(failed)], _patience(same))[0] == 0


def mutants_of(file: Path) -> list[Mutant]:
    """The mutants that `draw` wrote."""
    return [Mutant(**each) for each in json.loads(file.read_text())["mutants"]]


def reach(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Note which tests come to which mutants; pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="m-", ignore_cleanup_errors=True) as folder:
        copy = Copy(options.tree.resolve(), Path(folder, "0"))
        copy.variables[LOG] = str(options.reached.resolve())
        drawn = mutants_of(options.mutants)
        marked = sum(copy.change(path, text) for path, text in with_markers(copy.tree, drawn))
        print(f"{len(drawn)} mutants in {marked} files", flush=True)
        costs = [sys.executable, suite_cost.__file__, "run", str(options.costs.resolve())]
        return copy.run([*costs, "-p", "no:cacheprovider", *arguments])


def run(options: argparse.Namespace) -> None:
    """Judge the mutants that have no line in the results yet."""
    drawn = mutants_of(options.mutants)
    reached = read_reached(options.reached) if options.reached else {}
    known = {line["id"] for line in read(options.results)} if options.results.exists() else set()
    waiting = [m for m in drawn if m.id not in known and m.id in (options.only or [m.id])]
    tree, copies, free = options.tree.resolve(), [], SimpleQueue[Copy]()
    with (
        tempfile.TemporaryDirectory(prefix="m-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        try:
            for number in range(options.jobs):
                copies.append(Copy(tree, Path(folder, str(number))))
                free.put(copies[-1])
            _, tests = suite_cost.read(options.costs)
            ids = copies[0].tests(_file(test["test"]) for test in tests)
            tests, rooms = [test for test in tests if test["test"] in ids], importing(tree)
            print(f"{len(waiting)} mutants, {len(tests)} tests, {len(ids) - len(tests)} without cost")

            def judged(mutant: Mutant) -> Line:
                copy = free.get()
                try:
                    order = stages(mutant, reaching(mutant, tests, reached), rooms)
                    return judge(mutant, order, copy, options.minutes)
                finally:
                    free.put(copy)

            for done in as_completed([pool.submit(judged, mutant) for mutant in waiting]):
                with options.results.open("a") as file:
                    file.write(json.dumps(done.result()) + "\n")
                print(_told(done.result()), flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.close()


def read(results: Path) -> list[Line]:
    """The lines of results."""
    return [json.loads(line) for line in results.read_text().splitlines()]


def _told(line: Line) -> str:
    """A mutant and what became of it, in a line."""
    old, new = (" ".join(line[name].split())[:60] for name in ("old", "new"))
    end = {"killed": f"{line['how']} of `{line['test']}`", "gone": "this tree has no such place"}
    known = end.get(line["outcome"], "survived" + ", not all tests fitted" * line["cut"])
    return f"{line['id']} `{line['path']}:{line['line']}` {line['kind']}: `{old}` → `{new}`: {known}"


def table(results: list[Line], before: list[Line] | None) -> Iterator[str]:
    """Mutants by what found them, and those that survived, in Markdown."""
    columns = [results] if before is None else [before, results]
    counts = [Counter(line["level"] or line["outcome"] for line in column) for column in columns]
    names = ["mutants"] if before is None else ["before", "now"]
    yield from (f"| found by | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names))
    rows = {level: f"`make {level}`" for level in LEVELS.values()}
    for key, name in {**rows, "survived": "nothing", "gone": "no such place"}.items():
        yield f"| {name} | {' | '.join(str(count[key]) for count in counts)} |"
    survivors = [line for line in results if line["outcome"] == "survived"]
    yield from ("", "Survivors:", "", *(f"- {_told(line)}" for line in survivors))
    if before is not None:
        found = {line["id"]: line for line in before if line["outcome"] == "killed"}
        lost = [line for line in survivors if line["id"] in found]
        yield from ("", f"Found before and not now: {len(lost)}", "")
        yield from (f"- {_told(found[line['id']])}" for line in lost)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("draw")
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--count", type=int, required=True)
    one.add_argument("--tree", type=Path, default=REPOSITORY)
    second = commands.add_parser("reach")
    second.add_argument("mutants", type=Path)
    second.add_argument("reached", type=Path)
    second.add_argument("costs", type=Path)
    second.add_argument("--tree", type=Path, default=REPOSITORY)
    other = commands.add_parser("run")
    other.add_argument("mutants", type=Path)
    other.add_argument("results", type=Path)
    other.add_argument("--costs", type=Path, required=True)
    other.add_argument("--tree", type=Path, default=REPOSITORY)
    other.add_argument("--reached", type=Path)
    other.add_argument("--minutes", type=float, default=10)
    other.add_argument("--jobs", type=int, default=1)
    other.add_argument("--only", nargs="+", metavar="ID")
    last = commands.add_parser("table")
    last.add_argument("results", type=Path)
    last.add_argument("before", type=Path, nargs="?")
    options, rest = parser.parse_known_args()
    if rest and options.command != "reach":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if options.command == "draw":
        mutants = draw(options.tree.resolve(), options.seed, options.count)
        drawn = {"seed": options.seed, "mutants": [asdict(each) for each in mutants]}
        print(json.dumps(drawn, indent=1))
    elif options.command == "reach":
        return reach(options, rest)
    elif options.command == "run":
        for each in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
            signal.signal(each, signal.default_int_handler)
        run(options)
    else:
        print("\n".join(table(read(options.results), options.before and read(options.before))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
