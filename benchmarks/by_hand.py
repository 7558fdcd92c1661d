"""What optcli makes beside what a person makes with the same library by hand, in turns.

    .venv/bin/python benchmarks/by_hand.py --work FOLDER [--networks resnet50,vit_b_16] \
        [--methods onnx,openvino-int8] [--shared FOLDER] [--rounds 30] [--counts 1000]

For each network, method and batch size 1 and 8. Ours is what `optcli build` makes of a recipe with a
batch of 1 to 8, opened as the build opens it. By hand is the library's own documented way with a batch
that is fixed, its defaults, and two threads on both sides. Both lie in one process and take turns in
rounds of about 30 ms. The figure is the median over the rounds of (time by hand / our time), with the
middle half of the rounds and an interval of 95 % of the median: below 1 it is ours that is slower.
Networks have random weights, batch norms averaged over random images. `--shared` holds `models/` with
trained ones. What is made stays in `--work`.

`litert` and `executorch` have a batch of 1, and take `digits`, `resnet20_cifar10`,
`mobilenet_v3_small_fashion`, `vit_tiny_fashion` and `yolox_nano` as PyTorch modules. With `--counts`
nothing is timed: at most so many evaluation samples go through our file by `optcli build`, through the
same file in a plain loop over the runtime, and through the file that was made by hand. The first two
must give the same counts (a detector: the same mAP).

Prints a table, and writes benchmarks/results/by_hand.json. A row of which either side failed has no
times; it has the end of what that printed. Ends with 1 where a ratio is under 0.95, counts differ or a
row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import checked
import numpy as np
import peers
import tune_networks
import tune_worker
from checked import NotDoneError
from peers import EDGE, THREADS
from tune_networks import NETWORKS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "by_hand.json"
BATCH_SIZES = (1, 8)
SAMPLES = 32
LEAST = 0.95
_FIGURES = ("ours_ms", "by_hand_ms", "ratio", "middle")
_WHO = {"ours": "optcli", "by_hand": "the library by hand", "compare": "the comparison"}
_WHO |= {"prepare": "the samples", "counts": "the counts"}
_LIGHT = ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "vit_b_16")
_MORE = (
    *("regnet_y_400mf", "shufflenet_v2_x1_0", "densenet121", "swin_t", "mobilenet_v3_small"),
    *("squeezenet1_1", "googlenet"),
)
_FILES = ("yolox_nano", "mobilenet_v3_small_fashion", "vit_tiny_fashion")
# Trained networks that phones' formats are made of, as modules.
_MODULES = (*_FILES, "digits", "resnet20_cifar10")
# Files whose batch is fixed at 1.
_ONE = ("yolox_nano",)
# Passes by method, and the model that the person starts from.
METHODS: dict[str, list[Any]] = {
    "torchscript": ["torchscript"],
    "onnx": ["export_onnx"],
    "onnx-int8": ["export_onnx", "quantize_onnxruntime"],
    "onnx-nncf": ["export_onnx", "quantize_nncf"],
    "openvino": ["export_onnx", "to_openvino"],
    "openvino-bf16": ["export_onnx", "to_openvino"],
    "openvino-int8": ["export_onnx", "to_openvino", "quantize_nncf"],
    # NNCF's own default for all but transformers; ours is `mixed` for swish, GELU and the like.
    "openvino-int8-performance": [
        "export_onnx",
        "to_openvino",
        {"quantize_nncf": {"preset": "performance"}},
    ],
    # From the network itself, which is what `tune` takes; by hand it goes through ONNX as above.
    "openvino-exported": ["export", "to_openvino"],
    "openvino-int8-exported": ["export", "to_openvino", "quantize_nncf"],
    "compile": ["torch_compile"],
    "aoti": ["aot_inductor"],
    "pt2e-aoti": ["quantize_pt2e", "aot_inductor"],
    "litert": ["to_litert"],
    "litert-int8": ["to_litert", {"quantize_litert": {"samples": SAMPLES}}],
    "executorch": ["to_executorch"],
    "executorch-int8": [
        {"quantize_pt2e": {"quantizer": "xnnpack", "samples": SAMPLES}},
        "to_executorch",
    ],
}


def network(name: str) -> Any:
    """A torchvision network whose activations have a usual size."""
    import torch
    import torchvision

    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None)
    norms = [each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    for each in norms:
        each.momentum = None
    if norms:
        with torch.no_grad():
            model.train()(torch.randn(16, 3, 224, 224, generator=torch.Generator().manual_seed(3)))
    if name.startswith("vit"):  # torchvision's head is all zeros
        torch.nn.init.normal_(model.heads.head.weight, std=0.02)
    return model.eval()


def _sizes(name: str, method: str) -> tuple[int, ...]:
    return BATCH_SIZES[:1] if name in _ONE or method in EDGE else BATCH_SIZES


def images(name: str) -> np.ndarray:
    """Random samples of the network's size, for calibration and for the calls."""
    known = NETWORKS.get(name)
    shape = (known.channels, known.side, known.side) if known else (3, 224, 224)
    return np.random.default_rng(1).standard_normal((SAMPLES, *shape)).astype(np.float32)


