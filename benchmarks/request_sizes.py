"""What larger requests cost Ray Serve: processor time of the ingress and the replica by size.

    .venv/bin/python benchmarks/request_sizes.py --work FOLDER [--kilobytes 12,500,2000]

A network that does next to nothing is deployed for each size and loaded with binary tensors. A line
through the processor times of a request gives what one million bytes add: `overhead_per_mb` of
`optcli/serving/targets/ray.py` is its slope at the ingress. Processor times hold on a machine that does
other work too, though a little longer. Takes a minute and a half for each size.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import checked

_SECONDS, _RATE = "12", "15"
_RECIPE = """\
version: 1
name: size
model: {{source: "onnx:model.onnx"}}
inputs:
  - {{name: x, dtype: float32, shape: [batch, {count}], batch: {{min: 1, opt: 1, max: 4}}}}
latency: {{mode: quick, batch_sizes: [1]}}
variants:
  onnx: {{passes: [], runner: {{name: onnxruntime, threads: 1}}}}
"""


def main() -> int:
    """Measure each size, print a line for it, and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True, help="where everything is built")
    parser.add_argument("--kilobytes", default="12,500,2000")
    given = parser.parse_args()
    sizes = [int(each) * 1000 for each in given.kilobytes.split(",")]
    found = [_measured(size, given.work.absolute() / str(size)) for size in sizes]
    for size, times in zip(sizes, found, strict=True):
        words = ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
        print(f"{size / 1e6:6.3f} MB  {words}")
    for name in found[0]:
        print(f"{name}: {_slope(sizes, [times[name] for times in found]):.2f} ms for each MB")
    return 0


def _measured(size: int, work: Path) -> dict[str, float]:
    """Milliseconds of a processor that a request takes, by process."""
    work.mkdir(parents=True, exist_ok=True)
    recipe, places = work / "recipe.yaml", ["--artifacts", str(work / "artifacts")]
    _write_network(work / "model.onnx", size // 4)
    recipe.write_text(_RECIPE.format(count=size // 4))
    store = ["--store", str(work / "store")]
    wanted = checked.report_of(work / "artifacts")
    checked.optcli("build", str(recipe), *store, *places, wanted=wanted)
    asked = ["--curve", "1ms+1ms*b", "--rate", _RATE, "--slo", "p95=2s", "--batch", "1"]
    plan = checked.optcli("plan", *asked, "--target", "ray", "--instances", "1", "--json")
    (work / "plan.json").write_text(plan.stdout)
    bundle = work / "bundle"
    if not (bundle / "bundle.json").is_file():
        deploying = ["onnx", str(recipe), "--target", "ray", "--plan", str(work / "plan.json")]
        deploying += ["--force", "--out", str(bundle), *store, *places]
        checked.optcli("deploy", *deploying, fine=(0,), wanted=checked.Wanted(bundle, "bundle.json"))
    load = ["--rate", _RATE, "--seconds", _SECONDS, "--windows", "1", "--settle", "2s", *store]
    (point,) = checked.optcli_answer("loadtest", str(bundle), *load, "--json")["points"]
    cores = point["server"]["cpu_cores"]
    return {name: 1000 * cores[name] / point["rate_per_s"] for name in ("ingress", "replica")}


def _write_network(path: Path, count: int) -> None:
    """The largest of `count` numbers, of each row."""
    import onnx
    from onnx import TensorProto, helper

    def tensor(name: str, *shape: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    node = helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1)
    graph = helper.make_graph(
        [node], "largest", [tensor("x", "batch", count)], [tensor("y", "batch", 1)]
    )
    opset = helper.make_opsetid("", 13)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def _slope(sizes: list[int], times_ms: list[float]) -> float:
    """Milliseconds that one million bytes add, by least squares."""
    megabytes = [size / 1e6 for size in sizes]
    middle, mean = sum(megabytes) / len(sizes), sum(times_ms) / len(sizes)
    pairs = zip(megabytes, times_ms, strict=True)
    together = sum((size - middle) * (time - mean) for size, time in pairs)
    return together / sum((size - middle) ** 2 for size in megabytes)


if __name__ == "__main__":
    checked.told(main)
