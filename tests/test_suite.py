"""The plugin that lets no test be left out unseen, on planted trees of tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import needs
import pytest
from written_tests import stray, written

REPOSITORY = Path(__file__).resolve().parents[1]
ONE = "def test_one():\n    assert True\n"
PYTEST = "import pytest\n"
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
MOON = "import needs\nneeds.KINDS['moon'] = lambda: 'it is day'\nneeds.KINDS['sun'] = lambda: None\n"


@pytest.fixture
def tree(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """`tree({name: text}, *arguments)`: pytest's result on these files of `tests/`."""
    monkeypatch.setattr(needs, "KINDS", dict(needs.KINDS))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "tests"))  # for the processes of pytest-xdist
    pytester.makeini(INI)

    def run(files: dict[str, str], *arguments: str) -> pytest.RunResult:
        for name, text in {"conftest.py": MOON, "test_good.py": ONE, **files}.items():
            path = pytester.path / "tests" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        how = pytester.runpytest_subprocess if "-n" in arguments else pytester.runpytest_inprocess
        return how("-p", "suite", "-p", "no:cacheprovider", *arguments)

    return run


def wrong(result: pytest.RunResult) -> list[str]:
    """What the run says that it does not count for; its last line is pytest's own."""
    lines = result.outlines
    assert " in " in lines[-1], "pytest's closing line is gone"
    starts = [number for number, line in enumerate(lines) if "this run does not count" in line]
    said = [line for line in lines[starts[0] + 1 : -1] if line.strip()] if starts else []
    if said and "no tests ran" not in lines[-1]:
        assert f"{len(said)} unexpected" in lines[-1]
    return said


def test_files_that_are_long_as_a_whole_run_first(tree):
    two = "def test_two():\n    assert True\n"
    files = {
        "test_a.py": f"{PYTEST}{ONE}@pytest.mark.long\n{two}",
        "test_z.py": f"{PYTEST}pytestmark = [pytest.mark.slow, pytest.mark.long]\n{two}{ONE}",
    }
    result = tree(files, "--suite", "all", "-v")
    run = [line.split()[0] for line in result.outlines if "PASSED" in line]
    assert [each.removeprefix("tests/") for each in run] == [
        *("test_z.py::test_two", "test_z.py::test_one"),
        *("test_a.py::test_one", "test_a.py::test_two", "test_good.py::test_one"),
    ]
    assert wrong(result) == []


@pytest.mark.parametrize("suite", [(), ("--suite", "usual"), ("--suite", "all")])
def test_a_whole_suite_passes(tree, suite):
    files = {
        "room/test_class.py": "class TestRoom:\n    def test_two(self):\n        assert 2\n",
        "test_parametrized.py": f"{PYTEST}@pytest.mark.parametrize('x', [1, 'a[b]'])\n"
        "def test_one(x):\n    assert x\n",
        "shared_code.py": "def tested():\n    return 1\n",
    }
    result = tree(files, *suite)
    assert result.ret == 0
    assert wrong(result) == []
    result.assert_outcomes(passed=4)


def file_name(path: str) -> str:
    return path.rpartition("/")[2]


LEFT_OUT = {
    "a folder that norecursedirs names": {".hidden/test_it.py": ONE},
    "a file that pytest does not take for a test": {"it_tests.py": ONE},
    "a conftest": {"room/conftest.py": ONE},
    "collect_ignore": {"room/conftest.py": "collect_ignore = ['test_it.py']\n", "room/test_it.py": ONE},
    "collect_ignore_glob": {
        "room/conftest.py": "collect_ignore_glob = ['*it*']\n",
        "room/test_it.py": ONE,
    },
    "a class by its name": {"test_it.py": "class Room:\n    def test_one(self):\n        assert 1\n"},
    "__test__": {"test_it.py": ONE + "test_one.__test__ = False\n"},
    "a module's __test__": {"test_it.py": "__test__ = False\n" + ONE},
    "a condition": {
        "test_it.py": "if 1 > 2:\n    " + ONE.replace("    ", "        ") + "def test_b():\n    pass\n"
    },
    "the same name a second time": {"test_it.py": ONE + ONE},
    "a name that is taken again": {"test_it.py": ONE + "test_one = None\n"},
    "a hook": {
        "room/conftest.py": "def pytest_collection_modifyitems(items):\n"
        "    items[:] = [item for item in items if 'test_it' not in item.nodeid]\n",
        "room/test_it.py": ONE,
    },
    "a file without a test": {"test_it.py": "def tset_one():\n    assert 1\n"},
    "deselection by a hook": {
        "conftest.py": MOON + "def pytest_collection_modifyitems(config, items):\n"
        "    config.hook.pytest_deselected(items=[items.pop()])\n",
        "test_it.py": ONE,
    },
    "a test that uses a fixture by mark": {
        "it_tests.py": f"{PYTEST}@pytest.mark.usefixtures('tmp_path')\n{ONE}"
    },
    "another file beside the tests": {"../benchmarks/test_it.py": ONE},
}


