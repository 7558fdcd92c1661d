"""`optcli build`: its last line says which exit code it has and why, and JSON stays JSON."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["build", "compare"])
def test_the_last_line_says_the_exit_code_and_why(place, optcli, verb):
    said = optcli(verb, "recipe.yaml")
    found = json.loads((place.artifacts / "tiny/report.json").read_text())
    assert said.out.splitlines()[-1] == f"exit {said.code}: {found['exit_reason']}"
    assert said.code == found["exit_code"]


@pytest.mark.slow
def test_with_json_the_reason_goes_to_the_people(place, optcli):
    said = optcli("build", "recipe.yaml", "--json")
    found = json.loads(said.out)
    assert said.err.splitlines()[-1] == f"exit {said.code}: {found['exit_reason']}"


@pytest.mark.slow
def test_a_broken_promise_fails_the_build_and_the_line_names_the_mark(place, optcli):
    """Nothing is a millionth of a millisecond fast: every promise of that is broken."""
    slo = ("--set", "slo.p50_ms=0.000001")
    said = optcli("build", "recipe.yaml", *slo)
    assert said.code == 1
    last = said.out.splitlines()[-1]
    assert last == "exit 1: no variant is accepted: copied is rejected (slo p50_ms)"
    text = (place.folder / "recipe.yaml").read_text()
    marked = text.replace(
        'copied: ["./fakes.py:Copy"]', 'copied: {passes: ["./fakes.py:Copy"], gate: true}'
    )
    assert marked != text
    (place.folder / "recipe.yaml").write_text(marked)
    said = optcli("build", "recipe.yaml", *slo)
    assert said.out.splitlines()[-1] == "exit 1: copied, marked gate, is rejected (slo p50_ms)"
