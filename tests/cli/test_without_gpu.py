"""Verbs on a build with an artifact that cannot run here."""

import pytest
from tiny_project import DATA, WITH_GPU, want_a_gpu


@pytest.fixture
def place(place, monkeypatch):
    """The built project once more, with a runner that needs the GPU that is not there."""
    want_a_gpu(place, monkeypatch)
    return place


@pytest.mark.slow
def test_build_compare_and_verify_bear_it(place, optcli):
    built = optcli("build", "recipe.yaml")
    assert built.code == 0, built.err
    assert "not run: no GPU" in built.out
    assert "engine: not measured here: no NVIDIA GPU was found" in built.out
    shown = optcli("compare", "recipe.yaml")
    assert (shown.code, "not run: no GPU" in shown.out) == (0, True)
    report = place.artifacts / "tiny" / "report.json"
    both = optcli("compare", report, report)
    assert both.code == 0, both.err
    assert "no latency to compare" in both.out
    verified = optcli("verify-accuracy", "recipe.yaml")
    assert verified.code == 0, verified.err
    assert "engine" in verified.out + verified.err


@pytest.mark.slow
def test_the_gate_says_that_it_cannot_judge_it(place, optcli):
    place.recipe(WITH_GPU.replace("runner: openvino", "runner: openvino, gate: true"), data=DATA)
    built = optcli("build", "recipe.yaml")
    assert built.code == 5, "what is marked is undecided as long as nobody can run it"
    assert "engine, marked gate, is undecided: it was built and not run" in built.out + built.err
    saved = optcli("baseline", "save", "before", "--report", "recipe.yaml")
    assert saved.code == 0, saved.err
    judged = optcli("gate", "recipe.yaml", "--baseline", "before")
    assert judged.code == 3, judged
    assert "no NVIDIA GPU was found" in judged.err


@pytest.mark.slow
def test_a_plan_tells_it_beforehand(place, optcli):
    said = optcli("build", "recipe.yaml", "--dry-run")
    assert said.code == 0, said.err
    assert "not measured: no NVIDIA GPU was found" in said.out
