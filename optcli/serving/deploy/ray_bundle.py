"""A bundle for Ray Serve: the app as files of its own, what they read, and the plan in Ray's words."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.artifact import ABOUT
from optcli.errors import InputError, MissingError, UsageError
from optcli.model_files.built_variant import BuiltVariant
from optcli.results import RecipeSummary
from optcli.results.plan import Configuration, Plan
from optcli.serving import bundle
from optcli.serving.bundle import Bundle, BundleInput, BundleRecipe, BundleRunner, BundleTensor
from optcli.serving.deploy import model_configuration
from optcli.serving.deploy.interface import PROTOCOL_TYPES, Interface
from optcli.serving.deploy.ray_runtimes import Runtime, static_sizes, threads_of
from optcli.settings import TensorSpec

SERVER = "Ray Serve"
MODEL, FILES = "model", Path(__file__).parent / "ray_files"
_ALWAYS = ("app", "launch", "oip", "admission", "batches", "metrics")
_PACKAGES = ("numpy", "starlette", "prometheus-client", "PyYAML")
_TYPES = {**PROTOCOL_TYPES, "float16": "FP16"}
# Characters of a number in JSON, with what stands between two.
_JSON_BYTES = 26
_READ_TIMEOUT_S = 10.0
_MIB = 1024**2

_DOCKERFILE = """\
FROM python:{python}-slim
WORKDIR /srv
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt && useradd --create-home server
COPY . .
USER server
EXPOSE 8000
# Reachable from outside of the container: publish the port where only your proxy reaches it.
CMD ["python", "launch.py", "--host", "0.0.0.0"]
"""


@dataclass(frozen=True)
class Prepared:
    """What is written: the bundle, and what Ray is told beside it."""

    bundle: Bundle
    runtime: Runtime
    max_ongoing: int
    why_single: str


def schema() -> Any:
    """Ray's own form of serve_config.yaml. Raises `MissingError` without Ray."""
    try:
        from ray.serve.schema import ServeDeploySchema
    except ImportError as error:
        raise MissingError(
            "Ray Serve, which has the form of serve_config.yaml, is not installed",
            place="--target ray",
            hint="pip install 'optcli[serve]'",
        ) from error
    return ServeDeploySchema


def wait_of(one: Configuration, asked_ms: float | None, *, force: bool) -> tuple[float, str]:
    """The wait for a batch, and a note where it is forced.

    Raises `UsageError` for one below which the queue of sealed batches grows without bound.
    """
    wait_ms = one.wait_ms if asked_ms is None else asked_ms
    least = one.least_wait_ms
    if least is None or wait_ms >= least or one.batch == 1:
        return wait_ms, ""
    message = (
        f"a wait of {wait_ms:.4g} ms is too short: Ray Serve seals batches in turn, and below"
        f" {least:.4g} ms the queue grows without bound at the planned rate"
    )
    if not force:
        raise UsageError(
            message,
            place="--plan" if asked_ms is None else "--wait",
            hint="leave out --wait, or plan again with --semantics sealed; --force deploys it to try"
            " what happens",
        )
    return wait_ms, message


