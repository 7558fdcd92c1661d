"""A plugin of pytest: no test is left out unseen.

Every run prints what was skipped, with the reason, and fails over

- a skip that is not `needs(...)` (see `needs.py`), or for want of something that is here,
- a test that was expected to fail (`xfail`).

A failure is printed when it happens: a run that is stopped for its time would else not say what failed.

`--suite fast` (`make fast`) runs what has no mark, and does not import the files that are marked as a
whole. It fails over a test without a mark, or a file without one, that imported one of `HEAVY`.

With `--suite usual` (`make test`) or `--suite all` (`make test-all`) a run stands for the whole suite:
`usual` leaves out what is marked `long`, `all` nothing. It fails as well over

- a test that is written in a file of the tests' folder and was not collected, whatever left it out: the
  name of a folder, a file, a class or a function, `collect_ignore`, a second function of the same name,
- a test that was deselected by anything but that mark, or collected and not run,
- a skip for want of a package that `make` installs.

With pytest-xdist the processes that collect tell the one that reports.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from needs import OPTIONAL, Lacking, missing, needs
from packaging.requirements import Requirement
from written_tests import stray, written

FAST, USUAL, ALL = "fast", "usual", "all"
MARKS = ("slow", "long", "gpu")
HEAVY = ("torch", "openvino", "nncf", "ray", "triton", "tensorrt_rtx")
_LACKING = "lacking"  # the attribute of a report that says what was missing, and what was found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("suite").addoption(
        "--suite",
        choices=(FAST, USUAL, ALL),
        help="`fast`: what has no mark; or the run stands for the whole suite, `usual` without what is "
        "marked long, or `all`: it fails where a test that is written was not run",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than processors for `-n auto`, since slow tests often wait; none for logic.

    With two more the whole suite took no less time.
    """
    usable = getattr(os, "sched_getaffinity", None)
    processors = len(usable(0)) if usable else os.cpu_count() or 1
    return processors if config.getoption("--suite") == FAST else processors + 1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(kind, *about): skip where the machine lacks it (tests/needs.py)"
    )
    config.pluginmanager.register(Suite(config), "suite of tests")


@dataclass
class Collected:
    """What a process found: tests by their ids, the functions that they are of, those it is to run.

    `meant` are those that it leaves out as it should; `heavy` says what imported a heavy library.
    """

    found: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    selected: set[str] = field(default_factory=set)
    meant: set[str] = field(default_factory=set)
    heavy: set[str] = field(default_factory=set)

    def add(self, record: dict[str, list[str]]) -> None:
        """Join what another process found."""
        for name, values in record.items():
            getattr(self, name).update(values)


