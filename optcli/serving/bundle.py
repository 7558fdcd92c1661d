"""`bundle.json`: what a folder of `optcli deploy --target ray` serves, for the server and optcli."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from optcli.errors import InputError, UsageError
from optcli.files import regular_files
from optcli.results.outcomes import Result

BUNDLE_SCHEMA = 1
FILE, CONFIG, SAMPLES, EXPECTED = "bundle.json", "serve_config.yaml", "samples.npz", "expected.npz"
_AGAIN = "name a folder that `optcli deploy VARIANT --target ray` wrote"


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
    protocol over gRPC as well. `class_scores` is the output that holds scores of classes, None where
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
    read_timeout_s: float
    most_body_bytes: int
    object_store_bytes: int
    tolerance: float | None
    golden: str | None
    images: bool = False
    cache: str | None = None
    sample_inputs: int = 0
    grpc: bool = False
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