def prepared(
    name: str,
    built: BuiltVariant,
    recipe: RecipeSummary,
    interface: Interface,
    runtime: Runtime,
    plan: Plan,
    wait_ms: float,
) -> Prepared:
    """What is to be written. Raises `UsageError` where the model cannot take the plan."""
    one = plan.recommended
    assert one is not None
    place = str(built.artifact.path)
    batching = model_configuration.batching_of(built.inputs, interface, one.batch, place, SERVER)
    batched = batching.largest > 0
    waiting = one.reject_newest_cap or 0
    most = waiting + one.instances * one.concurrency * one.batch
    # One batch computes while the next one gathers; beyond that the ingress holds requests back.
    ongoing = max(2 * one.batch, min(waiting, math.ceil(most / one.instances)))
    threads = threads_of(built)
    largest_instances = plan.autoscaling.max_instances if plan.autoscaling else one.instances
    inputs = tuple(_input(spec) for spec in built.inputs)
    row_bytes, row_elements = _sizes(built.inputs, inputs, one.batch)
    settings = {**runtime.settings, **interface.settings}
    if "forms" in runtime.beside:
        settings["batch_sizes"] = static_sizes(built, batching.largest)
    made = Bundle(
        model=name,
        variant=built.name,
        recipe=BundleRecipe(name=recipe.name, path=recipe.path),
        platform=runtime.platform,
        file=runtime.file,
        runner=BundleRunner(
            name=built.runner_name, version=str(built.effective.get("version", "")), settings=settings
        ),
        inputs=inputs,
        outputs=tuple(_outputs(built.inputs, interface, place, batched=batched)),
        batched=batched,
        largest_batch=one.batch,
        wait_ms=wait_ms,
        least_wait_ms=one.least_wait_ms,
        adaptive_wait=batched and one.batch > 1 and wait_ms > 0,
        single_ms=plan.curve.points_ms.get(1) or _by_line(plan),
        sealed_batches=max(1, ongoing // one.batch),
        instances=one.instances,
        concurrency=one.concurrency,
        threads=threads,
        cpus=largest_instances * threads,
        queue_cap=waiting,
        most_in_flight=most,
        slo_ms=plan.slo_ms,
        deadline_ms=_deadline_ms(plan, one),
        read_timeout_s=_READ_TIMEOUT_S,
        most_body_bytes=max(_MIB, _JSON_BYTES * row_elements),
        object_store_bytes=min(2048 * _MIB, max(128 * _MIB, 4 * most * row_bytes)),
        tolerance=interface.tolerance,
        golden=interface.golden,
    )
    return Prepared(made, runtime, ongoing, batching.why)


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
    for file in (*_ALWAYS, *runtime.beside):
        shutil.copyfile(FILES / f"{file}.py", folder / f"{file}.py")
    shutil.copyfile(FILES / f"{runtime.model}.py", folder / "model.py")
    (folder / bundle.FILE).write_text(made.to_json(), encoding="utf-8")
    (folder / bundle.CONFIG).write_text(_config_text(prepared, plan), encoding="utf-8")
    requirements = "".join(f"{line}\n" for line in _requirements(built, made, runtime))
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    dockerfile = _DOCKERFILE.format(python=".".join(map(str, sys.version_info[:2])))
    (folder / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    _require_readable(folder, prepared, plan)


def notes_of(prepared: Prepared, plan: Plan, interface: Interface) -> Sequence[str]:
    """What differs between the plan and what Ray will do, and what is to be known, in sentences."""
    made, one = prepared.bundle, plan.recommended
    assert one is not None
    notes = []
    if prepared.why_single:
        notes.append(f"{SERVER} does not batch this model: {prepared.why_single}")
    if one.on_full != "reject-newest":
        notes.append(
            f"{SERVER} cannot take a request back that waits: it refuses new ones from"
            f" {made.most_in_flight} in flight on"
        )
    if made.adaptive_wait:
        notes.append(
            "a replica waits for no batch while single requests load it to less than a half: latency"
            " under light load is below the plan's (`adaptive_wait: false` in serve_config.yaml)"
        )
    if made.runner.settings.get("batch_sizes"):
        sizes = ", ".join(map(str, made.runner.settings["batch_sizes"]))
        notes.append(f"the model is compiled for {sizes} rows: a batch in between is filled up")
    if one.machines > 1:
        notes.append(
            f"the plan has {one.machines} machines: `serve deploy {bundle.CONFIG}` on a Ray cluster of"
            " them, while launch.py starts all replicas on one"
        )
    if made.cpus > environment.usable_cores():
        notes.append(
            f"the replicas take {made.cpus} threads, and this machine has"
            f" {environment.usable_cores()} cores"
        )
    if not interface.samples:
        notes.append("there are no samples for a load test: it sends random values")
    if made.platform == "pytorch_aoti":
        notes.append("the package is native code: it wants this kind of processor and this torch")
    return tuple(notes)


def closing(prepared: Prepared) -> Sequence[str]:
    """What the README says of every bundle, in sentences."""
    made = prepared.bundle
    return (
        f"the queue is full with {made.most_in_flight} requests in flight: the next is answered 429;"
        f" one that has no answer after {made.deadline_ms:.4g} ms is answered 504, and the header"
        " `x-deadline-ms` may ask for less",
        "`max_batch_size`, `batch_wait_timeout_s` and `adaptive_wait` in serve_config.yaml can be"
        " changed while the server runs: `kill -HUP` the process of launch.py, or `serve deploy`",
        f"on a Ray cluster, `serve deploy {bundle.CONFIG}` starts the same, where its `runtime_env`"
        " names this folder as `working_dir`",
        "the server has no authentication and no TLS, and listens on the loopback address: put a proxy"
        " with both in front of it, such as nginx with `proxy_pass http://127.0.0.1:8000`",
        "one process takes all requests: several bundles behind a proxy share more of them",
    )


def _deadline_ms(plan: Plan, one: Configuration) -> float:
    """When an answer is of no use any more: late requests of a percentile still are, for a while."""
    longest = max(plan.slo_ms.values())
    return longest if one.on_full == "deadline" else 2 * longest


def _by_line(plan: Plan) -> float | None:
    fixed, per_image = plan.curve.fixed_ms, plan.curve.per_image_ms
    return None if fixed is None or per_image is None else fixed + per_image


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


def _config(prepared: Prepared, plan: Plan) -> dict[str, Any]:
    """The content of serve_config.yaml."""
    made = prepared.bundle
    model: dict[str, Any] = {"name": "Model"}
    if plan.autoscaling is None:
        model["num_replicas"] = made.instances
    else:
        model["autoscaling_config"] = {
            "min_replicas": max(1, plan.autoscaling.min_instances),
            "initial_replicas": made.instances,
            "max_replicas": max(made.instances, plan.autoscaling.max_instances),
            "target_ongoing_requests": plan.autoscaling.target_in_flight,
        }
    model |= {
        "max_ongoing_requests": prepared.max_ongoing,
        "user_config": {
            "max_batch_size": made.largest_batch,
            "batch_wait_timeout_s": made.wait_ms / 1000,
            "adaptive_wait": made.adaptive_wait,
        },
        "ray_actor_options": {"num_cpus": made.threads},
    }
    # Several times what it admits: some requests are still being read, others being refused.
    ingress = {
        "name": "Ingress",
        "num_replicas": 1,
        "max_ongoing_requests": 4 * made.most_in_flight + 100,
        "ray_actor_options": {"num_cpus": 0},
    }
    patience_s = made.deadline_ms / 1000 + 5
    for deployment in (ingress, model):
        deployment |= {
            "health_check_period_s": 1,
            "health_check_timeout_s": 30,
            "graceful_shutdown_timeout_s": patience_s,
            "graceful_shutdown_wait_loop_s": 0.1,
        }
    return {
        "proxy_location": "HeadOnly",
        "http_options": {
            "host": "127.0.0.1",
            "port": 8000,
            "request_timeout_s": made.read_timeout_s + patience_s,
        },
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": made.model,
                "route_prefix": "/",
                "import_path": "app:app",
                "deployments": [ingress, model],
            }
        ],
    }