@pytest.mark.parametrize("files", LEFT_OUT.values(), ids=LEFT_OUT)
@pytest.mark.parametrize("suite", ["usual", "all"])
def test_a_test_that_something_leaves_out_fails_the_run(tree, files, suite):
    result = tree(files, "--suite", suite)
    assert result.ret == 1
    said = wrong(result)
    assert len(said) == 1, said
    assert file_name(said[0].partition(" ")[0].partition("::")[0]) in map(file_name, files)


def test_a_fixture_that_is_called_like_a_test_is_none(tree):
    made = "".join(
        f"@{decorator}\ndef test_{name}():\n    return 1\n"
        for name, decorator in (
            ("one", "pytest.fixture"),
            ("two", "pytest.fixture(scope='module')"),
            ("three", "fixture"),
            ("four", "fixture()"),
        )
    )
    used = "@pytest.mark.usefixtures('test_three')\ndef test_it(test_one):\n    assert test_one\n"
    result = tree({"test_it.py": f"{PYTEST}from pytest import fixture\n{made}{used}"}, "--suite", "all")
    assert (result.ret, wrong(result)) == (0, [])
    result.assert_outcomes(passed=2)


def test_by_default_a_folder_called_build_is_left_out_and_that_is_seen(tree, pytester):
    pytester.makeini("[pytest]\ntestpaths = tests\n")
    result = tree({"build/test_keys.py": ONE}, "--suite", "usual")
    assert result.ret == 1
    assert wrong(result) == ["tests/build/test_keys.py::test_one is written and was not collected"]


@pytest.mark.parametrize("arguments", [["-k", "good"], ["-m", "not slow"], ["tests/test_good.py"]])
@pytest.mark.parametrize("suite", ["usual", "all"])
def test_a_part_is_not_the_whole_suite(tree, arguments, suite):
    slow = f"{PYTEST}pytestmark = pytest.mark.slow\n{ONE}"
    result = tree({"test_it.py": slow}, "--suite", suite, *arguments)
    assert result.ret == 1
    assert {line.partition(" ")[0] for line in wrong(result)} == {"tests/test_it.py::test_one"}


def test_without_suite_a_part_may_be_run(tree):
    result = tree({"test_it.py": ONE}, "-k", "good")
    assert (result.ret, wrong(result)) == (0, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test_import.py", "import no_such_module\n" + ONE),
        ("room/test_good.py", ONE),
        (
            "test_class.py",
            "class TestIt:\n    def __init__(self): ...\n    def test_one(self): ...\n",
        ),
        (
            "test_empty.py",
            PYTEST + "@pytest.mark.parametrize('x', [])\ndef test_one(x):\n    assert x\n",
        ),
        ("test_mark.py", PYTEST + "@pytest.mark.lnog\n" + ONE),
    ],
)
@pytest.mark.parametrize("suite", [(), ("--suite", "usual")])
def test_what_cannot_be_collected_is_an_error(tree, name, text, suite):
    result = tree({name: text}, *suite)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*Interrupted: 1 error during collection*"])


LONG = f"{PYTEST}{ONE}@pytest.mark.long\ndef test_minutes():\n    assert True\n"


def test_what_is_long_is_left_out_of_the_usual_suite_alone(tree):
    usual = tree({"test_it.py": LONG}, "--suite", "usual")
    assert (usual.ret, wrong(usual)) == (0, [])
    usual.assert_outcomes(passed=2, deselected=1)
    every = tree({"test_it.py": LONG}, "--suite", "all")
    assert (every.ret, wrong(every)) == (0, [])
    every.assert_outcomes(passed=3)


def test_what_is_long_may_not_be_left_out_of_all(tree):
    result = tree({"test_it.py": LONG}, "--suite", "all", "-m", "not long")
    assert result.ret == 1
    assert wrong(result) == ["tests/test_it.py::test_minutes was collected and deselected"]


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_a_run_without_tests_is_not_the_whole(tree, option):
    result = tree({}, "--suite", "usual", option)
    assert result.ret == 1
    assert wrong(result) == ["tests/test_good.py::test_one was collected and not run"]


