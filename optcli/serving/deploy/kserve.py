"""Manifests for KServe: a ServingRuntime with Triton in it, and an InferenceService as the plan says.

The classes name the fields that optcli writes, as the CRDs of KServe do; any other field is an error
when a manifest is read back.
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from optcli.errors import InputError, UsageError
from optcli.results.plan import Plan
from optcli.serving.deploy.instructions import IMAGE
from optcli.serving.deploy.model_configuration import Served

RUNTIME, SERVICE, REPOSITORY = "servingruntime.yaml", "inferenceservice.yaml", "model_repository"
# Where KServe's storage initializer can fetch a folder from.
_SCHEMES = ("gs", "s3", "pvc", "http", "https", "hdfs", "webhdfs", "hf", "oci", "file")
_URI = (
    "the place that holds a copy of the repository, such as pvc://models/digits or s3://models/digits"
)
# Names of a Service in Kubernetes, with room for what KServe appends.
_LONGEST_NAME = 40
# Only Knative splits traffic, and scales by requests in flight.
_MODE = {"serving.kserve.io/deploymentMode": "Serverless"}
_FILLING = "autoscaling.knative.dev/target-utilization-percentage"


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class Metadata(_Part):
    """Name and annotations of an object."""

    name: str = Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)
    annotations: dict[str, str] | None = None


class Resources(_Part):
    """What a pod asks for and may take, as quantities of Kubernetes."""

    requests: dict[str, str]
    limits: dict[str, str]


class ModelFormat(_Part):
    """A format of models, by KServe's name for it."""

    name: str
    version: str | None = None
    auto_select: bool | None = None


class Variable(_Part):
    """A variable of a container's environment."""

    name: str
    value: str


class Container(_Part):
    """The container that serves; KServe wants it by this name."""

    name: Literal["kserve-container"] = "kserve-container"
    image: str
    args: tuple[str, ...]
    env: tuple[Variable, ...] | None = None


class RuntimeSpec(_Part):
    """What serves a format of models."""

    supported_model_formats: tuple[ModelFormat, ...]
    protocol_versions: tuple[Literal["v1", "v2", "grpc-v2"], ...]
    containers: tuple[Container, ...] = Field(min_length=1)


class Runtime(_Part):
    """A ServingRuntime."""

    api_version: Literal["serving.kserve.io/v1alpha1"] = "serving.kserve.io/v1alpha1"
    kind: Literal["ServingRuntime"] = "ServingRuntime"
    metadata: Metadata
    spec: RuntimeSpec


class Model(_Part):
    """The model of a predictor."""

    model_format: ModelFormat
    protocol_version: Literal["v1", "v2", "grpc-v2"]
    runtime: str
    storage_uri: str
    resources: Resources


class Predictor(_Part):
    """A predictor with its bounds; `scale_target` are requests in flight in one pod.

    `canary_traffic_percent` of the requests go to it, the others to the revision before it.
    """

    min_replicas: int = Field(ge=0)
    max_replicas: int = Field(ge=1)
    scale_metric: Literal["concurrency", "rps", "cpu", "memory"] | None = None
    scale_target: int | None = Field(None, ge=1)
    canary_traffic_percent: int | None = Field(None, ge=0, le=100)
    model: Model


class Specification(_Part):
    """What an InferenceService consists of: a predictor alone."""

    predictor: Predictor


class Inference(_Part):
    """An InferenceService."""

    api_version: Literal["serving.kserve.io/v1beta1"] = "serving.kserve.io/v1beta1"
    kind: Literal["InferenceService"] = "InferenceService"
    metadata: Metadata
    spec: Specification


Manifest = TypeVar("Manifest", Runtime, Inference)