def _config_text(prepared: Prepared, plan: Plan) -> str:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    stream = StringIO()
    yaml.dump(_config(prepared, plan), stream)
    said = f"Written by optcli for the variant {prepared.bundle.variant}. {plan.sentence}"
    return "".join(f"# {line}\n" for line in said.splitlines()) + stream.getvalue()


def _requirements(built: BuiltVariant, made: Bundle, runtime: Runtime) -> Iterator[str]:
    """The packages that the bundle imports, as they are installed here."""
    packages = dict.fromkeys([*_PACKAGES, runtime.package, *made.runner.settings.get("imports", ())])
    yield f"ray[serve]=={environment.version('ray')}"
    for name in packages:
        version = environment.version(name) or str(built.effective.get("version", ""))
        yield f"{name}=={version.partition('+')[0]}"


def _require_readable(folder: Path, prepared: Prepared, plan: Plan) -> None:
    """Raise `InputError` where what was written reads back as something else."""
    from pydantic import ValidationError
    from ruamel.yaml import YAML

    path = folder / bundle.CONFIG
    content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    try:
        read = schema().model_validate(content)
    except ValidationError as error:
        raise InputError(
            f"Ray cannot read it: {error}", place=str(path), hint="deploy again"
        ) from error
    wanted = _config(prepared, plan)
    kept = read.model_dump(mode="json", exclude_unset=True)
    kept["applications"][0]["deployments"] = [
        {key: each[key] for key in one}
        for each, one in zip(
            kept["applications"][0]["deployments"],
            wanted["applications"][0]["deployments"],
            strict=True,
        )
    ]
    if bundle.read(folder) != prepared.bundle or not _holds(kept, wanted):
        raise InputError(
            "the bundle says something else when it is read back",
            place=str(path),
            hint="this is a bug: report it with the plan",
        )


def _holds(found: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there, with the same values."""
    if isinstance(wanted, dict):
        return all(key in found and _holds(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_holds, found, wanted))
    return bool(found == wanted)
