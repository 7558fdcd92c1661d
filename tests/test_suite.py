"""The plugin that lets no test be left out unseen, on planted trees of tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import needs
import pytest
import suite
from written_tests import written

REPOSITORY = Path(__file__).resolve().parents[1]
ONE = "def test_one():\n    assert True\n"
TWO = "def test_two():\n    assert True\n"
PYTEST = "import pytest\n"
LONG = f"@pytest.mark.long\n{TWO}"
INI = """\
[pytest]
testpaths = tests
addopts = --strict-markers
norecursedirs = .*
empty_parameter_set_mark = fail_at_collect
filterwarnings = error::pytest.PytestCollectionWarning
markers =
    long: minutes
    slow: seconds
"""
PROJECT = """\
[project]
name = "x"
optional-dependencies = {dev = ["no_such.package>=1", "of-another-system; sys_platform == 'nowhere'"]}
"""
MOON = "import needs\nneeds.KINDS['moon'] = lambda: 'it is day'\nneeds.KINDS['sun'] = lambda: None\n"


@pytest.fixture
def tree(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """`tree({name: text}, *arguments, suite=...)`: pytest's result on these files of `tests/`."""
    monkeypatch.setattr(needs, "KINDS", dict(needs.KINDS))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "tests"))  # for the processes of pytest-xdist
    pytester.makeini(INI)

    def run(files: dict[str, str], *arguments: str, suite: str | None = None) -> pytest.RunResult:
        for name, text in {"conftest.py": MOON, "test_good.py": ONE, **files}.items():
            path = pytester.path / "tests" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        how = pytester.runpytest_subprocess if "-n" in arguments else pytester.runpytest_inprocess
        chosen = ("--suite", suite) if suite else ()
        return how("-p", "suite", "-p", "no:cacheprovider", *chosen, *arguments)

    return run


def wrong(result: pytest.RunResult) -> list[str]:
    """What the run says that it does not count for; its last line is pytest's own."""
    lines = result.outlines
    assert " in " in lines[-1], "pytest's closing line is gone"
    starts = [number for number, line in enumerate(lines) if "this run does not count" in line]
    said = [line for line in lines[starts[0] + 1 : -1] if line.strip()] if starts else []
    if said and "no tests ran" not in lines[-1]:
        assert f"{len(said)} unexpected" in lines[-1]
    return [line.removeprefix("tests/") for line in said]


NEEDS = {
    "test": "from needs import needs\ndef test_it():\n    needs('{}')\n",
    "mark": PYTEST + "@pytest.mark.needs('{}')\ndef test_it():\n    pass\n",
    "marks_of_a_file": PYTEST + "pytestmark = pytest.mark.needs('{}')\ndef test_it():\n    pass\n",
    "fixture": "import pytest\nfrom needs import needs\n@pytest.fixture(scope='module')\n"
    "def night():\n    needs('{}')\ndef test_it(night):\n    pass\n",
    "file": "from needs import needs\nneeds('{}')\ndef test_it():\n    pass\n",
}
FIXTURES = "from pytest import fixture\n" + "".join(
    f"@{decorator}\ndef test_{name}():\n    return 1\n"
    for name, decorator in (
        ("one", "pytest.fixture"),
        ("two", "pytest.fixture(scope='module')"),
        ("three", "fixture"),
        ("four", "fixture()"),
    )
)
WHOLE = {
    "room/test_class.py": "class TestRoom:\n    def test_two(self):\n        assert 2\n",
    "test_parametrized.py": f"{PYTEST}@pytest.mark.parametrize('x', [1, 'a[b]'])\n"
    "def test_one(x):\n    assert x\n",
    "shared_code.py": "def tested():\n    return 1\n",
    "test_fixtures.py": f"{PYTEST}{FIXTURES}@pytest.mark.usefixtures('test_three')\n"
    "def test_it(test_one):\n    assert test_one\n",
    "test_a.py": f"{PYTEST}{ONE}{LONG}",
    "test_z.py": f"{PYTEST}pytestmark = [pytest.mark.slow, pytest.mark.long]\n{TWO}{ONE}",
    **{f"test_sun_{name}.py": text.format("sun") for name, text in NEEDS.items()},
    **{f"test_moon_{name}.py": text.format("moon") for name, text in NEEDS.items()},
}


