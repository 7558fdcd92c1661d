"""One run of the gate, and the two sides of each comparison: what is judged, and against what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import environment
from optcli.errors import MissingError, OptcliError, UsageError
from optcli.gate.baselines import Baseline, BaselineVariant
from optcli.observer import Observer
from optcli.pipeline.making import BuiltPlan, made_by
from optcli.pipeline.places import HERE, Place
from optcli.pipeline.plan import PlannedVariant
from optcli.results.gate import Change, ChangeKind
from optcli.runners import find as find_runner
from optcli.settings.gate import GateSettings
from optcli.settings.slo import SloSettings
from optcli.store import Store

if TYPE_CHECKING:
    from optcli.gate.origins import GateRun, Origin


@dataclass
class Gating:
    """One run of the gate: both sides, what is demanded, and what was spent.

    `settings` and `slo` are what both sides demand; `changes` how the terms of the two differ. `places`
    are the devices whose latency decides. `samples` says by role how the settings of the data that
    artifacts are made with differ.
    """

    made: BuiltPlan
    baseline: Baseline
    origin: Origin
    settings: GateSettings
    slo: SloSettings | None
    changes: Sequence[Change]
    options: GateRun
    store: Store
    folder: Path
    observer: Observer
    places: tuple[Place, ...] = (HERE,)
    samples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def declared(self) -> frozenset[ChangeKind]:
        """The kinds of change that whoever runs the gate accepts."""
        return self.options.accept

    @property
    def logs(self) -> Path:
        """Where the measuring processes write."""
        return self.folder / "logs"


# The gate sets the threads itself. Which shapes are faster is measured on each side.
_OWN = ("threads", "shapes", "batch_sizes")


@dataclass(frozen=True)
class Side:
    """A variant as it is now, and the baseline's: None where that has none of this name.

    `absent` says why, where it should have one; without a reason the variant is new. `open_shapes`: the
    candidate's recipe leaves it to a build whether the runner's shapes are static.
    """

    name: str
    candidate: BaselineVariant
    packages: tuple[str, ...]
    baseline: BaselineVariant | None = None
    absent: str | None = None
    open_shapes: bool = False


def candidates(made: BuiltPlan, names: Sequence[str]) -> dict[str, Side]:
    """The variants to judge. Raises what kept one of them from being built or from running here."""
    judged = {}
    for variant in made.plan.variants:
        if variant.name not in names:
            continue
        if variant.missing or variant.unmeasurable:
            first = (*variant.missing, *variant.unmeasurable)[0]
            raise MissingError(first.what, place=variant.name, hint=first.hint)
        if variant.name not in made.artifacts:
            raise why_not_built(made, variant.name)
        variant_built = _built_variant(made, variant)
        use = made.plan.recipe.variants[variant.name].runner
        is_open = use is None or getattr(use.configured, "shapes", None) is None
        packages = tuple(variant.runner.needs.packages)
        judged[variant.name] = Side(variant.name, variant_built, packages, open_shapes=is_open)
    return judged


def sides(side_by_name: Mapping[str, Side], baseline: Baseline) -> dict[str, Side]:
    """Each candidate with what it is compared with.

    Where the candidate's recipe leaves its shapes open, they are the baseline's: what each side's build
    has measured to be faster, on whatever day, is no difference between the two.
    """
    paired = {}
    for name, side in side_by_name.items():
        variant = baseline.variants.get(name)
        candidate, absent = side.candidate, baseline.absent.get(name)
        if variant is not None and side.open_shapes:
            candidate = _shaped_as(candidate, variant)
        paired[name] = replace(side, candidate=candidate, baseline=variant, absent=absent)
    return paired


def _shaped_as(candidate: BaselineVariant, baseline: BaselineVariant) -> BaselineVariant:
    if candidate.runner != baseline.runner:
        return candidate
    shapes: dict[str, Any] = {
        name: baseline.options.get(name)
        for name in ("shapes", "batch_sizes")
        if name in candidate.options
    }
    return replace(candidate, options={**candidate.options, **shapes})


def runner_changes(side: Side) -> list[Change]:
    """Changes of the runner or of its settings; the gate sets the threads itself."""
    if side.baseline is None:
        return []
    old, new, place = side.baseline, side.candidate, f"variants.{side.name}.runner"
    if old.runner != new.runner:
        return [Change(kind="runner", place=place, before=old.runner, after=new.runner)]
    before, after = _settings(old), _settings(new)
    return [
        Change(kind="runner", place=f"{place}.{name}", before=before.get(name), after=after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def _settings(variant: BaselineVariant) -> dict[str, Any]:
    """The runner's settings with today's defaults, so that a new one is no change."""
    try:
        settings = find_runner(variant.runner).model_validate(variant.options).model_dump(mode="json")
    except (OptcliError, ValueError):
        settings = dict(variant.options)
    return {name: value for name, value in settings.items() if name not in _OWN}


def built_variants(made: BuiltPlan, names: Sequence[str]) -> dict[str, BaselineVariant]:
    """What was built of these variants, for a baseline."""
    return {
        variant.name: _built_variant(made, variant)
        for variant in made.plan.variants
        if variant.name in names and variant.name in made.artifacts
    }


def _built_variant(made: BuiltPlan, variant: PlannedVariant) -> BaselineVariant:
    options = variant.runner_options(made.plan.threads)
    artifact, steps = made.artifacts[variant.name], tuple(made_by(variant))
    return BaselineVariant(artifact, variant.runner_name, options, steps)


def why_not_built(made: BuiltPlan, name: str) -> OptcliError:
    """What kept a variant from being built."""
    variant = next(each for each in made.plan.variants if each.name == name)
    if variant.missing:
        return MissingError(variant.missing[0].what, place=name, hint=variant.missing[0].hint)
    for step in variant.steps:
        done = made.done.get(step.key)
        if done is not None and done.error is not None:
            return done.error
    return UsageError(f"{name} was not built", place=name, hint="run `optcli build` to see why")


def cannot_run(side: Side, baseline: Baseline, here: dict[str, Any]) -> str | None:
    """Why the baseline's artifact cannot be run here; None where it can."""
    assert side.baseline is not None
    other_cpu = of_another_cpu(side, baseline, here)
    if other_cpu is not None:
        return other_cpu
    missing = environment.missing(find_runner(side.baseline.runner).needs)
    if missing:
        return f"the baseline cannot run here: {missing[0].what}"
    return None


def of_another_cpu(side: Side, baseline: Baseline, environment: dict[str, Any]) -> str | None:
    """Why a baseline does not run on the CPU of the machine `environment`; None where it does."""
    assert side.baseline is not None
    bound = any("device" in step for step in side.baseline.made_by)
    made_on, cpu = baseline.environment.get("cpu", {}), environment["cpu"]
    if bound and (made_on.get("machine"), made_on.get("flags")) != (cpu["machine"], cpu["flags"]):
        lacking = sorted(set(made_on.get("flags", ())) - set(cpu["flags"]))
        what = f"this CPU lacks {', '.join(lacking[:4])}" if lacking else "it was made for another CPU"
        return f"the baseline's artifact is bound to the CPU it was made on: {what}"
    return None


def other_versions(side: Side, baseline: Baseline, here: dict[str, Any]) -> list[str]:
    """Libraries of the runner that had another version when the baseline was made."""
    versions = baseline.environment.get("versions", {})
    return [
        f"{name} {versions[name]} then, {here['versions'].get(name)} now"
        for name in side.packages
        if name in versions and versions[name] != here["versions"].get(name)
    ]