class Suite:
    """One run of pytest, seen by the process that reports it and by those that collect for it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        suite: str | None = config.getoption("--suite")
        self._fast = suite == FAST
        self._whole = None if self._fast else suite
        self._collected = Collected()
        self._ran: set[str] = set()
        self._skipped: dict[str, tuple[tuple[str, ...] | None, str]] = {}
        self._expected_to_fail: set[str] = set()
        self._wrong: list[str] = []

    # What collects: the workers of pytest-xdist, or the one process there is.

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if self._fast and collection_path.suffix == ".py" and _is_marked(collection_path):
            return True
        return None

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._collected.found.add(item.nodeid)
        self._collected.functions.add(_function(item))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if marks := MARKS if self._fast else ("long",) if self._whole == USUAL else ():
            left_out = [item for item in items if any(map(item.get_closest_marker, marks))]
            if left_out:
                items[:] = [item for item in items if not any(map(item.get_closest_marker, marks))]
                self._config.hook.pytest_deselected(items=left_out)
                self._collected.meant.update(item.nodeid for item in left_out)
        processes = getattr(self._config, "workerinput", {}).get("workercount", 1)
        items[:] = _long_first(items, processes)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.selected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("needs"):
            needs(*mark.args)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._no_heavy_import(item.nodeid):
            return (yield)

    @contextmanager
    def _no_heavy_import(self, who: str) -> Generator[None, None, None]:
        """Note whether a test of `fast`, or the file that it stands in, imports a heavy library."""
        before = set(HEAVY) - sys.modules.keys() if self._fast else set()
        yield
        if imported := sorted(before & sys.modules.keys()):
            self._collected.heavy.add(f"{who} imported {', '.join(imported)}: mark it slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        return _with_need(report, call)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        with self._no_heavy_import(collector.nodeid):
            report = yield
        return _with_need(report, getattr(report, "call", None))

    # What reports.

    def pytest_testnodedown(self, node: Any) -> None:
        self._collected.add(getattr(node, "workeroutput", {}).get("suite", {}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._ran.add(report.nodeid)
        if hasattr(report, "wasxfail"):
            self._expected_to_fail.add(report.nodeid)
        elif report.skipped:
            self._skip(report)
        elif report.failed:
            self._print(report)

    def _print(self, failure: pytest.TestReport) -> None:
        printer = self._config.pluginmanager.get_plugin("terminalreporter")
        if printer is not None and printer.config.option.tbstyle != "no":
            printer.ensure_newline()
            printer.section(f"{failure.nodeid} failed ({failure.when})", "_", red=True)
            printer.write(failure.longreprtext + "\n", flush=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skip(report)

    def _skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if lacking := getattr(report, _LACKING, None):
            self._skipped[report.nodeid] = (tuple(lacking["need"]), lacking["text"])
        else:
            said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._skipped[report.nodeid] = (None, said)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(self._config, "workeroutput"):
            found = {name: sorted(values) for name, values in vars(self._collected).items()}
            self._config.workeroutput["suite"] = found
            return
        if self._config.option.collectonly:
            return
        self._wrong = [*self._unexpected_skips(), *self._unexpected_failures()]
        self._wrong += sorted(self._collected.heavy)
        if self._whole is not None:
            self._wrong += self._left_out()
        if self._wrong and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _unexpected_skips(self) -> Iterable[str]:
        probe = cache(missing)
        installed = _installed(self._config.rootpath) if self._whole is not None else set()
        for test, (need, said) in sorted(self._skipped.items()):
            if need is None:
                yield f"{test} was skipped without a declared need: {said}"
            elif probe(*need) is None:
                yield f"{test} was skipped for want of what is here: {said}"
            elif need[0] == "package" and OPTIONAL[need[1]] in installed:
                yield f"{test} was skipped for want of a package that the extra dev installs: {said}"

    def _unexpected_failures(self) -> Iterable[str]:
        for test in sorted(self._expected_to_fail):
            yield f"{test} is marked xfail: mend it, or test what holds"

    def _left_out(self) -> Iterable[str]:
        root = self._config.rootpath
        (folder,) = (root / name for name in self._config.getini("testpaths"))
        found = written(folder, root)
        yield from found.wrong
        for file in stray(root, folder):
            yield f"{file} is called a test file and lies outside of {folder.name}/"
        skipped = {test for test in self._skipped if "::" not in test}
        for test in sorted(found.tests - self._collected.functions):
            if test.partition("::")[0] not in skipped:
                yield f"{test} is written and was not collected"
        for test in sorted(self._collected.found - self._collected.selected - self._collected.meant):
            yield f"{test} was collected and deselected"
        for test in sorted(self._collected.selected - self._ran):
            yield f"{test} was collected and not run"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by_reason: dict[str, list[str]] = {}
        for test, (_, said) in sorted(self._skipped.items()):
            by_reason.setdefault(said, []).append(test)
        if by_reason:
            terminalreporter.section("skipped")
        for reason, tests in by_reason.items():
            terminalreporter.line(f"{reason} ({len(tests)})")
            for test in tests:
                terminalreporter.line(f"    {test}")
        if self._wrong:
            terminalreporter.section("this run does not count", red=True, bold=True)
            for line in self._wrong:
                terminalreporter.line(line)
            # Plugins such as Hypothesis's look into the attributes of all that is counted.
            terminalreporter.stats["unexpected"] = [SimpleNamespace(text=line) for line in self._wrong]


def _is_marked(path: Path) -> bool:
    """Whether a file says of all its tests that they are slow, long or for a GPU."""
    text = path.read_text(encoding="utf-8", errors="replace")
    marks = re.search(r"^pytestmark = (.*)$", text, re.MULTILINE)
    return marks is not None and any(f"mark.{mark}" in marks[1] for mark in MARKS)


def _long_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """The tests, such that each process begins with files that have long ones, wholly long ones first.

    A test of minutes that comes last keeps one process busy when the others have nothing left.
    pytest-xdist hands out the list in parts of as many tests (`--dist worksteal`).
    """
    parts: list[list[tuple[bool, list[pytest.Item]]]] = [[] for _ in range(processes)]
    others: list[pytest.Item] = []
    total, before = sum(map(_is_long, items)), 0
    for _, group in groupby(items, key=lambda item: item.path):
        file = list(group)
        if number := sum(map(_is_long, file)):
            parts[before * processes // total].append((number < len(file), file))
            before += number
        else:
            others += file
    found: list[pytest.Item] = []
    for index, part in enumerate(parts):
        end = len(found) + (len(items) - len(found)) // (processes - index)
        for _, file in sorted(part, key=lambda each: each[0]):
            found += file
        here = max(0, end - len(found))
        found += others[:here]
        del others[:here]
    return found + others


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _function(item: pytest.Item) -> str:
    """`FILE::CLASS::FUNCTION` of a test, without its parameters."""
    name = getattr(item, "originalname", None) or item.name
    return item.nodeid.removesuffix(item.name) + name


def _with_need(report: Any, call: pytest.CallInfo[Any] | None) -> Any:
    """The report of a skip with what was missing, as data that goes from process to process."""
    if call is not None and call.excinfo is not None and isinstance(call.excinfo.value, Lacking):
        lacking = call.excinfo.value
        setattr(report, _LACKING, {"need": list(lacking.need), "text": str(lacking)})
    return report


def _installed(root: Path) -> set[str]:
    """The distributions that `make` installs here: what the project needs, and its extra `dev`."""
    file = root / "pyproject.toml"
    if not file.is_file():
        return set()
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    asked = [*project.get("dependencies", ()), *project.get("optional-dependencies", {}).get("dev", ())]
    wanted = (Requirement(each) for each in asked)
    return {
        re.sub(r"[-_.]+", "-", each.name).lower()
        for each in wanted
        if each.marker is None or each.marker.evaluate()
    }
