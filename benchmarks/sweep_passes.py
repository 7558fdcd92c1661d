"""Every pass on several networks, in every runner, at batch sizes 1 and 8: how close its outputs are.

    .venv/bin/python benchmarks/sweep_passes.py --shared FOLDER --work FOLDER [--models resnet18,vit]

`--shared` holds `datasets/` and `models/`. One row per network, chain of passes and runner. The outputs
for 16 real images are compared with those of the parent, the artifact before the last pass, as SQNR:
10 log10(sum of squares of the wanted / of the difference), of the worst output. Each kind of pass has a
bar; one that changes the network on purpose (pruning, fine-tuning) must only give finite numbers. A
refusal (an error of optcli's own) is printed as it is: whether it is right is for the reader to say.
Steps run as in a build, each in a process of its own and checked against its parent there too. What
they make stays in `--work`, and a second call goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import numpy as np
from sweep_chains import COMPILED, FROM_ONNX, FROM_TORCH, LOSSLESS, OPTIONS, PLAIN, Entry
from sweep_models import NETWORKS, VITS, Network

from optcli import data, passes, runners, workers
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.errors import OptcliError
from optcli.passes import Traits
from optcli.pipeline.messages import PassRequest, SourceRequest, Written
from optcli.settings import TensorSpec
from optcli.workers import Channel, messages

T = TypeVar("T")

WARM = ["numpy", "torch", "torchvision", "onnx", "onnxruntime", "openvino", "nncf"]
BATCH_SIZES = (1, 8)


@dataclass
class Sweep:
    """One network: its folder, its inputs, what to compare on."""

    name: str
    network: Network
    work: Path
    shared: Path
    server: workers.ForkServer

    def call(self, function: str, message: Any, gives: type[T], log: Path) -> T:
        log.parent.mkdir(parents=True, exist_ok=True)
        with self.server.start(function, message, log=log) as child:
            return child.result(gives, 900)

    @property
    def specs(self) -> list[dict[str, Any]]:
        return [spec.model_dump(mode="json") for spec in self.network.inputs()]

    def start(self) -> Artifact:
        """The network as it comes from its source; raises what the source raises."""
        self.work.mkdir(parents=True, exist_ok=True)
        (self.work / "vits.py").write_text(VITS)
        settings = self.network.data(self.shared)
        for role in ("calibration", "evaluation"):
            payload = {
                "data": settings[role],
                "inputs": self.specs,
                "out": str(self.work / f"{role}.npz"),
            }
            self.call("sweep_passes:images", payload, NoneType, self.work / "data.log")
        source = self.network.source(self.work, self.shared)
        if self.network.make:
            payload = {**source, "images": str(self.work / "calibration.npz")}
            make = f"sweep_models:{self.network.make}"
            self.call(make, payload, NoneType, self.work / "make.log")
        request = SourceRequest(
            kind=self.network.kind,
            source=source,
            inputs=tuple(self.network.inputs()),
            probe=self.work / "calibration.npz",
            threads=1,
        )
        return self._made("source", "make_source", request)

    def apply(self, entry: Entry, parent: Artifact, chain: str, origin: Artifact) -> Artifact:
        """A pass on an artifact, checked as a build checks it."""
        name, options = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        traits = Traits.of(passes.find(name).model_validate(options), name, "")
        request = PassRequest(
            step=chain,
            inputs=tuple(self.network.inputs()),
            folder=self.work,
            probe=self.work / "calibration.npz",
            threads=1,
            seed=0,
            batch_sizes=tuple(BATCH_SIZES),
            traits=traits,
            parent=parent,
            origin=origin,
            data={
                role: DataSettings.model_validate(of)
                for role, of in self.network.data(self.shared).items()
            },
        )
        return self._made(chain, "make_artifact", request)

    def _made(self, chain: str, function: str, request: PassRequest | SourceRequest) -> Artifact:
        step = self.work / _folder(chain)
        record = step / "record.json"
        if not record.is_file():
            out = step / "out"
            _empty(out)
            request, step_of = replace(request, out=out), f"optcli.pipeline.step:{function}"
            written = self.call(step_of, request, Written, step / "log")
            record.write_text(json.dumps(messages.to_record(written)))
        made = messages.read(Written, json.loads(record.read_text()))
        out = step / "out"
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
        return Artifact("", made.format, out, made.precision, size, "", made.facts)

    def run(self, made: Artifact, runner: str, options: dict[str, Any]) -> dict[str, np.ndarray]:
        """Outputs on all images, by `batch size/name`."""
        out = made.path.parent / f"{runner}{_folder(json.dumps(options)) if options else ''}.npz"
        if not out.is_file():
            payload = {"artifact": messages.to_record(made), "inputs": self.specs, "runner": runner}
            payload |= {
                "options": options,
                "images": str(self.work / "evaluation.npz"),
                "out": str(out),
            }
            self.call("sweep_passes:outputs", payload, NoneType, made.path.parent / f"{runner}.log")
        return dict(np.load(out))


def images(payload: dict[str, Any], channel: Channel) -> None:
    """Write the samples of a role as arrays."""
    inputs = [TensorSpec.model_validate(spec) for spec in payload["inputs"]]
    samples = data.open(DataSettings.model_validate(payload["data"]), Path(), inputs)
    rows = [samples[index].inputs for index in range(len(samples))]
    np.savez(payload["out"], **{spec.name: np.stack([r[spec.name] for r in rows]) for spec in inputs})


def outputs(payload: dict[str, Any], channel: Channel) -> None:
    """Write the outputs of an artifact at each batch size."""
    inputs = [TensorSpec.model_validate(spec) for spec in payload["inputs"]]
    feed = dict(np.load(payload["images"]))
    runner = runners.find(payload["runner"]).model_validate({"threads": 1, **payload["options"]})
    found: dict[str, np.ndarray] = {}
    with runner.open(messages.read(Artifact, payload["artifact"]), inputs) as model:
        for size in BATCH_SIZES:
            parts = []
            for start in range(0, len(next(iter(feed.values()))), size):
                batch = {name: rows[start : start + size] for name, rows in feed.items()}
                parts.append({k: np.array(v) for k, v in model.run(batch).items()})
            for name in parts[0]:
                found[f"{size}/{name}"] = np.concatenate([part[name] for part in parts])
        found["precision"] = np.array(model.effective()["precision"])
    np.savez(payload["out"], **found)  # type: ignore[arg-type]


def sqnr_db(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray], size: int) -> float:
    """Signal to quantization noise of the worst output; infinite where equal, NaN where not finite."""
    worst = float("inf")
    for name in (name for name in wanted if name.startswith(f"{size}/")):
        a, b = (each[name].astype(np.float64) for each in (wanted, found))
        assert a.shape == b.shape, f"{name} has shape {b.shape}, its parent's {a.shape}"
        noise = float(((a - b) ** 2).sum())
        worst = min(worst, 10 * float(np.log10((a**2).sum() / noise)) if noise else float("inf"))
        if not np.isfinite(b).all():
            return float("nan")
    return worst


def row(
    sweep: Sweep, chain: list[Entry], bar: float | None, origin: Artifact, compiled: bool = False
) -> None:
    """Print the lines of one chain: one per runner and set of its options.

    `compiled`: artifacts that are as they came are compiled by the runner, and no more.
    """
    made = parent = origin
    for number, entry in enumerate(chain, start=1):
        parent = made
        start = time.perf_counter()
        try:
            made = sweep.apply(entry, parent, _text(chain[:number]), origin)
        except OptcliError as error:
            if number == len(chain):
                _print(sweep.name, chain, "", f"refused: {error.message} [{error.hint}]")
            return
        spent_s = time.perf_counter() - start
    try:
        wanted = sweep.run(parent, _default(parent), {})
    except OptcliError as error:
        _print(sweep.name, chain, "", f"FAIL parent: {error.message}")
        return
    shrunk = f"{made.size_bytes / parent.size_bytes:.0%} of its parent's size" if chain else ""
    note = f", {shrunk}, {spent_s:.0f} s" if chain else ""
    for runner in runners.names():
        if made.format not in runners.find(runner).runs:
            continue
        plain = _text(chain) in PLAIN
        ways = [({}, bar)] + (OPTIONS.get(runner, []) if plain else [])
        ways = [({"compile": True}, LOSSLESS)] if plain and compiled else ways
        for options, own_bar in ways:
            told = runner + (f" {json.dumps(options)}" if options else "")
            found = _compared(sweep, made, runner, options, wanted, own_bar)
            _print(sweep.name, chain, told, found + note)


def _compared(
    sweep: Sweep, made: Artifact, runner: str, options: dict[str, Any], wanted: Any, bar: float | None
) -> str:
    try:
        found = sweep.run(made, runner, options)
        values = [sqnr_db(wanted, found, size) for size in BATCH_SIZES]
    except OptcliError as error:
        return f"refused: {error.message} [{error.hint}]"
    except (AssertionError, KeyError) as error:
        return f"FAIL {error!r}"
    good = all(value > bar if bar is not None else value == value for value in values)
    shown = " ".join(f"{value:7.1f}" for value in values)
    limit = "finite" if bar is None else f"bar {bar:.0f}"
    precisions = f"{made.precision} as {found['precision']}"
    return f"{'ok  ' if good else 'FAIL'} {shown} dB, {limit}, {precisions}"


def _default(artifact: Artifact) -> str:
    bf16 = artifact.format == Format.ONNX and artifact.precision == "bf16"
    return "openvino" if bf16 else runners.DEFAULTS[artifact.format]


def _text(chain: list[Entry]) -> str:
    return " > ".join(entry if isinstance(entry, str) else _options(entry) for entry in chain)


def _options(entry: dict[str, Any]) -> str:
    name, options = next(iter(entry.items()))
    return f"{name}({', '.join(f'{k}={v}' for k, v in options.items())})"


def _folder(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_=" else "-" for letter in text)


def _empty(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _print(network: str, chain: list[Entry], runner: str, found: str) -> None:
    print(f"{network:<18} | {_text(chain) or 'as it is':<48} | {runner:<32} | {found}", flush=True)


def main() -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--passes", default="", help="only chains that end with one of these")
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--work", type=Path, required=True, help="a folder for what is made")
    given = parser.parse_args()
    only = set(filter(None, given.passes.split(",")))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    server = workers.ForkServer(WARM)
    for name in given.models.split(","):
        network = NETWORKS[name]
        sweep = Sweep(name, network, given.work.absolute() / name, given.shared.absolute(), server)
        origin = sweep.start()
        from_torch = network.starts_as == "torch"
        before: list[Entry] = ["export_onnx"] if from_torch else []
        chains = FROM_TORCH if from_torch else [([], LOSSLESS)]
        chains = chains + [(before + chain, bar) for chain, bar in FROM_ONNX]
        slow = COMPILED if from_torch else []
        for number, (chain, bar) in enumerate(chains + slow):
            last = chain[-1] if chain else ""
            if not only or (last if isinstance(last, str) else next(iter(last))) in only:
                row(sweep, chain, bar, origin, compiled=number >= len(chains))
    server.close()


if __name__ == "__main__":
    main()