@pytest.mark.parametrize(("name", "left_out"), [(None, 0), ("all", 0), ("usual", 3), ("fast", 1)])
def test_a_whole_suite_passes_and_lists_what_the_machine_lacks(tree, name, left_out):
    """`fast` does not even import the file that is slow as a whole."""
    result = tree(WHOLE, "-v", suite=name)
    assert (result.ret, wrong(result)) == (0, [])
    passed = 14 if name in (None, "all") else 11
    result.assert_outcomes(passed=passed, skipped=5, deselected=left_out)
    result.stdout.fnmatch_lines(
        [
            *("*= skipped =*", "needs moon: it is day (5)", "    tests/test_moon_file.py"),
            *(f"    tests/test_moon_{each}.py::test_it" for each in sorted({*NEEDS} - {"file"})),
        ]
    )
    run = [line.split()[0].removeprefix("tests/") for line in result.outlines if "PASSED" in line]
    first = [
        f"test_{each}"
        for each in ("z.py::test_two", "z.py::test_one", "a.py::test_one", "a.py::test_two")
    ]
    first = first if passed == 14 else []
    assert run[: len(first) + 1] == [*first, "room/test_class.py::TestRoom::test_two"]


@pytest.mark.parametrize(
    ("tests", "processes", "order"),
    [
        ("aaBbccDDeeF", 1, "DDFBbaaccee"),
        ("aaBbccDDeeF", 2, "DDBbaFaccee"),
        ("aaBbccDDeeF", 3, "DDBbaacFcee"),
        ("aabcc", 2, "aabcc"),
    ],
)
def test_each_process_begins_with_files_that_have_long_tests(tests, processes, order):
    """A letter is a test of the file of that name, a capital one is long."""
    items = [
        SimpleNamespace(
            name=each, path=each.lower(), get_closest_marker=lambda _, each=each: each.isupper() or None
        )
        for each in tests
    ]
    assert "".join(item.name for item in suite._long_first(items, processes)) == order


LEFT_OUT = {
    # a folder that norecursedirs names, a file that pytest does not take for a test, a conftest
    ".hidden/test_it.py": ONE,
    "it_tests.py": ONE,
    "marked_tests.py": f"{PYTEST}@pytest.mark.usefixtures('tmp_path')\n{ONE}",
    "room/conftest.py": f"{ONE}collect_ignore = ['test_ignored.py']\ncollect_ignore_glob = ['*glob*']\n"
    "def pytest_collection_modifyitems(config, items):\n"
    "    items[:] = [item for item in items if 'test_hook' not in item.nodeid]\n"
    "    (item,) = [item for item in items if 'test_deselected' in item.nodeid]\n"
    "    items.remove(item)\n"
    "    config.hook.pytest_deselected(items=[item])\n",
    **{f"room/test_{name}.py": ONE for name in ("ignored", "of_a_glob", "hook", "deselected")},
    "test_class.py": f"{ONE}class Room:\n    def test_one(self):\n        assert 1\n",
    "test_attribute.py": ONE + "test_one.__test__ = False\n",
    "test_module.py": "__test__ = False\n" + ONE,
    "test_condition.py": "if 1 > 2:\n    def test_one():\n        pass\ndef test_two():\n    pass\n",
    "test_twice.py": ONE + ONE,
    "test_marks.py": f"{PYTEST}pytestmark = pytest.mark.slow\npytestmark = pytest.mark.long\n{TWO}",
    "test_taken.py": ONE + "test_one = None\n",
    "test_none.py": "def tset_one():\n    assert 1\n",
    "../benchmarks/test_beside.py": ONE,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["usual", "all"])
