"""Variants of real models, deployed for Ray and started."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_variants import variant
from tritonclient import http

import optcli
from optcli.artifact import Format
from optcli.data import DataSettings
from optcli.pipeline.model_files.built_variant import BuiltVariant, Samples
from optcli.results import RecipeSummary, Report
from optcli.serving import deploy as deploying
from optcli.serving.running import running
from optcli.serving.targets import DeployOptions

NORMALIZED = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


class Server:
    """A running bundle, asked over HTTP."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def post(self, way: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        """Status and body of an answer."""
        request = urllib.request.Request(
            f"{self.url}/v2/models/net/{way}", body, {"content-type": "image/jpeg", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def answer(self, body: bytes) -> Any:
        status, content = self.post("images", body)
        assert status == 200, content
        return json.loads(content)

    def get(self, page: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/{page}", timeout=60) as response:
            content: bytes = response.read()
            return content

    def count(self, name: str, **labels: str) -> float:
        """A metric, summed over the labels that are not named."""
        text = self.get("metrics").decode()
        found = re.findall(rf"^{re.escape(name)}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(value) for own, value in found if all(each in own for each in wanted))


def asked(server: Server, rows: np.ndarray, name: str, output: str, *, binary: bool) -> Any:
    """An output for rows of an input, by tritonclient, which sends and gets binary tensors or JSON."""
    client = http.InferenceServerClient(server.url.removeprefix("http://"), network_timeout=120)
    tensor = http.InferInput(name, list(rows.shape), "FP32")
    tensor.set_data_from_numpy(np.ascontiguousarray(rows, np.float32), binary_data=binary)
    wanted = [http.InferRequestedOutput(output, binary_data=binary)]
    return client.infer("net", [tensor], outputs=wanted).as_numpy(output)


def real(
    folder: Path, file: Path, spec: dict[str, Any], source: dict[str, Any], **more: Any
) -> BuiltVariant:
    place = folder / "artifact"
    place.mkdir()
    shutil.copyfile(file, place / "model.onnx")
    settings = DataSettings.model_validate(source)
    samples = Samples(data=settings, folder=folder, roles={"evaluation": settings}, **more)
    return replace(variant(place, Format.ONNX, spec), samples=samples)


@contextmanager
def served(folder: Path, built: BuiltVariant, batch: int, **asked: Any) -> Iterator[Server]:
    """The variant, deployed and started."""
    plan = optcli.plan(
        curve="10ms+10ms*b", rate_per_s=5, slo={"p95_ms": 10_000}, batch=batch, target="ray"
    )
    (folder / "plan.json").write_text(plan.to_json())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploying, "open_built", lambda *_, **__: built)
        deployed = deploying.deploy(
            "small",
            Report.model_construct(recipe=RecipeSummary.model_construct(name="r", path="r.yaml")),
            folder / "report.json",
            folder / "out",
            engine="ray",
            plan=folder / "plan.json",
            name="net",
            options=DeployOptions(**asked),
        )
    if asked.get("images"):
        assert any("golden-image.jpg" in command for command in deployed.commands)
    with running(folder / "out", log=folder / "log") as server:
        yield Server(server.url, folder / "out")
