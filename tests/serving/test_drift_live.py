"""Drift of what a running bundle of a real network has seen, tensors and photographs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from served_variants import NORMALIZED, Server, real, served
from tritonclient import http

from optcli import cli, data
from optcli.data import DataSettings
from optcli.results.drift import Drift
from optcli.serving.running import running

pytestmark = pytest.mark.long
SPEC = {"name": "input", "shape": ("batch", 3, 32, 32), "batch": {"min": 1, "opt": 4, "max": 8}}


def answer(target: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Drift]:
    capsys.readouterr()
    code = cli.run(["loadtest", target, "--drift", "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, Drift.model_validate_json(said.out)


def send(server: Server, rows: np.ndarray) -> None:
    """Tensors, eight a request."""
    client = http.InferenceServerClient(server.url.removeprefix("http://"), network_timeout=60.0)
    for first in range(0, len(rows), 8):
        part = np.ascontiguousarray(rows[first : first + 8], np.float32)
        tensor = http.InferInput("input", list(part.shape), "FP32")
        tensor.set_data_from_numpy(part, binary_data=True)
        client.infer("net", [tensor])


def test_what_a_real_server_sees_is_compared_with_its_calibration(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, file = shared / "datasets" / "cifar10_subset", shared / "models" / "resnet20_cifar10.onnx"
    source = {"source": f"imagefolder:{images / 'test'}", "prepare": NORMALIZED}
    built = real(tmp_path, file, SPEC, source)
    calibration = {"source": f"imagefolder:{images / 'train'}", "prepare": NORMALIZED}
    roles = {**built.samples.roles, "calibration": DataSettings.model_validate(calibration)}
    built = replace(built, samples=replace(built.samples, roles=roles))
    assert built.samples.data is not None
    samples = data.open(built.samples.data, tmp_path, built.inputs)
    rows = np.stack([samples[index].inputs["input"] for index in range(0, 2000, 8)])
    out = tmp_path / "out"
    with served(tmp_path, built, 8, images=True, sample_inputs=512) as server:
        send(server, rows[:150])
        for index in range(1200, 2000, 8):
            body = (images / "test" / samples.read(index).id).read_bytes()
            assert server.post("images", body)[0] == 200
        code, found = answer(f"{server.url}/v2/models/net", capsys)
        assert (code, found.outcome) == (0, "accept"), found.sentence
        assert (found.seen, found.kept, found.missed) == (250, 250, 0)
        # The same test images, in two ways: as tensors, and as files that the server prepared.
        assert found.inputs[0].rows == pytest.approx(250)
    assert (found.reference.role, found.reference.samples, found.reference.of) == (
        "calibration",
        512,
        10_000,
    )
    # The server is gone: what it wrote is beside it.
    code, again = answer(str(out), capsys)
    assert (code, again.kept, again.outcome) == (0, 250, "accept")
    mean, std = (np.array(NORMALIZED[name]).reshape(1, 3, 1, 1) for name in ("mean", "std"))
    pixels = ((rows * std + mean) * 255).round()
    place = tmp_path / "changed"
    shutil.copytree(out, place)
    (place / "kept-inputs.npz").unlink()
    with running(place, log=tmp_path / "log") as started:
        send(Server(started.url, place), (pixels[:, ::-1] / 255 - mean) / std)
    code, found = answer(str(place), capsys)
    assert (code, found.outcome) == (1, "reject"), found.sentence
    assert "channels 0 and 2 were exchanged" in found.sentence
    assert "he server keeps statistics of 512 inputs a day" in (out / "README.md").read_text()
    assert json.loads((out / "bundle.json").read_text())["sample_inputs"] == 512
