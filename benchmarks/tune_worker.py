"""What `tune_peers.py` does in processes of their own; started by it alone.

`python tune_worker.py TASK` reads one line of JSON and prints its answer as the last line. `serve`
stays: for each further line, a number, it makes that many calls and says how long one took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import peers
import tune_networks
from tune_networks import NETWORKS, Network

_Call = Callable[[np.ndarray], np.ndarray]


def prepare(payload: dict[str, Any]) -> dict[str, Any]:
    """Samples and the recipe, and the prepared inputs that the peers get; gives counts by part."""
    network, work, shared = _about(payload)
    tune_networks.train(network, shared, work)
    counts = tune_networks.write_samples(network, shared, work, payload["seed"], payload["most"])
    tune_networks.write_recipe(network, shared, work, payload["seed"])
    for part in ("calibration", "validation", "evaluation", "third"):
        samples = _samples(network, shared, work, payload["seed"], part)
        if samples is None:
            continue
        counts[part] = len(samples)
        rows = np.stack([samples[i].inputs[network.input] for i in range(len(samples))])
        np.save(work / f"{part}.npy", np.ascontiguousarray(rows, dtype=np.float32))
        if network.metric != "map":
            targets = np.array([samples[i].target for i in range(len(samples))])
            np.save(work / f"{part}-targets.npy", targets)
    return counts


def _samples(network: Network, shared: Path | None, work: Path, seed: int, part: str) -> Any:
    """The prepared samples of a part; None where the network has no such part."""
    from optcli import data
    from optcli.settings import TensorSpec

    recipe = tune_networks.recipe(network, shared, work, seed)
    if part == "third" and network.family != "coco":
        role = {**recipe["data"]["evaluation"], "source": "npz:third.npz"}
        role.pop("split")
    else:
        role = recipe["data"].get(part)
    if role is None:
        return None
    spec = TensorSpec.model_validate(recipe["inputs"][0])
    return data.open(data.DataSettings.model_validate(role), work, [spec])


def winner(payload: dict[str, Any]) -> dict[str, Any]:
    """The artifact and the runner of a variant of the tuned recipe, from the search's store."""
    from optcli.observer import Silent
    from optcli.pipeline.execute import BuildSettings
    from optcli.pipeline.making import Phases, make, planned
    from optcli.store import Store
    from optcli.workers import messages

    name = payload["variant"]
    store = Store(Path(payload["work"]) / "store")
    made = make(
        planned(Path(payload["recipe"]), store, (), ()), store, Silent(), BuildSettings(), Phases()
    )
    variant = next(each for each in made.plan.variants if each.name == name)
    if name not in made.artifacts:
        raise RuntimeError(f"the winner {name} could not be built again")
    return {
        "artifact": messages.to_record(made.artifacts[name]),
        "runner": variant.runner_name,
        "options": variant.runner_options(tune_networks.THREADS),
        "inputs": [spec.model_dump(mode="json") for spec in made.plan.recipe.inputs],
    }


def peer(payload: dict[str, Any]) -> dict[str, Any]:
    """The library's own way to a method, for one batch size; gives the file."""
    network, work, shared = _about(payload)
    method, size = payload["method"], payload["size"]
    out = work / "peers" / f"{method}-{size}"
    out.mkdir(parents=True)
    path = out / peers.file_of(method)
    rows = np.load(work / "calibration.npy")
    if method in ("aoti", "pt2e-aoti"):
        peers.from_torch(method, tune_networks.module(network, shared, work), rows, size, path)
        return {"path": str(path)}
    start = path if method == "onnx" else out / "start.onnx"
    if network.family == "coco":
        peers.with_batch(tune_networks.weights(network, shared, work), size, start)
    else:
        peers.export(tune_networks.module(network, shared, work), rows[:size], start)
    if method != "onnx":
        peers.from_onnx(method, start, rows, size, path, attends=network.attends)
    return {"path": str(path)}


def olive(payload: dict[str, Any]) -> dict[str, Any]:
    """What Olive starts from: a file with any batch, and what it is told; gives the latter's path."""
    network, work, shared = _about(payload)
    out = work / "olive"
    out.mkdir()
    start = out / "start.onnx"
    rows = np.load(work / "calibration.npy", mmap_mode="r")[:2]
    peers.export(tune_networks.module(network, shared, work), rows, start, dynamic=True)
    told = {
        "model": str(start),
        "classes": network.classes,
        "work": str(work),
        "out": str(out),
        "minutes": payload["minutes"],
        "seed": payload["seed"],
        "max_drop": network.max_drop,
        "threads": tune_networks.THREADS,
    }
    path = out / "told.json"
    path.write_text(json.dumps(told))
    return {"config": str(path)}


