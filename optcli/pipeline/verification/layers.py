"""Layer by layer in a build: what an artifact is compared with, and what was found before."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli import data, environment
from optcli.accuracy import layers
from optcli.accuracy.layers.process import FULL, incomparable
from optcli.artifact import SCANNED, Artifact
from optcli.errors import OptcliError, TrustError, UsageError, did_you_mean, shown_path
from optcli.files.digest import of_value
from optcli.observer import Observer, Silent
from optcli.pipeline import keys
from optcli.pipeline.terms import require_evaluation
from optcli.pipeline.trusting import (
    USERS,
    brings_python,
    doubts_of,
    is_fetched,
    is_from_file,
    opened_as,
    require_trust,
    require_trust_without_wall,
)
from optcli.recipe import Recipe, load
from optcli.results import Report, VariantReport
from optcli.results.outcomes import Layers
from optcli.store import Entry, Store, key_of

_KIND = "layers"
_TAKES = (
    f"compared with its float network layer by layer, on {layers.SAMPLES} samples: some seconds for "
    "small networks, about a minute for large ones"
)
_SKIP = "; --no-layers leaves it out"


@dataclass(frozen=True)
class ModelPair:
    """An artifact, what it is compared with, and the step that made it from that."""

    floats: Artifact
    child: Artifact
    made_by: Mapping[str, Any] = field(default_factory=dict)


def with_layers(
    report: Report,
    place: Path,
    wanted: str | None,
    *,
    rejected: bool = True,
    store: Path | Store | None = None,
    observer: Observer | None = None,
    overrides: Sequence[str] = (),
    remeasure: bool = False,
    trust: bool = False,
    from_elsewhere: bool = False,
    timeout_s: float | None = None,
) -> Report:
    """The report of a build with the layers of rejected variants alone, or of the one that is `wanted`.

    `place` is where the report was read; `wanted: ""` asks for all variants but the baseline, and
    `rejected: False` for none that is not wanted. Python of the recipe that a report `from_elsewhere`
    names wants `trust`. What was not asked for by name never fails: it says
    why it is not there. Raises `UsageError` for a variant
    that is not there, and all that comparing raises.
    """
    names = chosen(report, wanted, str(place), rejected=rejected)
    report = _adding(report, dict.fromkeys(report.variants))  # what was found before is not asked for
    if not names:
        return report
    store = Store.of(store)
    try:
        recipe = _recipe(report, place, overrides)
        if from_elsewhere and not trust and brings_python(recipe):
            raise TrustError(
                "the recipe of this report brings Python of its own, and the report is from elsewhere",
                place=str(place),
                hint=f"look into {shown_path(recipe.path)} and name that, or add --trust",
            )
    except OptcliError as error:
        if wanted:
            raise
        return _adding(report, dict.fromkeys(names, Layers(reason=error.message)))
    seeking = Seeking(recipe, store, observer or Silent(), remeasure, timeout_s)
    return seeking.into(report, names, wanted, lambda name: _couple(report, name, store, recipe, trust))


def chosen(report: Report, wanted: str | None, place: str, *, rejected: bool = True) -> list[str]:
    """The variants to look into: the one that is wanted, with "" all, else those `rejected`."""
    judged = {name: v for name, v in report.variants.items() if v.artifact and name != report.baseline}
    if wanted:
        if wanted not in judged:
            raise UsageError(
                f"there is no artifact {wanted!r} to compare with the baseline {report.baseline}",
                place=place,
                hint=did_you_mean(wanted, list(judged)),
            )
        return [wanted]
    if wanted is not None:
        return list(judged)
    return [name for name, variant in judged.items() if rejected and is_rejected(variant)]


def is_rejected(variant: VariantReport) -> bool:
    """Whether a variant's accuracy or outputs were rejected."""
    return any(
        each.name in ("accuracy", "outputs") and each.blocking and each.outcome == "reject"
        for each in variant.verdicts
    )


