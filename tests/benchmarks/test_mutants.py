"""`benchmarks/mutants.py`: what is changed, and what becomes of mutants of a tree of two functions."""

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LARGER = "def larger(a, b):\n    return a if a > b else b\n"
LISTED = 'def listed(word):\n    """Words of `word`."""\n    return word in ("one", "two words")\n'
TESTS = {
    "tests/near/test_near.py": """
from optcli.near.numbers import larger


def test_larger():
    assert larger(2, 1) == 2
""",
    "tests/test_top.py": """
import optcli.near.numbers


def test_other():
    pass
""",
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))


@pytest.fixture
def mutants(_importable):
    return importlib.import_module("mutants")


@pytest.fixture
def changes(_importable):
    return importlib.import_module("mutant_edits")


@pytest.fixture
def tree(tmp_path):
    files = {
        "optcli/__init__.py": "",
        "optcli/near/__init__.py": "",
        "optcli/near/numbers.py": LARGER,
        "optcli/words.py": LISTED,
        **TESTS,
        ".gitignore": "__pycache__/\n",
    }
    for name, text in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path / "tree")], check=True)
    return tmp_path / "tree"


def found(changes, text):
    source = changes.Source("x.py", text)
    nodes = [source.tree, *changes._children(source.tree)]
    every = [source.mutant(edit) for node in nodes for edit in changes.edits(source, node)]
    return {(one.kind, one.old, one.new): one.planted(text) for one in every}


@pytest.mark.parametrize(
    ("text", "kind", "old", "new"),
    [
        ("x = (a) < (b)", "comparison", "<", "<="),
        ("x = a not in b", "comparison", "not in", "in"),
        ("x = a is not b", "comparison", "is not", "is"),
        ("x = 'ö' + a * b", "arithmetic", "*", "/"),
        ("x //= y", "arithmetic", "//=", "/="),
        ("x = a and (b or\n c)", "and, or", "or", "and"),
        ("x = not (\n a)", "not removed", "not (\n a)", "(\n a)"),
        ("if (a\n  or b): pass", "condition negated", "a\n  or b", "not (a\n  or b)"),
        ("x = [a for a in b if a]", "condition negated", "a", "not (a)"),
        ("x = a if (y := b) else c", "condition negated", "y := b", "not (y := b)"),
        ("f(0.5)", "number", "0.5", "1.5"),
        ("x = True", "True, False", "True", "False"),
        ("x = {'key': 1}", "string", "'key'", "'keyx'"),
        ("x = y['key']", "string", "'key'", "'keyx'"),
        ("x = y in ('', 'b')", "string", "''", "'x'"),
        ("match x:\n  case 'a': pass", "string", "'a'", "'ax'"),
        ("def f():\n  return (\n    y)", "return None", "y", "None"),
        ("self.f(\n  x)", "statement removed", "self.f(\n  x)", "pass"),
        ("x.y: int = 3", "statement removed", "x.y: int = 3", "pass"),
        ("x['y'] += z", "statement removed", "x['y'] += z", "pass"),
        ("x = min(y)", "function", "min", "max"),
        ("for x in y: break", "break, continue", "break", "continue"),
        ("x = y[-1]", "first, last", "-1", "0"),
    ],
)
def test_each_kind_of_change_compiles_to_another_program(changes, text, kind, old, new):
    assert found(changes, text).get((kind, old, new))


@pytest.mark.parametrize(
    "text",
    [
        "import a",
        "'''Text.'''",
        "x: Literal['a'] = y",
        "Kind = Literal['a', 'b'] | None",
        "Kind: TypeAlias = 'a[0]'",
        "__all__ = ['a'][0:1]",
        "@f(1)\ndef f(x: y[0]) -> y['a']: pass",
        "x = f'{a + 1}'",
        "if TYPE_CHECKING:\n  x = 1",
        "f = g('key')",
    ],
)
def test_what_only_describes_is_not_changed(changes, text):
    assert found(changes, text) == {}


