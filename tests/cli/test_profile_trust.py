"""`optcli profile` of a folder of artifacts that somebody else made: nothing of it runs unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optcli.cli import reports
from optcli.errors import TrustError, UsageError
from optcli.files import digest
from optcli.measure import profiling
from optcli.pipeline.verification.layers import with_layers

INPUTS = [{"name": "image", "dtype": "float32", "shape": [1, 4]}]
KEY = "a" * 64


def made(place: Path, format: str = "torch", runner: dict | None = None, **about: object) -> Path:
    """A report beside an artifact, as a build lays them out; the network writes a file when it runs."""
    folder = place / "artifacts" / "x" / "eager"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "net.py").write_text(f"open({str(place / 'ran')!r}, 'w').close()\n")
    source = {"kind": "python", "reference": "net.py:Net", "arguments": {}}
    model = {"source": source, "transforms": [], "inputs": INPUTS, "outputs": ["output"], "schema": 1}
    (folder / "model.json").write_text(json.dumps(model))
    content = {
        path.relative_to(folder).as_posix(): digest.of_file(path) for path in digest.files_below(folder)
    }
    step = {"key": KEY, "step": "source", "kind": "python", "inputs": INPUTS}
    record = {
        "key": KEY, "digest": digest.of_value(sorted(content.items())), "format": format,
        "precision": "fp32", "size_bytes": 10, "made_by": [step], "facts": {"outputs": ["output"]},
        **about,
    }  # fmt: skip
    (folder / "artifact.json").write_text(json.dumps(record))
    artifact = {
        "key": KEY, "format": format, "path": "eager", "precision": "fp32", "size_bytes": 10
    }  # fmt: skip
    variant = {"status": "built", "artifact": artifact, "runner": runner or {"name": "torch"}}
    report = {
        "schema": 2, "recipe": {"name": "x", "path": "x.yaml", "digest": "b" * 64}, "environment": {},
        "baseline": "eager", "recommended": None, "recommendation": "", "exit_code": 0,
        "started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:00:00+00:00",
        "variants": {"eager": variant},
    }  # fmt: skip
    path = folder.parent / "report.json"
    path.write_text(json.dumps(report))
    return path


@pytest.fixture
def asked(monkeypatch) -> list[profiling.ProfileRequest]:
    """What would be profiled: nothing is."""
    requests: list[profiling.ProfileRequest] = []

    def measure(request: profiling.ProfileRequest, log: Path) -> None:
        requests.append(request)
        raise InterruptedError("far enough")

    monkeypatch.setattr(profiling, "measure", measure)
    return requests


def test_a_network_in_python_is_not_run(tmp_path, optcli, monkeypatch):
    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = optcli("profile", "eager")
    assert said.code == 2, said.err
    assert "a network in Python, and not from this store" in said.err
    assert "--trust" in said.err
    assert not (tmp_path / "ran").exists()


def test_it_is_run_where_somebody_trusts_it(tmp_path, optcli, monkeypatch, asked):
    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    optcli("profile", "eager", "--trust")
    assert len(asked) == 1


@pytest.mark.parametrize("runner", ["torch", "tensorrt"])
def test_no_runner_opens_what_is_said_to_be_of_another_format(tmp_path, optcli, monkeypatch, runner):
    made(tmp_path, "onnx", {"name": runner})
    monkeypatch.chdir(tmp_path)
    said = optcli("profile", "eager")
    assert said.code == 2, said.err
    assert f"the runner {runner} runs" in said.err
    assert not (tmp_path / "ran").exists()


def test_programs_that_a_report_names_are_not_started(tmp_path, optcli, monkeypatch, asked):
    evil = str(tmp_path / "evil.sh")
    made(tmp_path, "tensorrt", {"name": "tensorrt", "requested": {"python": evil}})
    monkeypatch.chdir(tmp_path)
    said = optcli("profile", "eager")
    assert (said.code, "native code" in said.err) == (2, True)
    optcli("profile", "eager", "--trust")
    assert evil not in repr(asked)
    assert len(asked) == 1


def test_options_that_no_runner_has_are_named(tmp_path, optcli, monkeypatch):
    for number, requested in enumerate([{"nothing": 1}, [1]]):
        place = tmp_path / str(number)
        made(place, "exported", {"name": "torch", "requested": requested})
        monkeypatch.chdir(place)
        said = optcli("profile", "eager")
        assert (said.code, "does not have" in said.err) == (2, True), said.err


def test_what_compiles_wants_trust(tmp_path, optcli, monkeypatch):
    made(tmp_path, "exported", {"name": "torch", "requested": {"compile": True}})
    monkeypatch.chdir(tmp_path)
    said = optcli("profile", "eager")
    assert (said.code, "starts programs" in said.err) == (2, True), said.err


def test_what_is_said_of_its_making_does_not_free_it(tmp_path, optcli, monkeypatch, asked):
    """A folder that says that a model of torchvision was its source is confined all the same."""
    made(tmp_path, "exported")
    monkeypatch.chdir(tmp_path)
    optcli("profile", "eager")
    assert [each.artifact.foreign for each in asked] == [True]


def test_python_of_the_recipe_that_a_report_names_is_not_run(tmp_path, optcli, monkeypatch, asked):
    made(tmp_path, "exported")
    (tmp_path / "samples.py").write_text("def all(): ...\n")
    (tmp_path / "x.yaml").write_text(
        "version: 1\nname: x\nmodel: {source: 'onnx:m.onnx'}\n"
        "inputs: [{name: image, dtype: float32, shape: [1, 4]}]\n"
        "data: {evaluation: {source: 'python:samples.py:all'}}\nvariants: {eager: []}\n"
    )
    (tmp_path / "m.onnx").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    optcli("profile", "eager")
    optcli("profile", "eager", "--recipe", "x.yaml")
    assert [each.data is None for each in asked] == [True, False]


def test_a_store_that_came_with_a_report_is_not_the_own_one(tmp_path, monkeypatch):
    path = made(tmp_path / "theirs")
    (path.parent.parent / ".store").mkdir()
    monkeypatch.chdir(tmp_path)
    for named in (path, path.parent):
        assert reports.find(named, None).own_store(None) is None
    monkeypatch.chdir(path.parent)
    assert reports.find(path, None).own_store(None) == path.parent.parent / ".store"


def test_a_report_of_a_recipe_without_end_is_not_read(tmp_path, optcli, monkeypatch):
    made(tmp_path)
    path = tmp_path / "artifacts" / "z"
    (tmp_path / "artifacts" / "x").rename(path)
    record = json.loads((path / "report.json").read_text())
    record["recipe"] |= {"path": "/dev/zero", "name": "z"}
    (path / "report.json").write_text(json.dumps(record))
    (tmp_path / "deep").mkdir()
    (tmp_path / "z.yaml").write_text("version: 1\nname: z\nvariants: {}\n")
    monkeypatch.chdir(tmp_path / "deep")
    assert optcli("compare", "../z.yaml").code == 0


def test_a_recipe_that_a_report_from_elsewhere_names_is_not_built(tmp_path, optcli, monkeypatch):
    path = made(tmp_path / "theirs")
    (tmp_path / "theirs" / "x.yaml").write_text("version: 1\nname: x\nvariants: {}\n")
    monkeypatch.chdir(tmp_path)
    said = optcli("tune", path, "--from", "eager")
    assert (said.code, "builds the recipe that it names" in said.err) == (2, True), said.err
    said = optcli("tune", path, "--from", "eager", "--trust")
    assert "builds the recipe" not in said.err


def test_nor_is_its_python_run_to_compare_layers(tmp_path, optcli, monkeypatch):
    path = made(tmp_path / "theirs")
    record = json.loads(path.read_text())
    record["baseline"] = "first"  # layers are not looked at of a baseline
    path.write_text(json.dumps(record))
    (tmp_path / "theirs" / "samples.py").write_text("def all(): ...\n")
    (tmp_path / "theirs" / "m.onnx").write_bytes(b"x")
    (tmp_path / "theirs" / "x.yaml").write_text(
        "version: 1\nname: x\nmodel: {source: 'onnx:m.onnx'}\n"
        "inputs: [{name: image, dtype: float32, shape: [1, 4]}]\n"
        "data: {evaluation: {source: 'python:samples.py:all'}}\nvariants: {eager: []}\n"
    )
    monkeypatch.chdir(tmp_path)
    found = reports.find(path, None)
    assert found.is_from_elsewhere
    with pytest.raises(TrustError, match="brings Python of its own"):
        with_layers(found.report, path, "eager", from_elsewhere=True)
    for free in ({"from_elsewhere": False}, {"from_elsewhere": True, "trust": True}):
        with pytest.raises(UsageError, match="the store no longer has"):
            with_layers(found.report, path, "eager", **free)


@pytest.mark.parametrize("content", [b"PK\x03\x04 no archive", b"\x93NUMPY nothing", b"", b"x"])
def test_samples_beside_a_report_that_are_none_leave_the_page_whole(place, optcli, content):
    (place.artifacts / "tiny" / "samples.npz").write_bytes(content)
    assert optcli("compare", "--format", "html").code == 0