def test_a_test_that_something_leaves_out_fails_the_run(tree, name):
    result = tree(LEFT_OUT, suite=name)
    assert result.ret == 1
    files = (
        *(".hidden/test_it", "it_tests", "marked_tests", "room/conftest", "room/test_ignored"),
        *("room/test_of_a_glob", "test_attribute", "test_condition", "test_module", "test_taken"),
    )
    missed = [*(f"{each}.py::test_one" for each in files), "test_class.py::Room::test_one"]
    assert wrong(result) == [
        "test_marks.py sets pytestmark more than once: only the last one counts",
        "test_none.py is called a test file and holds no test",
        "test_twice.py::test_one is written more than once: only the last one runs",
        "benchmarks/test_beside.py is called a test file and lies outside of tests/",
        *(f"{each} is written and was not collected" for each in sorted(missed)),
        "room/test_deselected.py::test_one was collected and deselected",
        "room/test_hook.py::test_one was collected and deselected",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "usual", "all"])
def test_a_part_is_not_the_whole_suite(tree, name):
    files = {
        "test_elsewhere.py": ONE,
        "test_slow.py": f"{PYTEST}pytestmark = pytest.mark.slow\n{ONE}",
        "test_long.py": f"{PYTEST}{TWO.replace('two', 'k')}{LONG}",
    }
    part = ("tests/test_good.py", "tests/test_slow.py", "tests/test_long.py")
    chosen = ("-k", "not test_k", "-m", "not slow and not long")
    result = tree(files, *part, *chosen, suite=name)
    found = [
        "test_elsewhere.py::test_one is written and was not collected",
        "test_long.py::test_k was collected and deselected",
        "test_long.py::test_two was collected and deselected",
        "test_slow.py::test_one was collected and deselected",
    ]
    meant = {None: found, "usual": found[2:3], "all": []}[name]
    assert (result.ret, wrong(result)) == (int(name is not None), [x for x in found if x not in meant])
    result.assert_outcomes(passed=1, deselected=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "usual"])
def test_what_cannot_be_collected_is_an_error(tree, name):
    files = {
        "room/test_good.py": ONE,
        "test_class.py": "class TestIt:\n    def __init__(self): ...\n    def test_one(self): ...\n",
        "test_empty.py": f"{PYTEST}@pytest.mark.parametrize('x', [])\ndef test_one(x):\n    pass\n",
        "test_import.py": "import no_such_module\n" + ONE,
        "test_mark.py": f"{PYTEST}@pytest.mark.lnog\n{ONE}",
    }
    result = tree(files, suite=name)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    said = {re.match(r"ERROR tests/(\S+\.py)", line) for line in result.outlines}
    # Of two files of one name, either is imported first.
    assert {each[1].removeprefix("room/") for each in said if each} == {
        *("test_good.py", "test_class.py", "test_empty.py", "test_import.py", "test_mark.py")
    }
    result.stdout.fnmatch_lines(["*Interrupted: 5 errors during collection*"])


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_a_run_without_tests_is_not_the_whole(tree, option):
    result = tree({}, option, suite="usual")
    assert (result.ret, wrong(result)) == (1, ["test_good.py::test_one was collected and not run"])


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["pytest.exit('enough', 0)", "request.session.shouldstop = 'enough'"])
def test_a_run_that_ends_early_is_not_the_whole(tree, stop):
    text = f"{PYTEST}def test_a(request):\n    {stop}\n"
    result = tree({"test_a.py": text}, suite="usual")
    assert result.ret != 0


