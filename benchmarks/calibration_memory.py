"""How much memory calibration takes, whatever the calibrator, as the number of samples grows.

    .venv/bin/python benchmarks/calibration_memory.py --shared FOLDER [--images 250,1000] [--only NAME]

Each pass runs in a process of its own on SqueezeNet 1.1 at 224 x 224 with real photographs: those of
`FOLDER/datasets/imagenet_1000`, again and again under other names where there are fewer than asked for.
Printed is what that process held when libraries and model were loaded, and how much more at its most,
in MB. What is bounded does not grow with the images.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import data, passes, workers
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.observer import Silent
from optcli.passes import Job
from optcli.settings import TensorSpec
from optcli.workers import Channel, messages

INPUTS = (TensorSpec(name="input", shape=("batch", 3, 224, 224)),)
PREPARE = {"crop": 224, "channel_order": "rgb", "scale": "1/255", "mean": [0.485, 0.456, 0.406],
           "std": [0.229, 0.224, 0.225]}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A calibrator: the pass, its options, and the format it works on."""

    format: Format
    name: str
    options: dict[str, Any]


CASES = {
    "onnxruntime-minmax": Case(Format.ONNX, "quantize_onnxruntime", {"method": "minmax"}),
    "onnxruntime-percentile": Case(Format.ONNX, "quantize_onnxruntime", {"method": "percentile"}),
    "onnxruntime-entropy": Case(Format.ONNX, "quantize_onnxruntime", {"method": "entropy"}),
    "nncf-onnx": Case(Format.ONNX, "quantize_nncf", {}),
    "nncf-onnx-accurate": Case(Format.ONNX, "quantize_nncf", {"fast_bias_correction": False}),
    "nncf-openvino": Case(Format.OPENVINO, "quantize_nncf", {}),
    "nncf-torch": Case(Format.TORCH, "quantize_nncf", {}),
    "pt2e-histogram": Case(Format.TORCH, "quantize_pt2e", {"method": "histogram"}),
    "pt2e-minmax": Case(Format.TORCH, "quantize_pt2e", {"method": "minmax"}),
    "prune-taylor": Case(Format.TORCH, "prune", {"importance": "taylor"}),
}


def write(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """SqueezeNet 1.1 in a format, from the trained weights in the shared folder."""
    from optcli.passes.to_openvino import ToOpenvino
    from optcli.sources.onnx import OnnxSource
    from optcli.sources.torchvision import TorchvisionSource

    format, models = Format(payload["format"]), Path(payload["shared"], "models")
    out = Path(payload["folder"], str(format))
    out.mkdir()
    if format == Format.TORCH:
        source = TorchvisionSource(target="squeezenet1_1", folder=models, weights="squeezenet1_1.pth")
        return _artifact(out, format, source.write(out, INPUTS).outputs)
    if format == Format.ONNX:
        found = OnnxSource(target="squeezenet1_1.onnx", folder=models).write(out, INPUTS)
        return _artifact(out, format, found.outputs)
    parent = messages.read(Artifact, write({**payload, "format": str(Format.ONNX)}, channel))
    ToOpenvino().run(parent, Job(out, INPUTS, parent, Silent()))
    return _artifact(out, format, parent.facts["outputs"])


def _artifact(out: Path, format: Format, outputs: Any) -> dict[str, Any]:
    artifact = Artifact("", format, out, "fp32", 0, "", {"outputs": list(outputs)})
    return dict(messages.to_record(artifact))


def measure(payload: dict[str, Any], channel: Channel) -> dict[str, float]:
    """Run the pass; megabytes held before, the most held, and the seconds it took."""
    case, source = CASES[payload["case"]], messages.read(Artifact, payload["source"])
    one = passes.find(case.name).model_validate({**case.options, "samples": payload["images"]})
    _load(case, source)
    settings = DataSettings.model_validate(
        {"source": f"imagefolder:{payload['data']}", "prepare": PREPARE}
    )
    job = Job(
        out=Path(payload["out"]),
        inputs=INPUTS,
        origin=source,
        observer=Silent(),
        threads=len(os.sched_getaffinity(0)),
        calibration=data.open(settings, Path(payload["data"]), INPUTS),
    )
    before, start = _status_mb("VmRSS"), time.perf_counter()
    facts = one.run(source, job).facts
    assert payload["images"] in facts.values(), facts
    return {"loaded": before, "peak": _status_mb("VmHWM"), "seconds": time.perf_counter() - start}


def _load(case: Case, source: Artifact) -> None:
    """Import what the pass will, and open the model once."""
    from optcli import formats
    from optcli.formats import openvino as openvino_format

    openvino_format.forbid_telemetry()
    for package in packages(case):
        __import__(package)
    formats.module(source.format).open(source.path)


def packages(case: Case) -> tuple[str, ...]:
    """The packages that a case needs."""
    torch = ("torch", "torchao") if case.format == Format.TORCH else ()
    own = {"quantize_nncf": ("nncf", "openvino"), "prune": ("torch_pruning",)}
    return (*torch, *own.get(case.name, ("onnxruntime",)))


def _status_mb(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


def images(shared: Path, out: Path, count: int) -> Path:
    """A folder per class with links to photographs, `count` in all."""
    files = sorted((shared / "datasets" / "imagenet_1000" / "images").glob("*/*"))
    for index in range(count):
        file = files[index % len(files)]
        place = out / file.parent.name
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index}{file.suffix}").symlink_to(file.resolve())
    return out


def main() -> None:
    """Print one line for each calibrator and number of images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--images", default="250,1000")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    counts = [int(text) for text in given.images.split(",")]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        pictures = {n: str(images(given.shared, folder / f"images-{n}", n)) for n in counts}
        for name, case in CASES.items():
            if given.only not in name:
                continue
            with tempfile.TemporaryDirectory() as work:
                place = {"folder": work, "shared": str(given.shared.resolve())}
                place["format"] = str(case.format)
                source = workers.run("calibration_memory:write", place, dict[str, Any])
                for count in counts:
                    out = Path(work, str(count))
                    out.mkdir()
                    payload = {"case": name, "source": source, "images": count}
                    payload |= {"data": pictures[count], "out": str(out)}
                    found = workers.run("calibration_memory:measure", payload, dict[str, float])
                    line = f"{name:<24} {count:>5} images  loaded {found['loaded']:>6.0f}  "
                    line += f"above {found['peak'] - found['loaded']:>6.0f} MB  "
                    print(f"{line}{found['seconds']:>5.0f} s", flush=True)


if __name__ == "__main__":
    main()