@dataclass(frozen=True)
class Seeking:
    """The recipe, store and settings that all comparisons share."""

    recipe: Recipe
    store: Store
    observer: Observer
    remeasure: bool = False
    timeout_s: float | None = None

    def into(
        self,
        report: Report,
        names: Sequence[str],
        wanted: str | None,
        couple: Callable[[str], ModelPair],
    ) -> Report:
        """The report with the layers of some variants. Only the one that is wanted may fail."""
        by_variant = {}
        for name in names:
            try:
                skip = _SKIP if wanted is None else ""
                by_variant[name] = self._look(couple(name), f"{name} › layers", _TAKES + skip)
            except OptcliError as error:
                self.observer.failed(f"{name} › layers", error.message)
                if name == wanted:
                    raise
                by_variant[name] = Layers(reason=error.message)
        self.store.digests.save()
        return _adding(report, by_variant)

    def _look(self, couple: ModelPair, step: str, takes: str) -> Layers:
        """Compare on the first evaluation samples; kept by what decides the result.

        What it `takes` is said before it begins.
        """
        store, recipe = self.store, self.recipe
        unlike = incomparable(couple.floats, couple.child)
        if unlike is not None:
            return Layers(reason=unlike)
        ingredients = _ingredients(couple, recipe, store)
        key = key_of(ingredients)
        entry = store.get(_KIND, key, anew=self.remeasure)
        if entry is not None:
            self.observer.cached(step)
            return Layers.model_validate(entry.record)
        self.observer.warned(step, takes)
        self.observer.started(step)
        began = time.monotonic()
        request = layers.LayersRequest(
            couple.floats,
            couple.child,
            recipe.inputs,
            recipe.data["evaluation"],
            recipe.folder,
            threads=recipe.latency.threads or environment.usable_cores(),
            made_by=dict(couple.made_by),
        )
        log = store.log_folder("layers") / f"{key[:16]}.log"
        comparison = layers.compare(request, log=log, timeout_s=self.timeout_s)
        with store.work(_KIND, key) as work:
            store.put(_KIND, key, work, comparison.model_dump(mode="json"), ingredients)
        self.observer.finished(step, time.monotonic() - began)
        return comparison


def _adding(report: Report, by_variant: Mapping[str, Layers | None]) -> Report:
    """The report with these layers, by variant."""
    variants = {
        name: variant.model_copy(update={"layers": by_variant[name]}) if name in by_variant else variant
        for name, variant in report.variants.items()
    }
    return report.model_copy(update={"variants": variants})


def _ingredients(couple: ModelPair, recipe: Recipe, store: Store) -> dict[str, Any]:
    return {
        "step": _KIND,
        "artifacts": of_value([couple.floats.digest, couple.child.digest]),
        "made_by": of_value(dict(couple.made_by)),
        "data": of_value(data.ingredients(recipe.data["evaluation"], recipe.folder, store.digests)),
        "inputs": [spec.model_dump(mode="json") for spec in recipe.inputs],
        "samples": layers.SAMPLES,
        "versions": environment.versions(("torch", "onnx", "onnxruntime", "openvino")),
        "code": keys.code(
            ["pipeline/verification/layers.py", *keys.room("accuracy/layers")], store.digests
        ),
    }


def _recipe(report: Report, place: Path, overrides: Sequence[str]) -> Recipe:
    path = Path(report.recipe.path)
    if not path.is_file():
        raise UsageError(
            f"the recipe of this report is gone: {shown_path(path)}",
            place=str(place),
            hint="build again; layers are compared on the data that the recipe names",
        )
    recipe = load(path, overrides)
    require_evaluation(recipe, path, "to compare layers on")
    return recipe


def _couple(report: Report, name: str, store: Store, recipe: Recipe, trust: bool) -> ModelPair:
    """A variant's artifact and its float counterpart: in its own chain, else the baseline's."""
    entries = _chain(report, name, store)
    from_file = is_from_file([entries[0].ingredients]) or is_fetched(entries)
    free = USERS if from_file and brings_python(recipe) else ""
    if any(entry.artifact().format in SCANNED for entry in entries):
        require_trust_without_wall(free, name, trust=trust)
    from_file = from_file and not free

    def opened(entry: Entry) -> Artifact:
        require_trust(doubts_of(entry), name, trust=trust)
        return opened_as(entry.artifact(), from_file=from_file, trust=trust)

    artifacts = [opened(entry) for entry in entries]
    for last in range(len(artifacts) - 1, 0, -1):  # such as AOTInductor: by what it was made from
        for first in range(last - 1, -1, -1):
            child, floats = artifacts[last], artifacts[first]
            if floats.precision in FULL and child.precision not in FULL:
                if incomparable(floats, child) is None:
                    made_by = entries[first + 1].ingredients
                    step = {"step": made_by["step"], "options": made_by.get("options", {})}
                    return ModelPair(floats, child, step)
                break
    return ModelPair(opened(_chain(report, report.baseline, store)[-1]), artifacts[-1])


def _chain(report: Report, name: str, store: Store) -> tuple[Entry, ...]:
    """The artifacts that led to a variant's, its own last."""
    summary = report.variants[name].artifact
    entry = store.get("artifact", summary.key) if summary is not None else None
    if entry is None:
        raise UsageError(
            f"the store no longer has the artifact of {name}",
            place=str(store.root),
            hint=f"run `optcli build {report.recipe.path}` again, or name its --store",
        )
    return entry.lineage(store.get)