@pytest.mark.slow
def test_drawing_is_repeatable_and_takes_lines_once(changes, tree):
    (tree / "optcli" / "more.py").write_text("\n\n".join(f"x = a[{n}] + b < 3" for n in range(30)))
    drawn = changes.draw(tree, 1, 20)
    assert drawn == changes.draw(tree, 1, 20) != changes.draw(tree, 2, 20)
    assert len({(one.path, one.line) for one in drawn}) == len({one.id for one in drawn}) == 20
    everything = changes.draw(tree, 1, 1000)
    assert len(everything) == 32
    assert everything[:20] == drawn


def test_a_mutant_is_found_again_where_its_line_moved(changes):
    one = mutant(changes, "near/numbers.py", ">", "<", LARGER)
    assert "a < b" in one.planted("\n" + LARGER)
    assert one.planted(LARGER.replace("a > b", "a >= b")) is None
    assert one.planted(f"\n{LARGER}{LARGER}") is None


def mutant(changes, name, old, new, text):
    start = text.index(old)
    return changes.Source(f"optcli/{name}", text).mutant(("planted", start, start + len(old), new))


def cost(name, *marks, seconds=1.0):
    return {"test": f"tests/{name}", "marks": list(marks), "seconds": {"setup": 0.0, "call": seconds}}


