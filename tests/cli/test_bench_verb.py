"""`optcli bench` on tiny files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_project import write_model

from optcli.settings.latency import LatencySettings
from optcli.workers import confinement

QUICK = {"launches": 1, "rounds": 2, "calls": 2, "warmup": 1, "max_seconds": 0.05}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two networks that take the same, measured in next to no time."""
    for name, value in QUICK.items():
        monkeypatch.setattr(LatencySettings.model_fields[name], "default", value)
    LatencySettings.model_rebuild(force=True)
    write_model(tmp_path / "a.onnx")
    write_model(tmp_path / "b.onnx", seed=1)
    monkeypatch.setenv("OPTCLI_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    monkeypatch.undo()
    LatencySettings.model_rebuild(force=True)


@pytest.mark.slow
def test_files_side_by_side_in_the_table_of_a_build(files, optcli):
    said = optcli("bench", "a.onnx", "b.onnx", "--threads", 1)
    assert said.code == 0, said.err
    assert "\nBatch size 1\n" in said.out
    rows = {line.split()[0]: line for line in said.out.splitlines() if ".onnx " in line}
    assert "baseline" in rows["a.onnx"]
    assert "onnxruntime" in rows["b.onnx"]
    assert "inputs: random" in said.out
    assert "speed alone was asked" in said.out


@pytest.mark.slow
def test_json_is_a_report_with_batch_sizes_and_real_samples(files, optcli):
    values = np.random.default_rng(0).random((5, 3, 4, 4), dtype="float32")
    np.savez(files / "samples.npz", image=values)
    said = optcli(
        "bench", "a.onnx", "b.onnx", "--json", "--samples", "samples.npz",
        "--batch-size", 2, "--batch-size", 1, "--threads", 1,
    )  # fmt: skip
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert (found["schema"], found["baseline"], found["recommended"]) == (2, "a.onnx", None)
    assert [row["batch_size"] for row in found["variants"]["b.onnx"]["latency"]] == [1, 2]
    assert found["variants"]["b.onnx"]["latency"][0]["speedup"]["value"] > 0
    assert found["variants"]["a.onnx"]["artifact"]["path"].endswith("a.onnx")
    assert found["protocol"]["inputs"] == "real samples in rotation"


@pytest.mark.slow
def test_a_file_that_cannot_be_run_costs_its_row(files, optcli, monkeypatch):
    from optcli.pipeline.model_files import opening

    whole = opening.open_all

    def damaged(*arguments):
        found, inputs = whole(*arguments)
        (found[1].artifact.path / "model.onnx").write_bytes(b"damaged")
        return found, inputs

    monkeypatch.setattr("optcli.pipeline.model_files.measuring.open_all", damaged)
    said = optcli("bench", "a.onnx", "b.onnx", "--threads", 1)
    assert said.code == 4
    assert "b.onnx failed: measuring failed" in said.out
    assert "baseline" in said.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("c.onnx",), "no such file", "a.onnx"),
        (("a.onnx", "--runner", "torch"), "runs torch, exported, found onnx", "--runner"),
        (("a.onnx", "--input", "image"), "wanted NAME:DTYPE[SIZES]", "--input"),
        (("a.onnx", "--input", "x:float32[batch,3,4,4]"), "do not fit", "leave --input out"),
        (("a.onnx", "--samples", "a.onnx"), "no .npz of arrays", "image"),
        (("a.onnx", "--samples", "none.npz"), "no such file", ".npz"),
        ((), "Missing argument", "optcli bench --help"),
    ],
)
def test_what_was_asked_wrongly(files, optcli, arguments, message, hint):
    said = optcli("bench", *arguments)
    assert said.code == 2
    assert message in said.err
    assert hint in said.err
    assert "Traceback" not in said.err


@pytest.mark.slow
def test_samples_of_another_size(files, optcli):
    np.savez(files / "samples.npz", image=np.zeros((5, 3, 8, 8), "float32"))
    said = optcli("bench", "a.onnx", "--samples", "samples.npz")
    assert said.code == 2
    assert "have shape [5, 3, 8, 8], wanted [n, 3, 4, 4]" in said.err


@pytest.mark.long
@pytest.mark.slow
def test_every_format_beside_onnx(files, optcli):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(48, 2)

        def forward(self, picture):
            return self.head(picture.flatten(1))

    network, example = Net().eval(), torch.rand(2, 3, 4, 4)
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(network, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, "net.pt2")
    torch.jit.save(torch.jit.trace(network, example), "net.pt")
    import openvino

    openvino.save_model(openvino.convert_model("a.onnx"), "net.xml", compress_to_fp16=False)
    names = ("net.pt2", "net.pt", "a.onnx", "net.xml")
    # Where no worker can be held to reading, TorchScript from elsewhere is run on trust alone.
    trust = () if confinement.available().whole else ("--trust",)
    said = optcli("bench", *names, *trust, "--json", "--threads", 1, "--batch-size", 4)
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert report["environment"]["confinement"] == str(confinement.available())
    variants = report["variants"]
    runners = {name: variant["runner"]["name"] for name, variant in variants.items()}
    assert runners == {
        "net.pt2": "torch", "net.pt": "torchscript", "a.onnx": "onnxruntime", "net.xml": "openvino",
    }  # fmt: skip
    assert all(variant["latency"] for variant in variants.values())
