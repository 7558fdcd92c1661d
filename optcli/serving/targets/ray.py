"""Ray Serve: a bundle, which is a server with everything that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from optcli.artifact import Artifact
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.plan import Plan, Semantics
from optcli.serving import bundle
from optcli.serving.deploy import (
    extras,
    instructions,
    monitoring,
    plans,
    ray_bundle,
    ray_config,
    ray_runtimes,
)
from optcli.serving.deploy import interface as samples_file
from optcli.serving.deploy.ray_runtimes import BundleRuntime
from optcli.serving.prediction import of_recipe
from optcli.serving.targets import Declared, Deployment, DeployOptions, ServingTarget, WrittenServer
from optcli.settings import TensorSpec
from optcli.store import Store


class Ray(ServingTarget):
    """An app for Ray Serve with replicas, batches, wait and queue of the plan."""

    title: ClassVar[str] = "Ray Serve"
    server: ClassVar[str] = "Ray Serve"
    semantics: ClassVar[Semantics] = "sealed"
    # As found with images of 12 kB on two cores: benchmarks/results/serving.json. What larger ones add
    # is measured by benchmarks/request_sizes.py.
    overhead: ClassVar[Mapping[str, float]] = {"after_ms": 3.5, "ingress_ms": 4.0, "ingress_cv2": 0.65}
    overhead_per_mb: ClassVar[Mapping[str, float]] = {"ingress_ms": 3.5}
    scales: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset(
        {"wait_ms", "images", "cache", "sample_inputs", "known_answers", "grpc", "extensions"}
    )
    samples: ClassVar[int] = samples_file.MOST_SAMPLES

    def __init__(self, options: DeployOptions) -> None:
        ray_config.schema()
        if options.cache is not None:
            options = replace(options, cache=extras.checked_place(options.cache))
        super().__init__(options)
        self._runtime: BundleRuntime
        self._lanes: tuple[ray_config.Lane, ...] = ()

    def take(self, built: BuiltVariant) -> None:
        self._runtime = ray_runtimes.runtime_of(built)

    def require(self, plan: Plan) -> None:
        self._lanes = ray_config.lanes_of(plan, self.options.wait_ms, force=self.options.force)

    @classmethod
    def declared(
        cls, artifact: Artifact, specs: Sequence[TensorSpec], files: Declared, profile: int
    ) -> Declared:
        return replace(files, settings=ray_runtimes.found_in(artifact, specs))

    def write(self, folder: Path, deployment: Deployment) -> WrittenServer:
        built, interface, plan = deployment.built, deployment.interface, deployment.plan
        name, path = deployment.name, deployment.path
        log = path.parent / "logs" / f"{built.name}.deploy.log"
        more = extras.extras_of(built, interface, name, log, self.options)
        static = built.effective.get("shapes") == "static"
        known = plans.measured(built.name, deployment.report, path) if static else None
        recipe = deployment.report.recipe
        prepared = ray_bundle.prepared(
            name, built, recipe, interface, self._runtime, plan, self._lanes, known
        )
        made = more.applied(prepared.bundle)
        outputs = [each.name for each in made.outputs]
        scores = of_recipe.class_scores_of(built.samples, outputs, answers_classes=more.answers_classes)
        prepared = replace(prepared, bundle=made.model_copy(update={"class_scores": scores}))
        ray_bundle.write(folder, built, prepared, plan)
        golden = more.write(folder, built)
        monitoring.write(folder, name, plan, monitoring.of_ray(name, plan))
        notes = [*ray_bundle.notes_of(prepared, interface), *more.notes]
        notes.append(monitoring.note("localhost:8000/metrics"))
        about = (
            f"A server for Ray Serve, written by optcli. {plan.sentence} It needs neither optcli nor"
        )
        about += " a recipe: `pip install -r requirements.txt`, or build the Dockerfile."
        steps = instructions.for_ray(name, interface, golden, prepared.bundle.priorities)
        return WrittenServer(about, steps, notes, ray_bundle.closing(prepared))

    def finish(self, folder: Path, store: Store) -> None:
        bundle.remember(folder, store)