@pytest.mark.long
@pytest.mark.slow
def test_a_real_run_goes_on_where_it_ended(mutants, changes, tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # another optcli
    killed = mutant(changes, "near/numbers.py", ">", "<", LARGER)
    survives = mutant(changes, "words.py", '"one"', '"onex"', LISTED)
    known = mutant(changes, "words.py", " in ", " not in ", LISTED)
    drawn, costs, results = (tmp_path / name for name in ("drawn", "costs", "results"))
    drawn.write_text(json.dumps({"mutants": [vars(one) for one in (killed, survives, known)]}))
    tests = [
        cost("test_top.py::test_other"),
        cost("near/test_near.py::test_larger"),
        cost("gone.py::x"),
    ]
    costs.write_text("\n".join(map(json.dumps, [{}, *tests])))
    results.write_text(json.dumps({"id": known.id}) + "\n")
    # What comes to a place is all that its mutant meets; where nothing was seen to, it meets all.
    reached = tmp_path / "reached"
    reached.write_text(f"{killed.id} tests/near/test_near.py::test_larger (call)\n")
    options = {"results": results, "costs": costs, "tree": tree, "minutes": 1, "jobs": 1, "only": None}
    mutants.run(Namespace(mutants=drawn, reached=reached, **options))
    _, first, second = mutants.read(results)
    assert (first["outcome"], first["how"], first["level"]) == ("killed", "failure", "fast")
    assert (first["test"], first["tried"]) == ("tests/near/test_near.py::test_larger", 1)
    assert (second["outcome"], second["tried"], second["cut"]) == ("survived", 2, False)
    assert second["id"] == survives.id
    assert (tree / "optcli" / "near" / "numbers.py").read_text() == LARGER
    assert "2 mutants, 2 tests, 0 without cost" in capsys.readouterr().out


class Machine:
    """Stands for a copy: tests have an outcome with the mutant and one without."""

    def __init__(self, **outcomes):
        self.outcomes, self.planted, self.runs = outcomes, False, []

    def with_mutant(self, mutant):
        return self

    def __enter__(self):
        self.planted = True
        return True

    def __exit__(self, *_):
        self.planted = False

    def pytest(self, tests, limit, *options):
        self.runs.append(([test.rpartition("::")[2] for test in tests], limit))
        lines = []
        for test in tests:
            outcome = self.outcomes.get(test.rpartition("::")[2], "..")[0 if self.planted else 1]
            if outcome == "g":
                return 4, f"ERROR: not found: /copy/{test.partition('[')[0]}\n(no match)"
            if outcome == "c":
                file = test.partition("::")[0]
                return 2, f"____ ERROR collecting {file} ____\nERROR {file} - E"
            if outcome == "h":
                return 124, "\n".join([*lines, f"{test} "])
            lines.append(f"{test} {'FAILED' if outcome == 'f' else 'PASSED'}   [ 10%]")
            if outcome == "f":
                return 1, "\n".join([*lines, f"FAILED {test} - AssertionError"])
        return 0, "\n".join(lines)


def judged(mutants, changes, machine, *tests, minutes=10.0):
    one = mutant(changes, "near/numbers.py", ">", "<", LARGER)
    order = mutants.stages(one, tests, {"optcli.near.numbers": {"near", "user"}})
    return mutants.judge(one, order, machine, minutes)


ORDER = [
    cost("other/test_o.py::other"),
    cost("user/test_u.py::user", seconds=5.0),
    cost("near/test_n.py::near"),
    cost("near/test_n.py::slow", "slow"),
    cost("near/test_n.py::long", "long", "slow"),
    cost("near/test_n.py::gpu", "gpu"),
    cost("other/test_o.py::slow_other", "slow"),
]


def test_near_tests_and_quick_levels_come_first(mutants, changes):
    machine = Machine()
    line = judged(mutants, changes, machine, *ORDER)
    runs = [tests for tests, _ in machine.runs]
    assert runs == [["near"], ["user", "other"], ["slow"], ["long"], ["slow_other"]]
    assert (line["outcome"], line["tried"], line["cut"]) == ("survived", 6, False)
    assert machine.runs[1][1] == 60 + 3 * 6.0


def test_a_flaky_test_does_not_count(mutants, changes):
    machine = Machine(user="ff", slow="f.")
    line = judged(mutants, changes, machine, *ORDER)
    assert (line["outcome"], line["level"], line["test"]) == (
        "killed",
        "test",
        "tests/near/test_n.py::slow",
    )
    assert line["flaky"] == ["tests/user/test_u.py::user"]
    runs = [tests for tests, _ in machine.runs]
    assert runs == [["near"], ["user", "other"], ["user"], ["other"], ["slow"], ["slow"]]


def test_tests_that_never_end_count_if_they_had_time(mutants, changes):
    line = judged(mutants, changes, Machine(near="h."), *ORDER)
    assert (line["outcome"], line["how"], line["test"]) == (
        "killed",
        "hang",
        "tests/near/test_n.py::near",
    )
    line = judged(mutants, changes, Machine(near="h."), *ORDER, minutes=1)
    assert (line["outcome"], line["how"], line["cut"]) == ("survived", None, True)


def test_tests_without_time_are_left_out(mutants, changes):
    machine = Machine()
    line = judged(mutants, changes, machine, *ORDER, cost("far/test_f.py::far", seconds=70), minutes=1)
    assert line["cut"]
    assert ["user", "other"] in [tests for tests, _ in machine.runs]


def test_a_file_that_cannot_be_imported_counts_and_lost_parameters_do_not(mutants, changes):
    line = judged(mutants, changes, Machine(near="c."), *ORDER)
    assert (line["outcome"], line["test"]) == ("killed", "tests/near/test_n.py")
    machine = Machine(**{"near[a]": "g."})
    line = judged(mutants, changes, machine, cost("near/test_n.py::near[a]"))
    assert [tests for tests, _ in machine.runs] == [["near[a]"], ["near"]]
    assert (line["outcome"], line["tried"]) == ("survived", 1)


def test_the_table_names_what_is_no_longer_found(mutants):
    one = {"id": "1", "path": "optcli/x.py", "line": 3, "kind": "number", "old": "1", "new": "2"}
    before = {
        **one,
        "outcome": "killed",
        "level": "fast",
        "how": "failure",
        "test": "t::a",
        "cut": False,
    }
    now = {**before, "outcome": "survived", "level": None, "how": None, "cut": True}
    text = "\n".join(mutants.table([now], [before]))
    assert "| `make fast` | 1 | 0 |" in text
    assert "| nothing | 0 | 1 |" in text
    assert "`optcli/x.py:3` number: `1` → `2`: survived, not all tests fitted" in text
    assert "Found before and not now: 1" in text
    assert "failure of `t::a`" in text


@pytest.mark.slow
def test_nothing_lives_on_after_the_guard(tmp_path):
    """A child in a session of its own, whose parent has gone."""
    orphan = (
        "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True); print(p.pid)"
    )
    guard = [sys.executable, str(REPOSITORY / "benchmarks" / "mutant_copies.py"), "60"]
    done = subprocess.run([*guard, sys.executable, "-c", orphan], capture_output=True, text=True)
    assert done.returncode == 0
    assert not Path(f"/proc/{int(done.stdout)}").exists()