def ours(name: str, methods: Sequence[str], work: Path, shared: Path | None) -> dict[str, Any]:
    """What `optcli build` makes: by method its artifact, runner and options, or why there is none."""
    from optcli.observer import Silent
    from optcli.pipeline.execute import BuildSettings
    from optcli.pipeline.making import Phases, make, planned
    from optcli.store import Store
    from optcli.workers import messages

    (work / "recipe.yaml").write_text(json.dumps(_recipe(name, methods, work, shared), indent=1))
    store = Store(work / "store")
    made = make(
        planned(work / "recipe.yaml", store, (), ()), store, Silent(), BuildSettings(), Phases()
    )
    found: dict[str, Any] = {}
    for variant in made.plan.variants:
        if variant.name not in methods:
            continue
        if variant.name not in made.artifacts:
            failed = [made.done[s.key] for s in variant.steps if s.key in made.done]
            reasons = [str(each.error) for each in failed if each.error is not None]
            found[variant.name] = {"failed": "; ".join(reasons) or "it cannot be built here"}
            continue
        found[variant.name] = {
            "artifact": messages.to_record(made.artifacts[variant.name]),
            "runner": variant.runner_name,
            "options": variant.runner_options(THREADS),
            "inputs": [spec.model_dump(mode="json") for spec in made.plan.recipe.inputs],
        }
    return found


def _recipe(name: str, methods: Sequence[str], work: Path, shared: Path | None) -> dict[str, Any]:
    variants = {
        method: {"passes": _passes(name, method), "required": False, **_runner(method)}
        for method in methods
    }
    if _as_module(name, methods[0]):
        network = NETWORKS[name]
        return {
            **tune_networks.recipe(network, shared, work, 0),
            "model": _module(name, work, shared),
            "inputs": [{"name": network.input, "shape": [1, *images(name).shape[1:]]}],
            "latency": {"batch_sizes": [1], "threads": THREADS},
            "variants": {"start": [], **variants},
        }
    np.savez(work / "samples.npz", **{_input(name, shared): images(name)})  # type: ignore[arg-type]
    return {
        "version": 1,
        "name": "by-hand",
        "model": _model(name, work, shared),
        "inputs": [
            {
                "name": _input(name, shared),
                "shape": [1 if name in _ONE else "batch", 3, *images(name).shape[2:]],
                **({} if name in _ONE else {"batch": {"min": 1, "opt": 8, "max": 8}}),
            }
        ],
        "data": {"calibration": {"source": "npz:samples.npz"}},
        "latency": {"batch_sizes": list(_sizes(name, methods[0])), "threads": THREADS},
        "variants": {"start": [], **variants},
    }


def _as_module(name: str, method: str) -> bool:
    return name in _MODULES and method in EDGE


def _module(name: str, work: Path, shared: Path | None) -> dict[str, Any]:
    """A trained network as a recipe's model in PyTorch."""
    network = NETWORKS[name]
    if network.family != "coco":
        return dict(tune_networks.recipe(network, shared, work, 0)["model"])
    import safetensors.torch

    path = work / "weights.safetensors"
    state = tune_networks.module(network, shared, work).state_dict()
    safetensors.torch.save_file(state, str(path))
    source = f"python:{ROOT / 'benchmarks' / 'yolox.py'}:YoloxNano"
    return {"source": source, "weights": str(path)}


