"""A bundle of `optcli deploy --target ray`: what it says of itself, its settings, and who wrote it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from optcli.errors import InputError, TrustError, UsageError, excerpt, first_line, raised_as, strerror
from optcli.files import regular_files
from optcli.files.digest import files_below, of_file, of_value
from optcli.results.outcomes import Result
from optcli.store import Store

BUNDLE_SCHEMA = 1
FILE, CONFIG, SAMPLES, EXPECTED = "bundle.json", "serve_config.yaml", "samples.npz", "expected.npz"
_AGAIN = "name a folder that `optcli deploy VARIANT --target ray` wrote"
DEPLOYMENT = "Model"
_NEEDED = ("launch.py", "app.py", "model.py", "pages.json", "ray.env", CONFIG)
_CORRECT = "correct it, or deploy again"
_KIND = "bundle-written"
# Data, which people and load tests may change. bundle.json also names what the server imports.
_DATA = frozenset({".json", ".npz", ".yaml", ".md", ".txt", ".log", ".jpg", ".png"})


class BundleTensor(Result):
    """An input or output: `datatype` is the protocol's, -1 in `shape` a size that varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class BundleInput(BundleTensor):
    """An input; `dtype` is NumPy's. Each size lies between `least` and `most`, `usual` is warmed up."""

    dtype: str
    least: tuple[int, ...]
    most: tuple[int, ...]
    usual: tuple[int, ...]


class BundleRecipe(Result):
    """The recipe that the variant is of."""

    name: str
    path: str


class BundleRunner(Result):
    """The runtime, its version here, and what the bundle's `model.py` needs to open the artifact.

    `environment` are variables that a replica sets before it imports the runtime.
    """

    name: str
    version: str
    settings: dict[str, Any]
    environment: dict[str, str] = Field(default_factory=dict)


class BundlePriority(Result):
    """What answers the requests of one priority: an application with limits and replicas of its own.

    `route` is what the paths of its requests begin with, "" for the last priority. `share` is the part
    of the traffic that was planned for; the rest is as in `Bundle`.
    """

    name: str
    route: str
    share: float
    largest_batch: int
    wait_ms: float
    instances: int
    queue_cap: int
    most_in_flight: int
    deadline_ms: float