@pytest.mark.parametrize("stop", ["pytest.exit('enough', 0)", "request.session.shouldstop = 'enough'"])
def test_a_run_that_ends_early_is_not_the_whole(tree, stop):
    text = f"{PYTEST}def test_a(request):\n    {stop}\n"
    result = tree({"test_a.py": text}, "--suite", "usual")
    assert result.ret != 0


SKIPS = {
    "pytest.skip": PYTEST + "def test_it():\n    pytest.skip('no GPU')\n",
    "skipif": PYTEST + "@pytest.mark.skipif(True, reason='no GPU')\ndef test_it():\n    pass\n",
    "skip": PYTEST + "@pytest.mark.skip(reason='needs moon: it is day')\ndef test_it():\n    pass\n",
    "importorskip": PYTEST + "def test_it():\n    pytest.importorskip('no_such_module')\n",
    "unittest": "import unittest\ndef test_it():\n    raise unittest.SkipTest('no GPU')\n",
    "a fixture": "import pytest\n@pytest.fixture\ndef gpu():\n    pytest.skip('no')\n"
    "def test_it(gpu):\n    pass\n",
    "a module": PYTEST + "pytest.skip('no GPU', allow_module_level=True)\ndef test_it():\n    pass\n",
    "a module's import": PYTEST + "pytest.importorskip('no_such_module')\ndef test_it():\n    pass\n",
}


@pytest.mark.parametrize("text", SKIPS.values(), ids=SKIPS)
@pytest.mark.parametrize("suite", [(), ("--suite", "usual")])
def test_a_skip_for_no_declared_need_fails_the_run(tree, text, suite):
    result = tree({"test_it.py": text}, *suite)
    assert result.ret == 1
    (said,) = wrong(result)
    assert said.startswith("tests/test_it.py")
    assert "was skipped without a declared need" in said


NEEDS = {
    "a test": "from needs import needs\ndef test_it():\n    needs('{}')\n",
    "a mark": PYTEST + "@pytest.mark.needs('{}')\ndef test_it():\n    pass\n",
    "marks of a file": PYTEST + "pytestmark = pytest.mark.needs('{}')\ndef test_it():\n    pass\n",
    "a fixture": "import pytest\nfrom needs import needs\n@pytest.fixture(scope='module')\n"
    "def night():\n    needs('{}')\ndef test_it(night):\n    pass\n",
    "a file": "from needs import needs\nneeds('{}')\ndef test_it():\n    pass\n",
}


@pytest.mark.parametrize("text", NEEDS.values(), ids=NEEDS)
@pytest.mark.parametrize("suite", [(), ("--suite", "usual")])
def test_what_is_missing_skips_and_is_listed_with_its_reason(tree, text, suite):
    result = tree({"test_it.py": text.format("moon")}, *suite)
    assert (result.ret, wrong(result)) == (0, [])
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*= skipped =*", "needs moon: it is day (1)", "    tests/test_it.py*"])


@pytest.mark.parametrize("text", NEEDS.values(), ids=NEEDS)
def test_what_is_here_skips_nothing(tree, text):
    result = tree({"test_it.py": text.format("sun")}, "--suite", "usual")
    assert (result.ret, wrong(result)) == (0, [])
    result.assert_outcomes(passed=2)
    assert not any("= skipped =" in line for line in result.outlines)


def test_a_kind_that_nobody_declared_is_an_error(tree):
    result = tree({"test_it.py": NEEDS["a test"].format("mars")})
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1)


def test_a_skip_for_want_of_what_is_here_after_all_fails_the_run(tree):
    """A test that bends what a probe looks at: at the end the machine is asked again."""
    text = (
        "import needs\ndef test_it(monkeypatch):\n"
        "    monkeypatch.setitem(needs.KINDS, 'sun', lambda: 'it is night')\n    needs.needs('sun')\n"
    )
    result = tree({"test_it.py": text})
    assert result.ret == 1
    assert wrong(result) == [
        "tests/test_it.py::test_it was skipped for want of what is here: needs sun: it is night"
    ]


def test_a_package_that_make_installs_may_be_missing_in_a_part_alone(tree, pytester, monkeypatch):
    monkeypatch.setitem(needs.OPTIONAL, "no_such_module", "no-such-package")
    monkeypatch.setitem(needs.OPTIONAL, "of_another_system", "of-another-system")
    monkeypatch.setitem(needs.OPTIONAL, "nobody_asks", "nobody-asks")
    pytester.makepyprojecttoml(
        "[project]\nname = 'x'\noptional-dependencies = {dev = ['no_such.package>=1', "
        "'of-another-system; sys_platform == \"nowhere\"']}\n"
    )
    files = {
        f"test_{name}.py": f"from needs import imported\nit = imported('{name}')\n{ONE}"
        for name in ("no_such_module", "of_another_system", "nobody_asks")
    }
    part = tree(files)
    assert (part.ret, wrong(part)) == (0, [])
    part.assert_outcomes(passed=1, skipped=3)
    whole = tree(files, "--suite", "usual")
    assert whole.ret == 1
    (said,) = wrong(whole)
    assert said.startswith(
        "tests/test_no_such_module.py was skipped for want of a package that the extra dev"
    )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("passes", [True, False])
