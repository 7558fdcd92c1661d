"""`optcli profile` on a project that was built."""

from __future__ import annotations

import json

import pytest

from optcli.measure.profiling.process import _doubts, _Timed
from optcli.results import Report, flags


@pytest.mark.slow
def test_it_shows_stages_operators_and_findings(place, optcli):
    said = optcli("profile", "plain", "--top", 1)
    assert said.code == 0, said.err
    assert "tiny, plain: onnxruntime, fp32, 1 threads, batch size 1, real samples" in said.out
    for word in ("read", "prepare", "compute", "MatMul", "Slowest 1 of", "Findings"):
        assert word in said.out
    trace = place.artifacts / "tiny" / "profiles" / "plain.trace.json"
    assert str(trace) in said.out
    assert json.loads(trace.read_text())["traceEvents"]
    # The report speaks of what was built, and still does.
    assert Report.load(place.artifacts / "tiny" / "report.json").variants["plain"].artifact


@pytest.mark.slow
def test_json_and_options(place, optcli, tmp_path):
    trace = tmp_path / "own.json"
    said = optcli(
        "profile", "copied", "--recipe", "tiny", "--batch-size", 3, "--trace", trace, "--json"
    )
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert (found["schema"], found["variant"], found["batch_size"]) == (2, "copied", 3)
    assert found["runner"]["requested"]["threads"] == 1
    assert {each["type"] for each in found["operators"]} >= {"MatMul"}
    assert found["trace"] == str(trace)
    assert trace.exists()


@pytest.mark.slow
def test_without_the_recipe_inputs_are_random(place, optcli):
    path = place.artifacts / "tiny" / "report.json"
    record = json.loads(path.read_text())
    record["recipe"]["path"] = str(place.folder / "gone.yaml")
    path.write_text(json.dumps(record))
    said = optcli("profile", "plain", "--recipe", "tiny")
    assert said.code == 0, said.err
    assert "batch size 1, random" in said.out
    assert "inputs are random: the recipe cannot be read again" in said.out


@pytest.mark.slow
def test_a_recipe_that_changed_is_said(place, optcli):
    path = place.folder / "recipe.yaml"
    path.write_text(path.read_text().replace("max_drop: 0.5", "max_drop: 0.4"))
    said = optcli("profile", "plain", "--recipe", path)
    assert "the recipe differs from the one that was built" in said.out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("plane",), "has no variant 'plane'", "did you mean 'plain'?"),
        (("plain", "--batch-size", 5), "the model takes a batch of 1 to 4, found 5", "inputs"),
        (("plain", "--recipe", "other"), "no report here yet", "tiny"),
    ],
)
def test_what_was_asked_wrongly(place, optcli, arguments, message, hint):
    said = optcli("profile", *arguments)
    assert said.code == 2
    assert message in said.err
    assert hint in said.err
    assert "Traceback" not in said.err


def test_no_build_at_all(optcli, tmp_path):
    said = optcli("profile", "plain", "--artifacts", tmp_path / "none")
    assert said.code == 2
    assert "no report here yet" in said.err


def test_files_that_are_gone_or_changed(place, optcli):
    model = place.artifacts / "tiny" / "plain" / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    said = optcli("profile", "plain")
    assert said.code == 2
    assert "not those that the report speaks of" in said.err
    (model.parent / "artifact.json").unlink()
    said = optcli("profile", "plain")
    assert said.code == 2
    assert "files are gone" in said.err


def test_a_variant_that_failed(place, optcli):
    path = place.artifacts / "tiny" / "report.json"
    record = json.loads(path.read_text())
    record["variants"]["copied"] |= {"status": "failed", "reason": "it broke", "artifact": None}
    path.write_text(json.dumps(record))
    said = optcli("profile", "copied")
    assert said.code == 2
    assert "was not built: failed, it broke" in said.err


class Counted:
    """A runner, and a profiler of it, that only counts."""

    def __init__(self):
        self.calls: list[str] = []

    def bind(self, feed):
        self.calls.append("plain")

    execute = fetch = begin = lambda self: None

    def call(self, feed):
        self.calls.append("profiled")
        return 1.0

    def round(self):
        from contextlib import nullcontext

        return nullcontext()


def test_calls_with_and_without_the_profiler_take_turns():
    one = Counted()
    timed = _Timed(one, one, [{}])  # type: ignore[arg-type]
    timed.run()
    assert len(timed.plain_ms) == len(timed.profiled_ms) == 100
    measured = one.calls[-200:]
    assert [measured[index] for index in range(0, 200, 25)] == ["plain", "profiled"] * 4


def test_a_busy_machine_is_doubted():
    assert _doubts([1.0] * 8, 0.05) == []
    assert _doubts([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], 0.0) == [flags.environment_not_fit(spread=2 / 3)]
    assert _doubts([1.0] * 8, 0.4) == [flags.waited_for_processors(waited=0.4)]