class Bundle(Result):
    """What is served, and as what.

    `file` is the artifact's file in `model/`, `platform` what the protocol calls the runtime. Where
    `batched` is false, a call takes one request, as it comes. `largest_batch`, `wait_ms` and
    `deadline_ms` are the first values of settings that can be changed while the server runs.
    `sealed_batches` are the batches that a replica closes ahead. `queue_cap` requests may wait,
    `most_in_flight` may wait or be computed; a request is answered within `deadline_ms`, or refused.
    `threads` are those of one call, `cpus` those of all instances. `tolerance` is the largest
    difference from `expected.npz`, as a fraction of the largest magnitude in an output; `golden` says
    what the golden request holds.
    `images`: the server takes images as well; `cache`: where answers are kept, None: nowhere.
    `sample_inputs`: of how many inputs a day it keeps statistics, 0: of none. `grpc`: it speaks the
    protocol over gRPC as well. `extras` are the modules that extend `app.py`, in this order.
    `class_scores` is the output that holds scores of classes, None where
    the recipe does not say that there is one.

    `priorities` are the applications, the most urgent first. Empty: all requests are alike. With
    priorities, `instances`, `queue_cap` and `most_in_flight` are sums over them, and the batch, the
    waits and the deadline those of the last.
    """

    schema_version: int = Field(BUNDLE_SCHEMA, alias="schema")
    model: str
    variant: str
    recipe: BundleRecipe
    platform: str
    file: str
    runner: BundleRunner
    inputs: tuple[BundleInput, ...]
    outputs: tuple[BundleTensor, ...]
    batched: bool
    largest_batch: int
    wait_ms: float
    sealed_batches: int
    instances: int
    concurrency: int
    threads: int
    cpus: int
    queue_cap: int
    most_in_flight: int
    slo_ms: dict[str, float]
    deadline_ms: float
    most_body_bytes: int
    object_store_bytes: int
    tolerance: float | None
    golden: str | None
    images: bool = False
    cache: str | None = None
    sample_inputs: int = 0
    grpc: bool = False
    extras: tuple[str, ...] = ()
    class_scores: str | None = None
    priorities: tuple[BundlePriority, ...] = ()

    def to_json(self) -> str:
        """The content of bundle.json."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def read(folder: Path) -> Bundle:
    """The bundle in a folder. Raises `UsageError` for none, `InputError` for a broken one."""
    path = folder / FILE
    try:
        bundle = Bundle.model_validate(regular_files.json_of(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"this folder has no {FILE}" if folder.is_dir() else "there is no such folder"
        raise UsageError(what, place=str(folder), hint=_AGAIN) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        message = f"this is no bundle: {where}: {first['msg']}"
        raise InputError(message, place=str(path), hint="deploy again") from error
    except (OSError, ValueError) as error:
        raise InputError(f"this is no bundle: {error}", place=str(path), hint="deploy again") from error
    if bundle.schema_version != BUNDLE_SCHEMA:
        raise InputError(
            f"the bundle has schema {bundle.schema_version}, wanted {BUNDLE_SCHEMA}",
            place=str(path),
            hint="deploy again with this optcli",
        )
    return bundle


class UserConfig(Result):
    """What can be changed while a server runs: `user_config` of each deployment of the model."""

    max_batch_size: int = Field(ge=1)
    batch_wait_timeout_s: float = Field(ge=0, allow_inf_nan=False)
    max_in_flight: int = Field(ge=1)
    deadline_ms: float = Field(gt=0, allow_inf_nan=False)


def require_whole(folder: Path, made: Bundle) -> Bundle:
    """The bundle `as_configured`; raises `InputError` where files are gone or settings are wrong."""
    for name in (*_NEEDED, f"model/{made.file}"):
        if not regular_files.is_file(folder / name):
            raise InputError(f"the bundle has no {name}", place=str(folder), hint="deploy again")
    return as_configured(folder, made)


def as_configured(folder: Path, made: Bundle) -> Bundle:
    """The bundle with the batches, waits and replicas of its serve_config.yaml, which may be edited.

    Raises `InputError` for settings that are wrong.
    """
    path = folder / CONFIG
    applications = {each.route_prefix: each for each in _checked(_read_config(path), path).applications}
    settings = []
    for route in [each.route or "/" for each in made.priorities] or ["/"]:
        if (application := applications.get(route)) is None:
            raise _wrong(f"it has no application with the route_prefix {route}", path)
        module = application.import_path.partition(":")[0]
        if not regular_files.is_file(folder / f"{module}.py"):
            raise _wrong(f"import_path names the module {module!r}, which is not in the bundle", path)
        models = [each for each in application.deployments if each.name == DEPLOYMENT]
        if not models:
            raise _wrong(f"the application {application.name} has no deployment {DEPLOYMENT}", path)
        settings.append(_settings(models[0], path))
    if not made.priorities:
        return made.model_copy(update=settings[0])
    lanes = [each.model_copy(update=its) for each, its in zip(made.priorities, settings, strict=True)]
    whole = {"instances": sum(each.instances for each in lanes), "priorities": tuple(lanes)}
    return made.model_copy(update={**settings[-1], **whole})


def _settings(deployment: Any, path: Path) -> dict[str, Any]:
    """What a deployment of the model is set to, as bundle.json names it."""
    try:
        config = UserConfig.model_validate(deployment.user_config, strict=True)
    except ValidationError as error:
        raise _wrong(f"user_config of {deployment.name}: {_first(error)}", path) from error
    replicas = deployment.num_replicas
    return {
        "largest_batch": config.max_batch_size,
        "wait_ms": round(1000 * config.batch_wait_timeout_s, 6),
        "deadline_ms": config.deadline_ms,
        # With autoscaling there is no fixed number.
        **({"instances": replicas} if isinstance(replicas, int) else {}),
    }


def _read_config(path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(regular_files.read(path).decode())
    except (OSError, ValueError) as error:
        raise _wrong(f"it cannot be read: {first_line(error)}", path) from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = "" if mark is None else f" in line {mark.line + 1}"
        message = getattr(error, "problem", None) or first_line(error)
        raise _wrong(f"it is no YAML{at}: {message}", path) from error


def _checked(content: Any, path: Path) -> Any:
    """The content in Ray's own form."""
    from ray.serve.schema import ServeDeploySchema

    if not isinstance(content, dict):
        raise _wrong(f"found {excerpt(str(content))!r}, wanted a mapping of keys", path)
    if not isinstance(content.get("http_options"), dict) or not content.get("applications"):
        raise _wrong("it has no http_options or no applications", path)
    try:
        return ServeDeploySchema.model_validate(content)
    except ValidationError as error:
        raise _wrong(_first(error), path) from error
    except (ValueError, TypeError) as error:
        raise _wrong(first_line(error), path) from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _wrong(message: str, path: Path) -> InputError:
    return InputError(f"the server cannot take it: {message}", place=str(path), hint=_CORRECT)


def remember(folder: Path, store: Store) -> None:
    """Note in the store that this bundle was written here."""
    key = _digest(folder)
    with store.work(_KIND, key) as work:
        store.put(_KIND, key, work, {}, {"bundle": key})


def require_own(folder: Path, store: Store, *, trust: bool) -> None:
    """Raise `TrustError` for a bundle whose code or model `store` did not write, without `trust`.

    `UsageError` and `InputError` for a folder that is no bundle.
    """
    read(folder)
    if trust or store.get(_KIND, _digest(folder)) is not None:
        return
    raise TrustError(
        "this bundle is a program, and this store did not write it, or somebody changed it since",
        place=str(folder),
        hint="add --trust where you know who made it: its server can do whatever you can; or name the"
        " --store that it was deployed from",
    )


def _digest(folder: Path) -> str:
    """A digest of the bundle's code and model."""
    with raised_as(InputError, "the bundle cannot be read", of=OSError, reason=strerror,
                   place=str(folder), hint="deploy again"):  # fmt: skip
        return of_value(
            {
                os.fspath(path.relative_to(folder)): of_file(path)
                for path in files_below(folder)
                if path.suffix.lower() not in _DATA
                or path == folder / FILE
                or path.is_relative_to(folder / "model")
            }
        )
