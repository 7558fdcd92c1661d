"""A bundle for Ray Serve: the app as files of its own, what they read, and the plan in Ray's words."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.artifact import ABOUT
from optcli.errors import InputError, UsageError
from optcli.measure.latency.measured_curve import MeasuredCurve
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.report import wording
from optcli.results import RecipeSummary
from optcli.results.plan import Plan
from optcli.serving import bundle
from optcli.serving.bundle import Bundle, BundleInput, BundleRecipe, BundleRunner, BundleTensor
from optcli.serving.deploy import model_configuration, ray_config
from optcli.serving.deploy.interface import PROTOCOL_TYPES, Interface
from optcli.serving.deploy.ray_config import Lane
from optcli.serving.deploy.ray_runtimes import BundleRuntime, served_forms, threads_of
from optcli.settings import TensorSpec

SERVER = "Ray Serve"
MODEL, FILES = "model", Path(__file__).parent / "ray_files"
_ALWAYS = ("app", "oip", "batches", "metrics", "launch")
_PACKAGES = ("numpy", "starlette", "prometheus-client", "PyYAML")
_TYPES = {**PROTOCOL_TYPES, "float16": "FP16"}
# Characters of a number in JSON, with what stands between two.
_JSON_BYTES = 26
_MIB = 1024**2
_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"

_DOCKERFILE = """\
FROM python:{python}-slim
WORKDIR /srv
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt && useradd --create-home server
COPY . .
USER server
# Where Ray starts the application itself (KubeRay), it finds the modules of this folder.
ENV PYTHONPATH=/srv
EXPOSE 8000{ports}
HEALTHCHECK --interval=10s --timeout=6s --start-period=90s CMD ["python", "-c", \\
    "import urllib.request as u; direct = u.build_opener(u.ProxyHandler({{}})); \\
    direct.open('http://127.0.0.1:8000/v2/health/ready', timeout=5)"]
# Reachable from outside of the container: publish the port where only your proxy reaches it.
CMD ["python", "launch.py", "--host", "0.0.0.0"]
"""
_NOT_IN_IMAGE = "Dockerfile\n.dockerignore\nREADME.md\nsamples.npz\nexpected.npz\n__pycache__\n"
_PAGES, _SETTINGS = "pages.json", "ray.env"
_EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository")


@dataclass(frozen=True)
class Prepared:
    """What is written: the bundle, and the settings of Ray beside it."""

    bundle: Bundle
    runtime: BundleRuntime
    lanes: tuple[Lane, ...]
    why_single: str


def prepared(
    name: str,
    built: BuiltVariant,
    recipe: RecipeSummary,
    interface: Interface,
    runtime: BundleRuntime,
    plan: Plan,
    lanes: tuple[Lane, ...],
    known: MeasuredCurve | None = None,
) -> Prepared:
    """What is to be written, with these deployments of the model; `known` is its measured curve.

    Raises `UsageError` where the model cannot take the plan.
    """
    usual = lanes[-1]
    place, largest = str(built.artifact.path), max(lane.one.batch for lane in lanes)
    batching = model_configuration.batching_of(built.inputs, interface, largest, place, SERVER)
    batched = batching.largest > 0
    most = sum(lane.most_in_flight for lane in lanes)
    threads = threads_of(built)
    inputs = tuple(_input(spec) for spec in built.inputs)
    row_bytes, row_elements = _sizes(built.inputs, inputs, largest)
    settings = {**runtime.settings, **interface.settings}
    if runtime.forms:
        settings |= served_forms(built, batching.largest, known).settings()
    made = Bundle(
        model=name,
        variant=built.name,
        recipe=BundleRecipe(name=recipe.name, path=recipe.path),
        platform=runtime.platform,
        file=runtime.file,
        runner=BundleRunner(
            name=built.runner_name,
            version=str(built.effective.get("version", "")),
            settings=settings,
            environment=dict(runtime.environment),
        ),
        inputs=inputs,
        outputs=tuple(_outputs(built.inputs, interface, place, batched=batched)),
        batched=batched,
        largest_batch=usual.one.batch,
        wait_ms=usual.wait_ms,
        sealed_batches=max(1, *(lane.max_in_flight // lane.one.batch for lane in lanes)),
        instances=sum(lane.one.instances for lane in lanes),
        concurrency=usual.one.concurrency,
        threads=threads,
        cpus=threads * sum(lane.one.instances for lane in lanes),
        queue_cap=sum(lane.waiting for lane in lanes),
        most_in_flight=most,
        slo_ms=plan.slo_ms,
        deadline_ms=usual.deadline_ms,
        most_body_bytes=max(_MIB, _JSON_BYTES * row_elements),
        object_store_bytes=min(2048 * _MIB, max(128 * _MIB, 4 * most * row_bytes)),
        tolerance=interface.tolerance,
        golden=interface.golden,
        priorities=tuple(lane.to_bundle() for lane in lanes if lane.name),
    )
    return Prepared(made, runtime, lanes, batching.why)


def write(folder: Path, built: BuiltVariant, prepared: Prepared, plan: Plan) -> None:
    """Write the bundle and read back what optcli and Ray read. Raises `InputError`."""
    made, runtime = prepared.bundle, prepared.runtime
    target = folder / MODEL
    ignored = shutil.ignore_patterns(ABOUT)
    shutil.copytree(built.artifact.path, target, ignore=ignored, copy_function=shutil.copyfile)
    if not (target / runtime.file).is_file():
        raise InputError(
            f"the artifact has no {runtime.file}", place=str(target), hint="build it again"
        )
    files = [*_ALWAYS]
    files += ["torch_tensors"] if runtime.package == "torch" else []
    files += ["forms"] if made.runner.settings.get("batch_sizes") else []
    for file in files:
        shutil.copyfile(FILES / f"{file}.py", folder / f"{file}.py")
    shutil.copyfile(FILES / _SETTINGS, folder / _SETTINGS)
    shutil.copyfile(FILES / f"{runtime.model}.py", folder / "model.py")
    (folder / bundle.FILE).write_text(made.to_json(), encoding="utf-8")
    _write_pages(folder, made)
    ray_config.write(folder, made, prepared.lanes, plan)
    requirements = "".join(f"{line}\n" for line in _requirements(built, made, runtime))
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    ports = " 9000" if made.grpc else ""
    dockerfile = _DOCKERFILE.format(python=".".join(map(str, sys.version_info[:2])), ports=ports)
    (folder / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    (folder / ".dockerignore").write_text(_NOT_IN_IMAGE, encoding="utf-8")
    ray_config.require_readable(folder, made, prepared.lanes)


def notes_of(prepared: Prepared, interface: Interface) -> Sequence[str]:
    """What differs between the plan and what Ray will do, and what is to be known, in sentences."""
    made = prepared.bundle
    notes = [*prepared.runtime.notes, *(lane.note for lane in prepared.lanes if lane.note)]
    if prepared.why_single:
        notes.append(f"{SERVER} does not batch this model: {prepared.why_single}")
    if made.priorities:
        listed = ", ".join(_of_lane(lane) for lane in prepared.lanes)
        notes.append(f"each priority has replicas of its own, which no other priority uses: {listed}")
    if made.runner.settings.get("batch_sizes"):
        notes.append(_compiled(made.runner.settings))
    machines = sum(lane.one.machines for lane in prepared.lanes)
    if machines > len(prepared.lanes):
        notes.append(
            f"the plan has {machines} machines: `serve deploy {bundle.CONFIG}` on a Ray cluster of"
            " them, while launch.py starts all replicas on one"
        )
    if not interface.samples:
        notes.append("there are no samples for a load test: it sends random values")
    if made.platform == "pytorch_aoti":
        notes.append(
            "the package is native code: it needs this kind of processor and this version of torch"
        )
    return tuple(notes)


def _compiled(settings: Mapping[str, Any]) -> str:
    sizes = settings["batch_sizes"]
    noun = "batch size" if len(sizes) == 1 else "batch sizes"
    firsts = {int(size): first for size, first in settings["padded_from"].items()}
    below = dict(zip(sizes, (0, *sizes), strict=False))
    ranges = {size: max(first, below[size] + 1) for size, first in firsts.items()}
    padded = wording.padded({size: first for size, first in ranges.items() if first < size})
    text = f"the model is compiled for {noun} {wording.listed([*map(str, sizes)])}, as it was measured"
    text += f"; a replica pads {padded}" if padded else ""
    return f"{text}; other batches go to a form for any size" if settings["any_size"] else text


def closing(prepared: Prepared) -> Sequence[str]:
    """What the README says of every bundle, in sentences."""
    made = prepared.bundle
    return (
        _full(made),
        "you may change `user_config` in serve_config.yaml: start launch.py again then. On a cluster"
        " `serve deploy` changes it while the server runs",
        f"`serve run {bundle.CONFIG}`, `serve deploy {bundle.CONFIG}` and a RayService of KubeRay start"
        " the same server. On a cluster each node needs this folder in `PYTHONPATH`: the image of the"
        " Dockerfile has it there",
        "the server has no authentication and no TLS, and listens on the loopback address: put a proxy"
        " with both in front of it, such as nginx with `proxy_pass http://127.0.0.1:8000`",
        "Ray's own processes talk to each other over ports that they choose, on all addresses of the"
        " machine. They want a token, which launch.py makes anew at each start (Ray 2.52 and later):"
        " publish none of these ports",
        "a process that is lost is started again. Where the server does not answer for 45 seconds, or"
        " Ray's own processes are gone, launch.py ends with exit code 1 and says why",
    )


def _of_lane(lane: Lane) -> str:
    noun = "replica" if lane.one.instances == 1 else "replicas"
    return f"{lane.name} {lane.one.instances} {noun} for {lane.share:.4g} of the traffic"


def _full(made: Bundle) -> str:
    """When a request is refused, and when it comes too late."""
    each = "; ".join(
        f"{one.name}: 429 from {one.most_in_flight} requests in flight, 504 after"
        f" {one.deadline_ms:.4g} ms"
        for one in made.priorities
    )
    if made.priorities:
        return f"each priority has a queue of its own. Limits: {each}"
    return (
        f"the queue is full with {made.most_in_flight} requests in flight, which the replicas share: a"
        " replica that has its part answers 429 to the next. It answers 504 to a request that has no"
        f" answer after {made.deadline_ms:.4g} ms"
    )


def _input(spec: TensorSpec) -> BundleInput:
    symbols = spec.ranges
    return BundleInput(
        name=spec.name,
        datatype=_TYPES[spec.dtype],
        dtype=spec.dtype,
        shape=tuple(-1 if isinstance(size, str) else size for size in spec.shape),
        least=tuple(symbols[size].min if isinstance(size, str) else size for size in spec.shape),
        most=tuple(symbols[size].max if isinstance(size, str) else size for size in spec.shape),
        usual=spec.concrete(spec.batch_range().min),
    )


def _sizes(specs: Sequence[TensorSpec], inputs: Sequence[BundleInput], batch: int) -> tuple[int, int]:
    """Bytes of one row, and elements of the largest batch, of all inputs together."""
    import numpy as np

    row_bytes = elements = 0
    for spec, tensor in zip(specs, inputs, strict=True):
        batched = spec.batch_symbol is not None
        row = math.prod(tensor.most[1:] if batched else tensor.most)
        row_bytes += row * np.dtype(tensor.dtype).itemsize
        elements += row * (batch if batched else 1)
    return row_bytes, elements


def _outputs(
    specs: Sequence[TensorSpec], interface: Interface, place: str, *, batched: bool
) -> Iterator[BundleTensor]:
    """The outputs as they were computed; sizes are open where they may follow those of an input."""
    if not interface.computed:
        raise UsageError(
            "the variant cannot be run here, and its outputs are not known",
            place=place,
            hint="`optcli doctor` says what its runtime lacks",
        )
    varies = any(len(spec.symbols) > (1 if batched else 0) for spec in specs)
    for tensor in interface.computed:
        assert tensor.shape is not None
        if str(tensor.dtype) not in _TYPES:
            raise InputError(
                f"the output {tensor.name!r} is {tensor.dtype}, which the protocol does not have",
                place=place,
                hint="let the network give float32, or integers",
            )
        rest = tensor.shape[1:] if batched else tensor.shape
        sizes = tuple(-1 if varies or not isinstance(size, int) else size for size in rest)
        shape = (-1, *sizes) if batched else sizes
        yield BundleTensor(name=tensor.name, datatype=_TYPES[str(tensor.dtype)], shape=shape)


def _requirements(built: BuiltVariant, made: Bundle, runtime: BundleRuntime) -> Iterator[str]:
    """The lines of requirements.txt: what the bundle imports, in the versions that are here."""
    packages = dict.fromkeys([*_PACKAGES, runtime.package, *made.runner.settings.get("imports", ())])
    if "torch" in packages:
        # PyPI's own builds bring CUDA, which a bundle never uses.
        yield f"--extra-index-url {_CPU_BUILDS}"
    yield f"ray[serve]=={environment.version('ray')}"
    if made.grpc:
        yield f"tritonclient[grpc]=={environment.version('tritonclient')}"
    for name in packages:
        version = environment.version(name) or str(built.effective.get("version", ""))
        yield f"{name}=={version.partition('+')[0]}"


def _write_pages(folder: Path, made: Bundle) -> None:
    """Write the pages by their path. Raises OSError."""
    model = f"/v2/models/{made.model}"
    extensions = [*_EXTENSIONS, *(["statistics"] if "extensions" in made.extras else [])]
    pages = {
        "/v2": {"name": "ray-serve", "version": "1", "extensions": extensions},
        "/v2/repository/index": [{"name": made.model, "version": "1", "state": "READY", "reason": ""}],
        model: _metadata(made),
        f"{model}/config": _config(made),
    }
    (folder / _PAGES).write_text(json.dumps(pages, indent=2) + "\n", encoding="utf-8")


def _metadata(made: Bundle) -> dict[str, Any]:
    """Names, types and shapes, and which output holds scores of classes."""
    outputs = [
        {**each, "parameters": {"class_scores": each["name"] == made.class_scores}}
        for each in _described(made.outputs)
    ]
    about = {"name": made.model, "versions": ["1"], "platform": made.platform}
    return {**about, "inputs": _described(made.inputs), "outputs": outputs}


def _described(tensors: Sequence[BundleTensor]) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in tensors
    ]


def _config(made: Bundle) -> dict[str, Any]:
    """The same as Triton's clients ask for it: shapes without the batch."""
    first = 1 if made.batched else 0
    inputs, outputs = (
        [
            {
                "name": each.name,
                "data_type": f"TYPE_{each.datatype}",
                "dims": list(each.shape[first:]),
            }
            for each in tensors
        ]
        for tensors in (made.inputs, made.outputs)
    )
    most = min((each.most[0] for each in made.inputs), default=0) if made.batched else 0
    about = {"name": made.model, "platform": made.platform, "backend": "", "max_batch_size": most}
    return {**about, "input": inputs, "output": outputs}
