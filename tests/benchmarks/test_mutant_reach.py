"""Markers before the places of mutants: where they stand, what they write, and how it is read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from mutant_edits import Mutant
from mutant_reach import LOG, read_reached, with_markers

pytestmark = pytest.mark.slow

SOURCE = '''\
"""A module."""

LIMIT = 3


def classified(value):
    """A size in words."""
    open = None  # a name that markers may not need
    if value > LIMIT:
        return "large"
    elif value == 0:
        return "none"
    return [
        "small",
        value,
    ][0]


class Sizes:
    unit: str = "cm"

    def of(self, values):
        for value in values:
            yield classified(value)
'''


def mutant(name, text):
    line = SOURCE.split("\n").index(text)
    return Mutant(name, "sizes.py", line + 1, 0, "kind", text.strip(), "pass", text)


PLACES = {
    "large": '        return "large"',
    "elif": "    elif value == 0:",
    "inside": "        value,",
    "yield": "            yield classified(value)",
    "import": "LIMIT = 3",
    "field": '    unit: str = "cm"',
}


@pytest.fixture
def reached(tmp_path):
    (tmp_path / "sizes.py").write_text(SOURCE)
    mutants = [mutant(name, text) for name, text in PLACES.items()]
    for path, text in with_markers(tmp_path, mutants):
        (tmp_path / path).write_text(text)

    def ran(program, test):
        log = tmp_path / "reached.txt"
        variables = {
            **os.environ,
            LOG: str(log),
            "PYTEST_CURRENT_TEST": test,
            "PYTHONPATH": str(tmp_path),
        }
        done = subprocess.run(
            [sys.executable, "-c", f"import sizes; {program}"],
            env=variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return read_reached(log)

    return ran


def test_each_place_is_written_down_once_by_what_runs_there(reached):
    test = "tests/test_a.py::test_b[1 (x)] (call)"
    found = reached("[sizes.classified(9) for _ in range(3)]", test)
    # From a process of its own it counts for the whole file: what is made there may be shared.
    assert found == {"large": {"tests/test_a.py"}, "elif": {"tests/test_a.py"}}
    found = reached("import pytest; assert sizes.classified(2) == 'small'", test)
    assert found["inside"] == {"tests/test_a.py::test_b[1 (x)]"}
    found = reached("import pytest; list(sizes.Sizes().of([0]))", "tests/test_c.py::test_d (setup)")
    assert found["yield"] == {"tests/test_c.py"}
    # What runs on import is not seen.
    assert not {"import", "field"} & found.keys()


def test_what_may_not_write_goes_on(reached, tmp_path):
    program = f"import os; os.environ['{LOG}'] = '/nowhere/log'; print(sizes.classified(9))"
    (tmp_path / "reached.txt").touch()
    assert reached(program, "tests/test_a.py::test_b (call)") == {}