def object_name(name: str) -> str:
    """A model's name as Kubernetes allows it: small letters, digits and dashes, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"model-{plain}"
    return plain[:_LONGEST_NAME].rstrip("-")


def checked_uri(uri: str | None) -> str:
    """The place of the repository in the cluster. Raises `UsageError` where it cannot be one."""
    if uri is None:
        raise UsageError(
            "a cluster needs a place to fetch the model from",
            place="--storage-uri",
            hint=f"name {_URI}",
        )
    try:
        scheme, rest = urlsplit(uri).scheme, uri.partition("://")[2]
    except ValueError:
        scheme = rest = ""
    if scheme not in _SCHEMES or not rest or re.search(r"\s", uri):
        raise UsageError(
            f"found {uri!r}, wanted {_URI}",
            place="--storage-uri",
            hint=f"KServe fetches from {', '.join(f'{each}://' for each in _SCHEMES)}",
        )
    return uri


def runtime_of(served: Served) -> Runtime:
    """Triton as a runtime of its own: the model is served as config.pbtxt says, and no other way."""
    arguments = (
        "tritonserver",
        "--model-repository=/mnt/models",
        "--http-port=8080",
        "--grpc-port=9000",
        "--disable-auto-complete-config",
    )
    environment = served.backend.environment.items()
    variables = tuple(Variable(name=name, value=value) for name, value in environment)
    return Runtime(
        metadata=Metadata(name=f"{object_name(served.name)}-triton"),
        spec=RuntimeSpec(
            supported_model_formats=(ModelFormat(name="triton", version="2", auto_select=False),),
            protocol_versions=("v2", "grpc-v2"),
            containers=(Container(image=IMAGE, args=arguments, env=variables or None),),
        ),
    )


def inference_of(
    served: Served, plan: Plan, uri: str, canary_traffic: float | None = None
) -> Inference:
    """The InferenceService: a pod is a machine of the plan, with all its instances.

    `canary_traffic` is the share of the requests that go to it where one of this name is served.
    """
    one, scaling = plan.recommended, plan.autoscaling
    assert one is not None
    in_pod = -(-one.instances // one.machines)
    bounds: dict[str, Any] = {"min_replicas": one.machines, "max_replicas": one.machines}
    annotations = None if canary_traffic is None else _MODE
    if scaling is not None:
        bounds = {
            "min_replicas": max(1, -(-scaling.min_instances // in_pod)),
            "max_replicas": max(1, -(-scaling.max_instances // in_pod)),
            "scale_metric": "concurrency",
            "scale_target": max(1, int(scaling.target_in_flight * in_pod)),
        }
        # The plan's target holds its utilisation cap already: Knative would take 70 % of it again.
        annotations = {**_MODE, _FILLING: "100"}
    return Inference(
        metadata=Metadata(name=object_name(served.name), annotations=annotations),
        spec=Specification(
            predictor=Predictor(
                **bounds,
                canary_traffic_percent=None if canary_traffic is None else round(100 * canary_traffic),
                model=Model(
                    model_format=ModelFormat(name="triton", version="2"),
                    protocol_version="v2",
                    runtime=f"{object_name(served.name)}-triton",
                    storage_uri=uri,
                    resources=_resources(served, plan),
                ),
            )
        ),
    )


def _resources(served: Served, plan: Plan) -> Resources:
    """The cores that the instances compute on, a GPU where they use one, and memory where known."""
    backend = served.backend
    cores = 1 if backend.gpu else served.instances * (backend.threads or 1)
    asked = {"cpu": str(cores)}
    memory = plan.asked.get("instance_memory_bytes")
    if isinstance(memory, int):
        asked["memory"] = str(memory * served.instances)
    if backend.gpu:
        asked["nvidia.com/gpu"] = "1"
    return Resources(requests=asked, limits=asked)


def checked_traffic(share: float | None) -> float | None:
    """A share of the requests as KServe takes it, in whole percent. Raises `UsageError`."""
    if share is not None and not (0 < share < 1 and abs(100 * share - round(100 * share)) < 1e-6):
        raise UsageError(
            f"found {share:g} of the requests, wanted whole percent from 1% to 99%",
            place="--canary-traffic",
            hint="such as --canary-traffic 10%",
        )
    return share


def notes_of(served: Served, plan: Plan, canary_traffic: float | None = None) -> list[str]:
    """What the manifests do not say, or say otherwise than the plan."""
    notes = []
    if canary_traffic is not None:
        name = object_name(served.name)
        notes.append(
            f"KServe sends {canary_traffic:.0%} of the requests to this revision of {name}, and the"
            " others to the one that is served now. Without one it gets all. Both need their own"
            " --storage-uri. To promote it, remove canaryTrafficPercent and apply again; to take it"
            " back, set it to 0"
        )
    if plan.autoscaling is None:
        notes.append(
            "the number of pods is fixed: the plan has one rate, and nothing to scale between; `optcli"
            " plan --cold-start 30s`, --peak-factor or several rates plan an autoscaler's bounds"
        )
    else:
        notes.append(
            "the bounds are for the Knative mode of KServe, which scales by requests in flight; the"
            " other mode scales by CPU load"
        )
    if plan.priorities:
        notes.append(
            "priorities are Triton's, inside each pod: KServe spreads requests over the pods, and adds"
            " pods, without regard to them"
        )
    if "instance_memory_bytes" not in plan.asked:
        notes.append(
            "the plan names no memory, and the pods have no limit of it: `optcli plan --memory 1.2GB`"
        )
    if not served.backend.gpu and served.backend.threads is None:
        notes.append("the threads of an instance are not known: each gets one core")
    return notes


def write(path: Path, manifest: Runtime | Inference) -> None:
    """Write a manifest as YAML, and compare what was written with it.

    Raises `InputError` where it reads back as something else.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    stream = StringIO()
    yaml.dump(manifest.model_dump(mode="json", by_alias=True, exclude_none=True), stream)
    path.write_text(stream.getvalue(), encoding="utf-8")
    back = read(path, Runtime) if isinstance(manifest, Runtime) else read(path, Inference)
    if back != manifest:
        raise InputError(
            "the manifest says something else when it is read back",
            place=str(path),
            hint="this is a bug: report it with the plan",
        )


def read(path: Path, kind: type[Manifest]) -> Manifest:
    """A manifest. Raises `InputError` for a field that the kind does not have."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return kind.model_validate(YAML(typ="safe").load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, YAMLError, ValidationError) as error:
        raise InputError(
            f"this is no manifest of {kind.__name__}: {error}", place=str(path), hint="deploy again"
        ) from error
