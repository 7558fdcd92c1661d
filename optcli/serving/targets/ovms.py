"""OpenVINO Model Server: a folder of versions and the `config.json` that its documentation describes.

The form is that of `docs/parameters.md` and `src/schema.cpp` of openvinotoolkit/model_server 2026.3.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

from optcli.artifact import ABOUT, Format
from optcli.errors import InputError
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.plan import Semantics
from optcli.serving.deploy import instructions, model_configuration
from optcli.serving.targets import Deployment, ServingTarget, WrittenServer

IMAGE = "openvino/model_server:2026.3"
CONFIG, _VERSION = "config.json", "1"
_RUNS = {(Format.OPENVINO, "openvino"), (Format.ONNX, "openvino")}


class Ovms(ServingTarget):
    """The model as it was measured in OpenVINO; the server computes each request by itself."""

    title: ClassVar[str] = "OpenVINO Model Server"
    server: ClassVar[str] = "OpenVINO Model Server"
    semantics: ClassVar[Semantics] = "oldest-age"
    batches: ClassVar[bool] = False

    def take(self, built: BuiltVariant) -> None:
        format = built.artifact.format
        if (format, built.runner_name) not in _RUNS:
            raise InputError(
                f"{self.server} cannot run the format {format} in the runner {built.runner_name}",
                place=str(built.artifact.path),
                hint="deploy a variant with to_openvino, or with `runner: openvino`",
            )
        device = getattr(built.runner, "device", "CPU")
        if device != "CPU":
            raise InputError(
                f"the variant was measured on {device}, and the folder is written for the CPU",
                place=str(built.artifact.path),
                hint="measure a variant with `device: CPU` and deploy that",
            )

    def write(self, folder: Path, deployment: Deployment) -> WrittenServer:
        built, one, name = deployment.built, deployment.plan.recommended, deployment.name
        assert one is not None
        place = str(built.artifact.path)
        batching = model_configuration.batching_of(
            built.inputs, deployment.interface, one.batch, place, self.server
        )
        model = folder / name / _VERSION
        shutil.copytree(built.artifact.path, model, ignore=shutil.ignore_patterns(ABOUT))
        calls = model_configuration.instances_of(one)
        session = built.runner.session()
        # Calls are streams of one compiled model, which share its threads.
        streams = calls * session["NUM_STREAMS"]
        threads = calls * session["INFERENCE_NUM_THREADS"]
        settings = {
            "name": name,
            # Relative to this file.
            "base_path": name,
            "target_device": "CPU",
            "nireq": streams,
            "plugin_config": {
                **session,
                "NUM_STREAMS": streams,
                "INFERENCE_NUM_THREADS": threads,
            },
        }
        content = {"model_config_list": [{"config": settings}]}
        (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        notes = ["the server refuses no request: those beyond the plan's rate wait, however many"]
        if built.effective.get("shapes") == "static":
            notes.append(
                "the variant was measured with static shapes, and the server runs the model for any"
                " batch size: build it with `runner: {shapes: dynamic}` to plan with what it runs"
            )
        if one.machines > 1:
            notes.append(f"the plan has {one.machines} machines, each with a server of its own")
        if batching.why:
            notes.append(f"requests must bring the whole tensor: {batching.why}")
        start = (
            f'docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD":/models:ro {IMAGE}'
            f" --config_path /models/{CONFIG} --rest_port 8000"
        )
        steps = instructions.for_server(start, name, deployment.interface)
        about = f"A folder for OpenVINO Model Server, written by optcli. {deployment.plan.sentence}"
        return WrittenServer(about, steps, notes, _KNOWN)


_KNOWN = (
    "no OpenVINO Model Server ran this folder before it was written: take a release with the OpenVINO"
    " that the variant was measured with, or a newer one",
    "the server has no authentication and no TLS: put a proxy with both in front of it",
)
