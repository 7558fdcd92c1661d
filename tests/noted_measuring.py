"""A measuring process that notes when it begins and ends, and a driver that has a device run it.

python noted_measuring.py ADDRESS MODEL_FOLDER SEED MAX_SECONDS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from optcli.artifact import Artifact, Format
from optcli.measure.latency import Candidate, LatencyOrder, process
from optcli.measure.latency.messages import MeasureRequest
from optcli.pipeline import ray_session
from optcli.pipeline.on_ray import device_nodes, parcels
from optcli.pipeline.remote_devices.messages import DeviceOrder, Travelling
from optcli.settings import TensorSpec
from optcli.settings.devices import RayPlace
from optcli.settings.latency import LatencySettings
from optcli.store import Store
from optcli.workers import Channel

NOTES = "NOTED_MEASURING"
EDGE = RayPlace(resources={"edge": 1})


def serve(request: MeasureRequest, channel: Channel) -> None:
    """As `latency.process:serve`; the request's seed says whose it is."""
    _note("begin", request.seed)
    process.serve(request, channel)
    _note("end", request.seed)


def _note(what: str, seed: int) -> None:
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{time.monotonic()} {what} {seed} {os.getpid()}\n")


def noted(path: Path) -> list[tuple[float, str, int, int]]:
    """Times, what began or ended, whose it is, and the process; in the order of the times."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = [line.split() for line in lines]
    return sorted((float(at), what, int(seed), int(pid)) for at, what, seed, pid in parts)


def main(address: str, model: str, seed: int, max_seconds: float) -> None:
    """Measure the model of a folder on the device, in three launches."""
    folder = Path(model)
    artifact = Artifact("k" * 64, Format.ONNX, folder, "fp32", 1, "", {})
    candidate = Candidate(
        "tiny", artifact, "onnxruntime", {"threads": 1}, serve=f"{Path(__file__).stem}:serve"
    )
    mark, content = parcels.mark_of(Store(folder / "store"))
    order = DeviceOrder(
        step="latency",
        travelling=Travelling(url=None, files={}, mark=str(mark), content=content),
        latency=LatencyOrder(
            candidates=(candidate,),
            baseline="tiny",
            inputs=(TensorSpec(name="image", shape=("batch", 3, 4, 4)),),
            feeds=None,
            settings=LatencySettings(launches=3, max_seconds=max_seconds, threads=1),
            seed=seed,
        ),
    )
    with ray_session.started(address, 1):
        (node,) = device_nodes.fitting("edge", EDGE, device_nodes.nodes())
        held = device_nodes.Held("edge", EDGE, node, lambda text: print(text, flush=True))
        print("held", flush=True)
        try:
            answer, samples = held.carry_out(order)
        finally:
            held.release()
    assert answer.error is None, answer.error
    assert samples


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
