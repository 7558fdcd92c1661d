"""How long an export to ONNX takes, by PyTorch alone and in `export_onnx`; whether both agree.

    .venv/bin/python benchmarks/onnx_exports.py [NETWORK ...]

Networks of torchvision with random weights, and with statistics of batch normalization that change
something. Each is exported by torch.export once for each way, which is not timed. Then
`torch.onnx.export` makes ONNX of the program, in turns: alone (`plain`), and as `export_onnx` calls it
(`spared`: `passes/_torch/batch_norms`, `passes/_torch/decomposing`, `formats/onnx_writing`), until the
file is written. Printed, and written to benchmarks/results/onnx_exports.json: medians of the seconds,
which operators one graph has more or fewer of, and how far the outputs are from the network's, as a
share of the largest, at a batch of 3. The machine must be idle otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch
import torchvision

from optcli import environment
from optcli.formats import onnx as onnx_format
from optcli.formats import onnx_writing
from optcli.passes._torch import batch_norms, decomposing, onnx_exporting
from optcli.settings import TensorSpec

RESULTS = Path(__file__).parent / "results" / "onnx_exports.json"
NETWORKS = (
    *("resnet50", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "regnet_y_400mf"),
    *("shufflenet_v2_x1_0", "squeezenet1_1", "googlenet", "inception_v3", "mnasnet0_5", "vgg11_bn"),
    *("convnext_tiny", "vit_b_16", "swin_t"),
)
BATCH = 3


def network(name: str) -> tuple[torch.nn.Module, int]:
    """A network, and the width and height of its images."""
    torch.manual_seed(0)
    auxiliary = name in ("googlenet", "inception_v3")
    more: dict[str, Any] = {"init_weights": False, "aux_logits": False} if auxiliary else {}
    made: torch.nn.Module = torchvision.models.get_model(name, weights=None, **more).eval()
    for layer in made.modules():
        if isinstance(layer, torch.nn.BatchNorm2d) and layer.running_mean is not None:
            layer.running_mean.normal_(0, 0.1)
            assert layer.running_var is not None
            layer.running_var.uniform_(0.5, 1.5)
        elif (
            isinstance(layer, torch.nn.Linear) and not layer.weight.any()
        ):  # a head that begins at zero
            torch.nn.init.normal_(layer.weight)
    return made, 299 if name == "inception_v3" else 224


def exported(
    made: torch.nn.Module, spec: TensorSpec, *, spared: bool, folder: Path
) -> tuple[float, bool]:
    """Seconds from a program to a file, and whether the program was traced again."""
    from torch.onnx._internal.exporter import _fx_passes

    size = spec.shape[-1]
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(
            made, (torch.randn(2, 3, size, size),), dynamic_shapes=({0: batch},)
        )
    usual = _fx_passes.decompose_with_registry
    gc.collect()
    with (
        mock.patch.object(_fx_passes, "decompose_with_registry", side_effect=usual) as tracing,
        onnx_exporting.quiet_exporters(),
        contextlib.nullcontext() if spared else _plainly(),
    ):
        began = time.perf_counter()
        model, weights = onnx_exporting.parts_of_program(program, [spec], ["y"])
        if not spared:
            onnx_writing.fill(model, weights)
            weights = {}
        onnx_format.save(model, folder, weights=weights)
        return time.perf_counter() - began, tracing.called


@contextlib.contextmanager
def _plainly() -> Any:
    """Let the exporter do everything."""
    with (
        mock.patch.object(batch_norms, "fold"),
        mock.patch.object(decomposing, "only_where_needed", contextlib.nullcontext),
        mock.patch.object(onnx_exporting, "_unparsed_operators", contextlib.nullcontext),
    ):
        yield


def compared(name: str, rounds: int) -> dict[str, Any]:
    """One network both ways."""
    made, size = network(name)
    spec = TensorSpec(name="x", shape=("batch", 3, size, size))
    x = np.random.default_rng(0).standard_normal((BATCH, 3, size, size)).astype(np.float32)
    with torch.no_grad():
        right = made(torch.from_numpy(x)).numpy()
    found: dict[str, Any] = {"network": name}
    seconds: dict[str, list[float]] = {"plain": [], "spared": []}
    operators: dict[str, Counter[str]] = {}
    for number in range(rounds):
        for way in ("plain", "spared") if number % 2 == 0 else ("spared", "plain"):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                took, traced = exported(made, spec, spared=way == "spared", folder=folder)
                seconds[way].append(took)
                if way in operators:
                    continue
                graph = onnx.load(folder / onnx_format.FILE).graph
                operators[way] = Counter(node.op_type for node in graph.node)
                outputs = onnx_format.session(folder / onnx_format.FILE).run(None, {"x": x})[0]
                error = float(np.abs(outputs - right).max() / np.abs(right).max())
                found[way] = {"error": float(f"{error:.2g}"), "traced_again": traced}
    for way, took_s in seconds.items():
        found[way]["seconds"] = round(median(took_s), 2)
    found["fewer"] = dict(operators["plain"] - operators["spared"])
    found["more"] = dict(operators["spared"] - operators["plain"])
    return found


def main() -> None:
    """Compare all networks, print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = []
    for name in given.networks:
        row = compared(name, given.rounds)
        rows.append(row)
        plain, spared = row["plain"], row["spared"]
        print(
            f"{name}: {plain['seconds']} s, spared {spared['seconds']} s"
            f"{' (traced again)' if spared['traced_again'] else ''}; errors {plain['error']:.1e}, "
            f"{spared['error']:.1e}; fewer {row['fewer']}, more {row['more']}",
            flush=True,
        )
    packages = ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime")
    found = {"machine": environment.describe(packages), "rounds": given.rounds, "networks": rows}
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