def _passes(name: str, method: str) -> list[Any]:
    passes = METHODS[method]
    return [each for each in passes if name not in _FILES or each != "export_onnx"]


def _runner(method: str) -> dict[str, Any]:
    return {"runner": {"name": "openvino", "precision": "bf16"}} if method == "openvino-bf16" else {}


def _input(name: str, shared: Path | None) -> str:
    if name not in _FILES:
        return "x"
    import onnx

    assert shared is not None
    model = onnx.load(shared / "models" / f"{name}.onnx", load_external_data=False)
    return str(model.graph.input[0].name)


def _model(name: str, work: Path, shared: Path | None) -> dict[str, Any]:
    if name in _FILES:
        assert shared is not None
        return {"source": f"onnx:{shared / 'models' / name}.onnx"}
    import safetensors.torch

    weights = work / "weights.safetensors"
    if not weights.is_file():
        safetensors.torch.save_model(network(name), str(weights))
    return {"source": f"torchvision:{name}", "weights": str(weights)}


def by_hand(name: str, method: str, size: int, work: Path, shared: Path | None) -> Path:
    """The library's own way to the same, for one batch size; gives the file."""
    out = work / f"hand-{method}-{size}"
    out.mkdir(exist_ok=True)
    path = out / peers.file_of(method)
    done = out / "done"
    if not done.is_file():
        if _as_module(name, method):
            model = tune_networks.module(NETWORKS[name], shared, work)
            rows = np.load(work / "calibration.npy")
            spread = [index * len(rows) // SAMPLES for index in range(SAMPLES)]  # as ours are
            peers.from_torch(method, model, rows[spread], size, path)
        elif method in peers.FROM_TORCH:
            peers.from_torch(method, network(name), images(name), size, path)
        else:
            _onnx_by_hand(name, method, size, path, shared)
        done.touch()
    checked.model(path, quantized=peers.quantizes(method))  # what an earlier call left, too
    return path


def _onnx_by_hand(name: str, method: str, size: int, path: Path, shared: Path | None) -> None:
    start = path if method == "onnx" else path.parent / "start.onnx"
    if name in _FILES:
        assert shared is not None
        peers.with_batch(shared / "models" / f"{name}.onnx", size, start)
    else:
        peers.export(network(name), images(name)[:size], start)
    if method != "onnx":
        attends = "vit" in name or "swin" in name
        peers.from_onnx(method, start, images(name), size, path, attends=attends)


def compare(payload: dict[str, Any]) -> dict[str, Any]:
    """The two in turns: milliseconds of each, and the ratio with the middle half of its rounds."""
    from optcli import runners
    from optcli.artifact import Artifact
    from optcli.settings import TensorSpec
    from optcli.workers import messages

    made, size = payload["made"], payload["size"]
    inputs = [TensorSpec.model_validate(spec) for spec in made["inputs"]]
    runner = runners.find(made["runner"]).model_validate(made["options"])
    feed = {inputs[0].name: np.ascontiguousarray(images(payload["name"])[:size])}
    x = feed[inputs[0].name]
    hand = peers.opened(payload["method"], Path(payload["path"]))
    with runner.open(messages.read(Artifact, made["artifact"]), inputs) as model:
        calls: list[Callable[[], Any]] = [lambda: model.run(feed), lambda: hand(x)]
        usual = max(peers.usual(each) for each in calls)
        count = max(2, round(peers.ROUND_S / usual))
        times: list[list[float]] = [[], []]
        for number in range(payload["rounds"]):
            for index in (0, 1) if number % 2 else (1, 0):
                times[index].append(peers.turn(calls[index], count))
        shapes = model.effective().get("shapes")
    ratios = [theirs / mine for mine, theirs in zip(*times, strict=True)]
    ratio, low, high = peers.quartiles(ratios)
    return {
        "ours_ms": 1e3 * median(times[0]),
        "by_hand_ms": 1e3 * median(times[1]),
        "ratio": ratio,
        "middle": [low, high],
        "interval": peers.interval(ratios),
        "shapes": shapes,
    }


def counts(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """How many evaluation samples are right, by method: of our file twice, and of that by hand.

    A detector has its mAP in place of the count.
    """
    import optcli

    name, work, methods = payload["name"], Path(payload["work"]), payload["methods"]
    shared = Path(payload["shared"]) if payload["shared"] else None
    recipe = _recipe(name, methods, work, shared) | {"latency": {"mode": "off"}}
    (work / "recipe.yaml").write_text(json.dumps(recipe, indent=1))
    artifacts = work / "artifacts"
    report = optcli.build(work / "recipe.yaml", store=work / "store", artifacts=artifacts)
    inputs = np.load(work / "evaluation.npy")
    about = {"network": name, "work": str(work), "shared": payload["shared"], "seed": 0}

    def right(method: str, path: Path) -> float:
        call = peers.opened(method, path)
        outputs = np.concatenate([np.array(call(inputs[i : i + 1])) for i in range(len(inputs))])
        if NETWORKS[name].metric == "map":
            return tune_worker.mean_precision(about, "evaluation", outputs)
        return int((outputs.argmax(1) == np.load(work / "evaluation-targets.npy")).sum())

    rows = []
    for method in methods:
        row = {"network": name, "method": method, "samples": len(inputs)}
        rows.append(row)
        try:
            found, start = report.variants[method], report.variants["start"]
            if found.accuracy is None or start.accuracy is None:
                raise NotDoneError("optcli", f"judged none: {found.reason or start.reason}")
            row |= {"float": _count(start.accuracy, name), "optcli": _count(found.accuracy, name)}
            (ours_file,) = (artifacts / report.recipe.name / method).glob("model.*")
            row["same_file"] = right(method, ours_file)
            row["by_hand"] = right(method, by_hand(name, method, 1, work, shared))
        except NotDoneError as error:
            row["failed"] = str(error).replace(str(work), "FOLDER")
    return rows


def _count(accuracy: Any, name: str) -> float:
    value = float(accuracy.value)
    return value if NETWORKS[name].metric == "map" else round(value * accuracy.samples)


def _alone(what: str, payload: dict[str, Any]) -> Any:
    """A function of this file in a fresh process. Raises NotDoneError where it fails."""
    from optcli.runners import find

    environment = find(payload["runner"])(threads=THREADS).environment() if "runner" in payload else {}
    return checked.answer(
        _WHO[what],
        [sys.executable, __file__, "--do", what],
        input=json.dumps(payload),
        env={**os.environ, **environment},
    )


def _do(what: str) -> None:
    payload = json.load(sys.stdin)
    shared = Path(payload["shared"]) if payload.get("shared") else None
    found: Any
    if what == "prepare":
        found = tune_worker.prepare({**payload, "network": payload["name"]})
    elif what == "counts":
        found = counts(payload)
    elif what == "ours":
        found = ours(payload["name"], payload["methods"], Path(payload["work"]), shared)
    elif what == "by_hand":
        at = Path(payload["work"])
        found = {"path": str(by_hand(payload["name"], payload["method"], payload["size"], at, shared))}
    else:
        found = compare(payload)
    print(json.dumps(found))


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path)
    also = ", ".join((*_MORE, *_FILES))
    parser.add_argument("--networks", default=",".join(_LIGHT), help=f"comma-separated; also {also}")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--counts", type=int, help="of this many samples, and no times")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.do:
        _do(given.do)
        return
    chosen = f"--networks {given.networks} --methods {given.methods} --rounds {given.rounds}"
    shared = " --shared FOLDER" if given.shared else ""
    command = f"python benchmarks/by_hand.py --work FOLDER{shared} {chosen}"
    if given.counts:
        command = command.replace(f"--rounds {given.rounds}", f"--counts {given.counts}")
    rows: list[dict[str, Any]] = []
    for name in given.networks.split(","):
        of_network = _count_rows(name, given) if given.counts else _network_rows(name, given)
        _write(given.results, command, of_network, "counts" if given.counts else "rows")
        rows += of_network
    if given.counts:
        wrong = [row for row in rows if "failed" in row or row["optcli"] != row["same_file"]]
        print(f"{len(wrong)} of {len(rows)} differ or failed")
        sys.exit(1 if wrong else 0)
    slow = [row for row in rows if row["ratio"] is not None and row["ratio"] < LEAST]
    failed = [row for row in rows if "failed" in row]
    print(f"{len(slow)} of {len(rows)} under {LEAST}, {len(failed)} failed")
    sys.exit(1 if slow or failed else 0)


def _count_rows(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    methods = [each for each in given.methods.split(",") if _as_module(name, each)]
    common = _common(name, given)
    try:
        _alone("prepare", {**common, "seed": 0, "most": given.counts})
        rows: list[dict[str, Any]] = _alone("counts", {**common, "methods": methods})
    except NotDoneError as error:
        rows = [{"network": name, "method": each, "failed": str(error)} for each in methods]
    for row in rows:
        print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def _common(name: str, given: argparse.Namespace) -> dict[str, Any]:
    work = given.work.absolute() / name
    work.mkdir(parents=True, exist_ok=True)
    shared = str(given.shared.absolute()) if given.shared else ""
    return {"name": name, "work": str(work), "shared": shared}


def _network_rows(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    common = _common(name, given)
    work = Path(common["work"])
    methods = given.methods.split(",")
    edge = [each for each in methods if each in EDGE]
    others = [
        each
        for each in methods
        if each not in EDGE and (name not in _FILES or METHODS[each][0] == "export_onnx")
    ]
    made: dict[str, Any] = {}
    for group in filter(None, (others, edge)):
        try:
            if _as_module(name, group[0]) and not (work / "calibration.npy").is_file():
                _alone("prepare", {**common, "seed": 0, "most": SAMPLES})
            made |= _alone("ours", {**common, "methods": group})
        except NotDoneError as error:
            made |= {method: {"failed": str(error)} for method in group}
    rows = []
    for method in (*others, *edge):
        for size in _sizes(name, method):
            row: dict[str, Any] = {"network": name, "method": method, "batch_size": size}
            try:
                if "failed" in made[method]:
                    raise NotDoneError("optcli", f"built none: {made[method]['failed']}")
                hand = _alone("by_hand", {**common, "method": method, "size": size})
                payload = {**common, **hand, "made": made[method], "method": method, "size": size}
                payload |= {"rounds": given.rounds, "runner": made[method]["runner"]}
                row |= _alone("compare", payload)
                checked.figures("the comparison", row, "ours_ms", "by_hand_ms", "ratio")
            except NotDoneError as error:
                row |= dict.fromkeys(_FIGURES) | {"failed": str(error).replace(str(work), "FOLDER")}
            rows.append(row)
            print(_line(row), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    what = f"{row['network']:28} {row['method']:14} {row['batch_size']:2}"
    if "failed" in row:
        return f"{what}  FAILED: {row['failed']}"
    low, high = row["interval"]
    times = f"ours {row['ours_ms']:8.3f} ms, by hand {row['by_hand_ms']:8.3f} ms"
    return f"{what}  {times}: {row['ratio']:.2f} [{low:.2f}, {high:.2f}] {row['shapes'] or ''}"


def _write(path: Path, command: str, rows: list[dict[str, Any]], under: str) -> None:
    """Keep the rows, in place of older ones of the same network, method and batch size."""
    from optcli import environment

    def place(row: dict[str, Any]) -> str:
        return f"{row['network']} {row['method']} {row.get('batch_size')}"

    known = json.loads(path.read_text()) if path.is_file() else {}
    libraries = ("torch", "onnxruntime", "openvino", "nncf", "torchao", "executorch", "ai_edge_litert")
    rows = [{**row, "command": command, "when": time.strftime("%Y-%m-%d")} for row in rows]
    found = {place(row): row for row in (*known.get(under, ()), *rows)}
    known |= {"environment": environment.describe(libraries), under: list(found.values())}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
