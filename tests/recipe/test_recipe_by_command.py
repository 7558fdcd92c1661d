"""Broken recipes through the command line: exit code 2, place and hint on stderr, no traceback."""

from __future__ import annotations

import pytest
from test_recipe_broken import TABLE

from optcli import cli


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("broken", TABLE, ids=lambda broken: broken.name)
def test_a_broken_recipe_ends_with_2_and_says_where(broken, loaded, folder, capsys, monkeypatch):
    with pytest.raises(Exception):  # noqa: B017  (it writes the recipe; what it raises is tested there)
        loaded((broken.old, broken.new))
    monkeypatch.chdir(folder)
    code = cli.run(["build", "recipe.yaml"])
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert f"recipe.yaml:{broken.line}:" in said.err
    assert broken.message in said.err
    assert "\n  hint: " in said.err
    assert broken.hint in said.err
    assert "Traceback" not in said.err
    assert sorted(path.name for path in folder.iterdir()) == [
        "digits.npz",
        "digits.safetensors",
        "mine.py",
        "recipe.yaml",
    ], "nothing is written"


def test_the_unbroken_recipe_has_nothing_to_say(loaded):
    loaded()