IMPORTED = "from needs import imported\nit = imported('{}')\ndef test_it():\n    pass\n"
SKIPS = {
    "bare": PYTEST + "def test_it():\n    pytest.skip('no GPU')\n",
    "fixture": f"{PYTEST}@pytest.fixture\ndef gpu():\n    pytest.skip('no')\n"
    "def test_it(gpu):\n    pass\n",
    "importorskip": PYTEST + "def test_it():\n    pytest.importorskip('no_such_module')\n",
    "mark": PYTEST + "@pytest.mark.skip(reason='needs moon: it is day')\ndef test_it():\n    pass\n",
    "module": PYTEST + "pytest.skip('no GPU', allow_module_level=True)\ndef test_it():\n    pass\n",
    "module_import": PYTEST + "pytest.importorskip('no_such_module')\ndef test_it():\n    pass\n",
    "skipif": PYTEST + "@pytest.mark.skipif(True, reason='no GPU')\ndef test_it():\n    pass\n",
    "unittest": "import unittest\ndef test_it():\n    raise unittest.SkipTest('no GPU')\n",
}
NIGHT = """\
import needs
def test_it(monkeypatch):
    monkeypatch.setitem(needs.KINDS, 'sun', lambda: 'it is night')
    needs.needs('sun')
"""
EXPECTED = "@pytest.mark.xfail(strict={0})\ndef test_{0}_{1}():\n    assert {1}\n"
BAD_SKIPS = {
    **{f"test_{name}.py": text for name, text in SKIPS.items()},
    # At the end the machine is asked again: this test bends what a probe looks at.
    "test_night.py": NIGHT,
    "test_moon.py": NEEDS["test"].format("moon"),
    "test_moon_file.py": NEEDS["file"].format("moon"),
    "test_expected.py": PYTEST
    + "".join(EXPECTED.format(*each) for each in ((True, False), (False, False), (False, True))),
    **{f"test_package_{name}.py": IMPORTED.format(name) for name in ("missing", "foreign", "unasked")},
}
PACKAGE = "test_package_missing.py was skipped for want of a package that the extra dev installs: "


def bad_skips(name: str | None) -> list[str]:
    """The beginnings of what a run says of BAD_SKIPS."""
    undeclared = [
        f"test_{each}.py{'' if 'module' in each else '::test_it'} was skipped without a declared need: "
        for each in SKIPS
    ]
    night = "test_night.py::test_it was skipped for want of what is here: needs sun: it is night"
    return [
        *sorted([*undeclared, night, *([PACKAGE] if name else [])]),
        *(
            f"test_expected.py::test_{each} is marked xfail: mend it, or test what holds"
            for each in ("False_False", "False_True", "True_False")
        ),
    ]


@pytest.fixture
def packages(pytester, monkeypatch):
    """Three that are not here: `make` installs one, one on another system, and one nowhere."""
    for name, called in (
        ("missing", "no-such-package"),
        ("foreign", "of-another-system"),
        ("unasked", "nobody-asks"),
    ):
        monkeypatch.setitem(needs.OPTIONAL, name, called)
    pytester.makepyprojecttoml(PROJECT)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "usual", "all"])
@pytest.mark.usefixtures("packages")
def test_a_skip_for_no_need_and_a_failure_that_is_expected_fail_the_run(tree, name):
    result = tree(BAD_SKIPS, suite=name)
    assert result.ret == 1
    said, expected = wrong(result), bad_skips(name)
    assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == expected
    result.assert_outcomes(passed=1, skipped=14, xfailed=2, xpassed=1)


@pytest.mark.slow
def test_failures_are_printed_before_the_run_goes_on_and_stay_failures(tree):
    """A run that is stopped for its time must have said by then what failed."""
    files = {
        "test_a.py": "def test_it():\n    assert 6 * 7 == 41\n",
        "test_b.py": NEEDS["test"].format("mars"),  # a kind that nobody declared
        "test_c.py": PYTEST + EXPECTED.format(True, True),
    }
    result = tree(files, "-v", suite="all")
    assert (result.ret, wrong(result)) == (1, [])
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*tests/test_a.py::test_it failed (call)*",
            "*assert (6 * 7) == 41*",
            "*tests/test_good.py::test_one*",
            "*= FAILURES =*",
        ]
    )


@pytest.mark.slow
def test_what_is_fast_imports_nothing_heavy(tree, monkeypatch):
    monkeypatch.setattr(suite, "HEAVY", ("heavy_one", "heavy_two", "heavy_three"))
    files = {
        **{f"{name}.py": "" for name in suite.HEAVY},
        "test_c.py": f"import heavy_three\n{TWO}",
        "test_a.py": f"{PYTEST}{LONG}def test_it():\n    import heavy_two, heavy_one\n{ONE}",
        "test_b.py": "def test_it():\n    import heavy_one\n",  # it is here already
        **{
            f"test_{mark}.py": f"{PYTEST}pytestmark = [pytest.mark.{mark}]\nraise OSError\n{TWO}"
            for mark in ("slow", "long", "gpu")
        },
    }
    result = tree(files, suite="fast")
    heavy = "test_a.py::test_it imported heavy_one, heavy_two: mark it slow"
    assert (result.ret, wrong(result)) == (1, [heavy, "test_c.py imported heavy_three: mark it slow"])
    result.assert_outcomes(passed=5, deselected=1)