def test_expecting_a_failure_fails_the_run(tree, strict, passes):
    text = f"{PYTEST}@pytest.mark.xfail(strict={strict})\ndef test_it():\n    assert {passes}\n"
    result = tree({"test_it.py": text})
    assert result.ret == 1
    if not (strict and passes):
        assert wrong(result) == [
            "tests/test_it.py::test_it is marked xfail: mend it, or test what holds"
        ]


def test_a_failure_stays_a_failure(tree):
    result = tree({"test_it.py": "def test_it():\n    assert 0\n"}, "--suite", "usual")
    assert (result.ret, wrong(result)) == (1, [])
    result.assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize("processes", [(), ("-n", "1")])
def test_a_failure_is_printed_before_the_run_goes_on(tree, processes):
    """A run that is stopped for its time must have said by then what failed."""
    files = {"test_a.py": "def test_it():\n    assert 6 * 7 == 41\n", "test_z.py": ONE}
    result = tree(files, "-v", "--suite", "all", *processes)
    result.stdout.fnmatch_lines(
        [
            "*tests/test_a.py::test_it failed (call)*",
            "*assert (6 * 7) == 41*",
            "*tests/test_z.py::test_one*",
            "*= FAILURES =*",
        ]
    )


@pytest.mark.parametrize("distribution", ["load", "loadfile", "worksteal"])
def test_processes_side_by_side_tell_what_they_left_out(tree, distribution):
    files = {
        "test_moon.py": NEEDS["a test"].format("moon"),
        "test_night.py": NEEDS["a file"].format("moon"),
        "test_long.py": LONG,
        ".hidden/test_it.py": ONE,
        "test_bare.py": SKIPS["pytest.skip"],
        "test_module.py": SKIPS["a module"],
        "test_sun.py": "import needs\ndef test_it(monkeypatch):\n"
        "    monkeypatch.setitem(needs.KINDS, 'sun', lambda: 'it is night')\n    needs.needs('sun')\n",
    }
    result = tree(files, "--suite", "usual", "-n", "2", "--dist", distribution)
    assert result.ret == 1
    assert [line.split(" was ")[0] for line in wrong(result)] == [
        "tests/test_bare.py::test_it",
        "tests/test_module.py",
        "tests/test_sun.py::test_it",
        "tests/.hidden/test_it.py::test_one is written and",
    ]
    result.stdout.fnmatch_lines(
        ["needs moon: it is day (2)", "*test_moon.py::test_it", "*test_night.py"]
    )


def test_processes_side_by_side_that_leave_out_nothing(tree):
    files = {"test_moon.py": NEEDS["a test"].format("moon"), "test_long.py": LONG}
    result = tree(files, "--suite", "usual", "-n", "2", "--dist", "loadfile")
    assert (result.ret, wrong(result)) == (0, [])


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


@pytest.mark.parametrize(("target", "suite"), [("test", "usual"), ("test-all", "all")])
def test_make_runs_whole_suites(target, suite):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=REPOSITORY,
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    )
    (command,) = [line for line in done.stdout.splitlines() if "-m pytest" in line]
    assert f" --suite {suite}" in command
    assert not {"-k", "-m", "--ignore", "--deselect", "-x"} & set(
        command.partition("pytest")[2].split()
    )
    for part in ("ruff check .", "ruff format --check .", "/mypy"):
        assert part in done.stdout


def test_what_is_written_is_found_in_this_project():
    """That pytest collects all of it is asked of every run of the whole suite."""
    found = written(REPOSITORY / "tests", REPOSITORY)
    assert found.wrong == ()
    assert stray(REPOSITORY, REPOSITORY / "tests") == []
    here = Path(__file__).relative_to(REPOSITORY)
    assert f"{here}::test_what_is_written_is_found_in_this_project" in found.tests
    assert len({test.partition("::")[0] for test in found.tests}) > 150


def test_what_needs_a_gpu_lies_in_its_own_folder():
    """`make gpu-check` runs that folder: others import what machines with a GPU may lack."""
    here = Path(__file__).parent
    marked = {
        path.relative_to(here).parts[0]
        for path in here.rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text() and path != Path(__file__)
    }
    assert marked == {"gpu"}