def judge(payload: dict[str, Any]) -> dict[str, Any]:
    """By part the metric's value, and for top-1 a 1 for each sample that is right."""
    network, work, _ = _about(payload)
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        call = _opened(payload, stack)
        for part in payload["parts"]:
            path = work / f"{part}.npy"
            if not path.is_file():
                continue
            outputs = _outputs(call, np.load(path, mmap_mode="r"), payload["size"])
            if network.metric == "map":
                found[part] = {"value": mean_precision(payload, part, outputs), "right": None}
                continue
            right = outputs.argmax(1) == np.load(work / f"{part}-targets.npy")
            found[part] = {"value": float(right.mean()), "right": right.astype(int).tolist()}
    return found


def _outputs(call: _Call, rows: np.ndarray, size: int) -> np.ndarray:
    """The outputs of all rows, in batches of exactly so many: the last one is filled up."""
    found = []
    for start in range(0, len(rows), size):
        batch = np.array(rows[start : start + size])
        missing = size - len(batch)
        full = np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)])
        found.append(np.array(call(full))[: len(batch)])
    return np.concatenate(found)


def mean_precision(payload: dict[str, Any], part: str, outputs: np.ndarray) -> float:
    """COCO's mAP by optcli's decoding of YOLOX and its metric."""
    from optcli.accuracy import decoding, metrics
    from optcli.settings.accuracy import AccuracySettings
    from optcli.settings.postprocess import PostprocessSettings

    network, work, shared = _about(payload)
    samples = _samples(network, shared, work, payload["seed"], part)
    each = [samples[i] for i in range(len(samples))]
    step = decoding.make(PostprocessSettings.model_validate({"yolox": {}}), work)
    metric = metrics.make(AccuracySettings(metric="map"), work)
    assert step is not None
    seen = metrics.Predictions(
        [one.id for one in each], [one.target for one in each], [one.meta for one in each],
        {"output": outputs},
    )  # fmt: skip
    decoded = decoding.decode(step, seen, (network.side, network.side))
    seen = metrics.Predictions(seen.ids, seen.targets, seen.meta, seen.outputs, decoded)
    return float(metric.value(metric.records(seen)))


def serve(payload: dict[str, Any]) -> None:
    """Say how long a call takes, then take turns until the lines end."""
    with ExitStack() as stack:
        call = _opened(payload, stack)
        _, work, _ = _about(payload)
        x = np.ascontiguousarray(np.load(work / "evaluation.npy", mmap_mode="r")[: payload["size"]])

        def once() -> Any:
            return call(x)

        print("seconds", peers.usual(once), flush=True)
        for line in sys.stdin:
            print("seconds", peers.turn(once, int(line)), flush=True)


def _opened(payload: dict[str, Any], stack: ExitStack) -> _Call:
    """A call of the winner, of a peer, or of the float network (`eager`)."""
    network, work, shared = _about(payload)
    method = payload["method"]
    if method == "winner":
        return _of_runner(payload["made"], stack)
    if method == "eager" and network.family == "coco":
        return peers.opened("onnx", tune_networks.weights(network, shared, work))
    if method == "eager":
        return peers.of_module(tune_networks.module(network, shared, work))
    return peers.opened(method, Path(payload["path"]), precision=None)


def _of_runner(made: dict[str, Any], stack: ExitStack) -> _Call:
    from optcli import runners
    from optcli.artifact import Artifact
    from optcli.settings import TensorSpec
    from optcli.workers import messages

    inputs = [TensorSpec.model_validate(spec) for spec in made["inputs"]]
    runner = runners.find(made["runner"]).model_validate(made["options"])
    model = stack.enter_context(runner.open(messages.read(Artifact, made["artifact"]), inputs))
    name = inputs[0].name
    return lambda x: next(iter(model.run({name: x}).values()))


def _about(payload: dict[str, Any]) -> tuple[Network, Path, Path | None]:
    shared = payload.get("shared")
    return NETWORKS[payload["network"]], Path(payload["work"]), Path(shared) if shared else None


if __name__ == "__main__":
    _task, _told = sys.argv[1], json.loads(sys.stdin.readline())
    if _task == "serve":
        serve(_told)
    else:
        _tasks = {"prepare": prepare, "winner": winner, "peer": peer, "olive": olive, "judge": judge}
        print("\n" + json.dumps(_tasks[_task](_told)))
