"""What the net of unchanged behaviour sees, and what it must not take for a change."""

import importlib
import json
from pathlib import Path

import pytest


@pytest.fixture
def net(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("net")


def recorded(net, folder, *, text="weights", document=None, said="done in 3.1 s"):
    made = folder / "made"
    made.mkdir(parents=True)
    (made / "model.onnx").write_text(text)
    report = {"accuracy": 0.5, "build_s": 3.1} if document is None else document
    (made / "report.json").write_text(json.dumps(report))
    return {"build": {"exit": 0} | net._said(f"{folder}: {said}", folder) | net._files(made, folder)}


def test_times_and_folders_are_no_difference(net, tmp_path):
    first = recorded(net, tmp_path / "a")
    second = recorded(
        net, tmp_path / "b", document={"accuracy": 0.5, "build_s": 99}, said="done in 800 ms"
    )
    assert list(net.differences(first, second)) == []


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"text": "others"}, "made/model.onnx"),
        ({"document": {"accuracy": 0.6, "build_s": 3.1}}, ".accuracy: 0.5 -> 0.6"),
        ({"document": {"accuracy": 0.5}}, ".build_s: 'masked' -> 'absent'"),
        ({"said": "failed in 3.1 s"}, "build: +PROJECT: failed in MEASURED"),
    ],
)
def test_a_changed_file_value_key_or_word_is_a_difference(net, tmp_path, changed, place):
    lines = list(
        net.differences(recorded(net, tmp_path / "a"), recorded(net, tmp_path / "b", **changed))
    )
    assert any(place in line for line in lines)


def test_a_command_that_one_record_lacks_is_a_difference(net, tmp_path):
    record = recorded(net, tmp_path / "a")
    assert list(net.differences(record, {})) == ["build: only in the record before"]
