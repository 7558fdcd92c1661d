"""KServe: manifests for a cluster, with a model repository that Triton serves in its pods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from optcli.errors import UsageError
from optcli.results.plan import Plan
from optcli.serving.deploy import instructions, repository
from optcli.serving.deploy.instructions import IMAGE
from optcli.serving.deploy.model_configuration import ServedModel
from optcli.serving.targets import Deployment, DeployOptions, WrittenServer
from optcli.serving.targets.triton import Triton

RUNTIME, SERVICE, REPOSITORY = "servingruntime.yaml", "inferenceservice.yaml", "model_repository"
# Where KServe's storage initializer can fetch a folder from.
_SCHEMES = ("gs", "s3", "pvc", "http", "https", "hdfs", "webhdfs", "hf", "oci", "file")
_URI = (
    "the place that holds a copy of the repository, such as pvc://models/digits or s3://models/digits"
)
# Names of a Service in Kubernetes, with room for what KServe appends.
_LONGEST_NAME = 40
# Only Knative splits traffic.
_MODE = {"serving.kserve.io/deploymentMode": "Serverless"}


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


def runtime_of(served: ServedModel) -> dict[str, Any]:
    """Triton as a runtime of its own: the model is served as config.pbtxt says, and no other way."""
    container: dict[str, Any] = {
        "name": "kserve-container",
        "image": IMAGE,
        "args": [
            "tritonserver",
            "--model-repository=/mnt/models",
            "--http-port=8080",
            "--grpc-port=9000",
            "--disable-auto-complete-config",
        ],
    }
    if variables := served.backend.environment:
        container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": f"{object_name(served.name)}-triton"},
        "spec": {
            "supportedModelFormats": [{"name": "triton", "version": "2", "autoSelect": False}],
            "protocolVersions": ["v2", "grpc-v2"],
            "containers": [container],
        },
    }


def inference_of(
    served: ServedModel, plan: Plan, uri: str, canary_traffic: float | None = None
) -> dict[str, Any]:
    """The InferenceService: a pod is a machine of the plan, with all its instances.

    `canary_traffic` is the share of the requests that go to it where one of this name is served.
    """
    one = plan.recommended
    assert one is not None
    name = object_name(served.name)
    metadata: dict[str, Any] = {"name": name}
    predictor: dict[str, Any] = {"minReplicas": one.machines, "maxReplicas": one.machines}
    if canary_traffic is not None:
        metadata["annotations"] = _MODE
        predictor["canaryTrafficPercent"] = round(100 * canary_traffic)
    predictor["model"] = {
        "modelFormat": {"name": "triton", "version": "2"},
        "protocolVersion": "v2",
        "runtime": f"{name}-triton",
        "storageUri": uri,
        "resources": _resources(served),
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": {"predictor": predictor},
    }


def _resources(served: ServedModel) -> dict[str, Any]:
    """The cores that the instances compute on, and a GPU where they use one."""
    backend = served.backend
    cores = 1 if backend.gpu else served.instances * (backend.threads or 1)
    resources = {"cpu": str(cores)}
    if backend.gpu:
        resources["nvidia.com/gpu"] = "1"
    return {"requests": resources, "limits": {**resources}}


def checked_traffic(share: float | None) -> float | None:
    """A share of the requests as KServe takes it, in whole percent. Raises `UsageError`."""
    if share is not None and not (0 < share < 1 and abs(100 * share - round(100 * share)) < 1e-6):
        raise UsageError(
            f"found {share:g} of the requests, wanted whole percent from 1% to 99%",
            place="--canary-traffic",
            hint="such as --canary-traffic 10%",
        )
    return share


def notes_of(served: ServedModel, canary_traffic: float | None = None) -> list[str]:
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
    notes.append(
        "the number of pods is fixed, as the plan has one rate: set minReplicas, maxReplicas and"
        " scaleTarget of the predictor by hand where traffic varies, and a limit of memory"
    )
    if not served.backend.gpu and served.backend.threads is None:
        notes.append("the threads of an instance are not known: each gets one core")
    return notes


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest as YAML."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    stream = StringIO()
    yaml.dump(manifest, stream)
    path.write_text(stream.getvalue(), encoding="utf-8")


class Kserve(Triton):
    """A repository for Triton and the manifests that serve it."""

    title: ClassVar[str] = "KServe"
    takes: ClassVar[frozenset[str]] = frozenset({"storage_uri", "canary_traffic"})
    why_not: ClassVar[Mapping[str, tuple[str, str]]] = {
        "images": (
            "the pods that optcli writes for KServe have no Python for images",
            "--target triton --images writes a repository and a Dockerfile with all it needs",
        )
    }

    def __init__(self, options: DeployOptions) -> None:
        super().__init__(options)
        self._uri = checked_uri(options.storage_uri)
        checked_traffic(options.canary_traffic)

    def write(self, folder: Path, deployment: Deployment) -> WrittenServer:
        plan = deployment.plan
        served, notes = self._served(deployment)
        repository.write(folder / REPOSITORY, deployment.built, served, plan)
        _write_manifest(folder / RUNTIME, runtime_of(served))
        traffic = self.options.canary_traffic
        inference = inference_of(served, plan, self._uri, traffic)
        _write_manifest(folder / SERVICE, inference)
        manifests = (RUNTIME, SERVICE)
        steps = instructions.for_kserve(served, object_name(served.name), manifests)
        about = f"Manifests for KServe, written by optcli. {plan.sentence} First copy the content of"
        about += f" `{REPOSITORY}/` to {self._uri}."
        known = self.closing(deployment.built)
        return WrittenServer(about, steps, [*notes, *notes_of(served, traffic)], known)
