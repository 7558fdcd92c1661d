"""KServe: manifests for a cluster, with a model repository that Triton serves in its pods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from optcli.serving.deploy import instructions, kserve, repository
from optcli.serving.targets import Deployment, ServerOptions, Written
from optcli.serving.targets.triton import Triton


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

    def __init__(self, options: ServerOptions) -> None:
        super().__init__(options)
        self._uri = kserve.checked_uri(options.storage_uri)
        kserve.checked_traffic(options.canary_traffic)

    def write(self, folder: Path, deployment: Deployment) -> Written:
        plan = deployment.plan
        served, notes = self._served(deployment)
        repository.write(folder / kserve.REPOSITORY, deployment.built, served, plan)
        kserve.write(folder / kserve.RUNTIME, kserve.runtime_of(served))
        traffic = self.options.canary_traffic
        inference = kserve.inference_of(served, plan, self._uri, traffic)
        kserve.write(folder / kserve.SERVICE, inference)
        manifests = (kserve.RUNTIME, kserve.SERVICE)
        steps = instructions.for_kserve(served, kserve.object_name(served.name), manifests)
        about = f"Manifests for KServe, written by optcli. {plan.sentence} First copy the content of"
        about += f" `{kserve.REPOSITORY}/` to {self._uri}."
        known = self.closing(deployment.built)
        return Written(about, steps, [*notes, *kserve.notes_of(served, traffic)], known)
