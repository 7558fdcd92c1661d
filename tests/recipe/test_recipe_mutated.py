"""Recipes mutated at random: checked or refused, never a traceback, never a hang, never a long echo."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from mutations import mutated

from optcli import cli

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = sorted((REPOSITORY / "recipes").glob("*.yaml"))
MOST_S = 60  # a hang; a pass of a heavy module may take its time on a busy machine
# OPTCLI_FUZZ_ROUNDS=1000, as `make nightly` sets it, tries ten thousand recipes.
FEW, MANY = 40, int(os.environ.get("OPTCLI_FUZZ_ROUNDS", "25"))


@pytest.fixture
def recipes(tmp_path: Path, ready: None) -> Path:
    """A copy of the ready recipes, with the data that they name."""
    for name in ("recipes", "calibration_data"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    return tmp_path / "recipes"


def _check(recipes: Path, capsys: pytest.CaptureFixture[str], seeds: range) -> None:
    def too_long(*_: object) -> None:
        raise TimeoutError(f"more than {MOST_S} s")

    before = signal.signal(signal.SIGALRM, too_long)
    wrong = []
    try:
        for seed in seeds:
            original = RECIPES[seed % len(RECIPES)]
            mutation = mutated(original.read_bytes(), seed)
            path = recipes / "mutated.yaml"
            path.write_bytes(mutation.content)
            sets = [word for text in mutation.overrides for word in ("--set", text)]
            signal.alarm(MOST_S)
            code = cli.run(["build", str(path), "--dry-run", "--store", str(recipes / "store"), *sets])
            signal.alarm(0)
            said = capsys.readouterr()
            longest = max(map(len, (said.out + said.err).splitlines() or [""]))
            if code not in (0, 2, 3) or longest > 2000:
                wrong.append((seed, code, longest, original.name, mutation.done, said.err[-1500:]))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not wrong, wrong[:3]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_mutated_recipe_is_planned_or_refused(recipes, capsys, part):
    _check(recipes, capsys, range(part * FEW, (part + 1) * FEW))


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_mutated_recipes(recipes, capsys, part):
    _check(recipes, capsys, range(100_000 + part * MANY, 100_000 + (part + 1) * MANY))