@pytest.mark.slow
def test_processes_side_by_side_tell_what_they_left_out(tree):
    files = {
        **{name: text for name, text in BAD_SKIPS.items() if "package" not in name},
        "test_long.py": f"{PYTEST}{ONE}{LONG}",
        ".hidden/test_it.py": ONE,
    }
    result = tree(files, "-n", "2", "--dist", "worksteal", suite="usual")
    assert result.ret == 1
    said = wrong(result)
    expected = [*bad_skips(None), ".hidden/test_it.py::test_one is written and was not collected"]
    assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == expected
    result.stdout.fnmatch_lines(
        ["needs moon: it is day (2)", "    *test_moon.py::test_it", "    *test_moon_file.py"]
    )


@pytest.mark.long
@pytest.mark.slow
def test_processes_side_by_side_that_leave_out_nothing_print_a_failure(tree):
    files = {**WHOLE, "test_a.py": f"{PYTEST}{LONG}def test_it():\n    assert 6 * 7 == 41\n"}
    result = tree(files, "-n", "2", "--dist", "loadfile", suite="usual")
    assert (result.ret, wrong(result)) == (1, [])
    result.assert_outcomes(passed=10, failed=1, skipped=5)
    failed = ("*tests/test_a.py::test_it failed (call)*", "*assert (6 * 7) == 41*", "*= FAILURES =*")
    result.stdout.fnmatch_lines([*failed, "needs moon: it is day (5)"])


@pytest.mark.slow
def test_every_kind_says_what_is_missing_or_nothing():
    assert len(needs.KINDS) > 10
    about = {
        "package": ["timm"],
        "tensorrt": ["tensorrt"],
        "provider libraries": ["cuda"],
        "device file": ["null"],
    }
    for kind in needs.KINDS:
        found = needs.missing(kind, *about.get(kind, []))
        assert found is None or (isinstance(found, str) and found), kind
    assert needs.missing("device file", "null") is None
    assert needs.missing("device file", "no-such-device") == "no /dev/no-such-device here"
    assert (needs.missing("gpu") is None) is not (needs.missing("no gpu") is None)
    with pytest.raises(KeyError, match="OPTIONAL"):
        needs.missing("package", "numpy")


def test_make_runs_whole_suites():
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for target, name in (("test", "usual"), ("test-all", "all"), ("fast", "fast")):
        line = ["make", "--dry-run", target]
        done = subprocess.run(
            line, cwd=REPOSITORY, env=plain, capture_output=True, text=True, check=True
        )
        (command,) = [line for line in done.stdout.splitlines() if "-m pytest" in line]
        asked = command.partition("pytest")[2]
        assert f" --suite {name}" in asked
        assert not {"-k", "-m", "--ignore", "--deselect", "-x"} & set(asked.split())
        for part in ("ruff check .", "ruff format --check .", "/mypy"):
            assert (part in done.stdout) is (target != "fast")


@pytest.mark.slow
def test_what_is_written_is_found_in_this_project():
    """That nothing is wrong with it, and that pytest collects all, is asked of every whole run."""
    found = written(REPOSITORY / "tests" / "docs", REPOSITORY)
    assert found.wrong == ()
    assert "tests/docs/test_readme.py::test_the_recipe_of_the_readme_builds" in found.tests
    assert len({test.partition("::")[0] for test in found.tests}) > 6


def test_what_needs_a_gpu_lies_in_its_own_folder():
    """`make gpu-check` runs that folder: others import what machines with a GPU may lack."""
    here = Path(__file__).parent
    marked = {
        path.relative_to(here).parts[0]
        for path in here.rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text() and path != Path(__file__)
    }
    assert marked == {"gpu"}
