"""From variants to steps: every step with its key, so that variants which begin alike share work.

A key is the digest of everything that decides the result: options, the pass's own code and that of
the formats it reads and writes, the parent's key, versions of the libraries it declares, inputs,
seed, data, user code, and CPU or GPU where the result depends on them. Never a path or a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optcli import data, environment
from optcli.accuracy.metrics import needs_labels
from optcli.artifact import Artifact, Format
from optcli.errors import InputError
from optcli.files.digest import FileDigests, of_value
from optcli.models.sources import Source
from optcli.passes import Traits
from optcli.pipeline import keys
from optcli.pipeline.decoding import said_of_outputs
from optcli.recipe import Recipe, RunnerUse
from optcli.runners import DEFAULTS, Runner
from optcli.runners import find as find_runner
from optcli.settings.devices import HERE, DeviceSettings, RayPlace
from optcli.store import key_of

# Below a recipe's results: what the devices after the first one measured.
DEVICES_FOLDER = "devices"


@dataclass(frozen=True)
class Step:
    """One step of work and the key of what it makes. `parent` is None for the source.

    A step that `only_checks` asks a pass that cannot run here what it has to say of its parent.
    """

    name: str
    key: str
    format: Format
    ingredients: dict[str, Any] = field(repr=False)
    needs: environment.Needs
    parent: Step | None = None
    traits: Traits | None = None
    only_checks: bool = False

    def lineage(self) -> tuple[Step, ...]:
        """From the source down to this step."""
        return (*(self.parent.lineage() if self.parent else ()), self)


@dataclass(frozen=True)
class PlannedVariant:
    """A variant as steps; `missing` says why it cannot be built here, `unmeasurable` why not run.

    `possible` are the steps to do: all, or where something is missing none, unless the first step that
    cannot be done has something to check: then those before it, and that check. `static_gains` says how
    many times as fast the runner was when compiled for a batch size alone, where that was compared.
    """

    name: str
    steps: tuple[Step, ...]
    runner_name: str
    runner: Runner
    required: bool
    missing: tuple[environment.Missing, ...]
    unmeasurable: tuple[environment.Missing, ...]
    possible: tuple[Step, ...]
    static_gains: dict[str, float] = field(default_factory=dict)

    @property
    def last(self) -> Step:
        """The step that makes the variant's artifact."""
        return self.steps[-1]

    def runner_options(self, threads: int) -> dict[str, Any]:
        """The runner's settings, with the recipe's threads where the variant names none."""
        options = self.runner.model_dump(mode="json")
        return {**options, "threads": options.get("threads") or threads}

    def identity(self, artifact: Artifact, threads: int) -> str:
        """What is measured, whatever the variant is called: the artifact, its runner and settings."""
        return of_value([artifact.digest, self.runner_name, self.runner_options(threads)])


@dataclass(frozen=True)
class BuildPlan:
    """All that a build will do.

    `data_key` names the checked data, None for a recipe without any. `role_keys` names the samples of
    each role, `data_roles` what decides them, by that key. `device` names the machine that the plan is
    measured on; None where the recipe asks for no device.
    """

    recipe: Recipe
    source: Source
    variants: tuple[PlannedVariant, ...]
    baseline: str
    threads: int
    data_key: str | None
    data_ingredients: dict[str, Any] = field(repr=False)
    role_keys: dict[str, str]
    data_roles: dict[str, dict[str, Any]] = field(repr=False)
    device: str | None = None

    def packages(self) -> list[str]:
        """What a report names the versions of: what passes and runners need."""
        needed = [step.needs for variant in self.variants for step in variant.steps]
        needed += [variant.runner.needs for variant in self.variants]
        return sorted({name for needs in needed for name in needs.packages})

    def on_device(self, step: str) -> str:
        """What a step of measuring is called."""
        return step if self.device is None else f"{step} on {self.device}"

    def steps(self) -> dict[str, Step]:
        """Every step that can be done here, by key, parents first."""
        by_key: dict[str, Step] = {}
        for variant in self.variants:
            by_key.update({step.key: step for step in variant.possible if step.key not in by_key})
        return by_key

    def variants_of(self, key: str) -> list[str]:
        """The names of the variants that a step is part of."""
        return [v.name for v in self.variants if key in {step.key for step in (*v.steps, *v.possible)}]


def plan_of(
    recipe: Recipe,
    traits: Mapping[str, Traits],
    digests: FileDigests,
    only: Sequence[str] = (),
) -> BuildPlan:
    """Work out every step and its key, without a heavy import.

    `traits` holds what a worker found out about the user's own passes, by their `PassUse.place`.
    `only` names the variants wanted; the baseline always takes part. Raises `InputError` where a
    file the recipe names is gone.
    """
    source = source_of(recipe)
    threads = recipe.latency.threads or environment.usable_cores()
    roles = {
        role: {"step": "samples", **data.ingredients(settings, recipe.folder, digests)}
        for role, settings in recipe.data.items()
    }
    role_keys: dict[str, str] = {role: key_of(of) for role, of in roles.items()}
    inputs = [spec.model_dump(mode="json") for spec in recipe.inputs]
    context = _Context(recipe, threads, role_keys, digests, inputs, roles)
    try:
        first = context.source_step(source)
    except OSError as error:
        raise InputError(
            f"the model cannot be read: {error.strerror or error}",
            place=str(error.filename or recipe.model.source),
            hint="look at its permissions",
        ) from error
    baseline = recipe.baseline or next(iter(recipe.variants))
    names = [name for name in recipe.variants if not only or name in only or name == baseline]
    away = {
        name
        for each in devices_of(recipe, names, baseline)
        if not each.is_here
        for name in each.variants
    }
    variants = []
    for name in names:
        variant = recipe.variants[name]
        steps = [first]
        for use in variant.passes:
            own = use.configured
            known = traits[use.place] if own is None else Traits.of(own, use.name)
            steps.append(context.pass_step(steps[-1], known))
        planned = _planned(
            name, tuple(steps), variant.runner, required=variant.required, away=name in away
        )
        variants.append(context.with_checks(planned) if planned.missing else planned)
    metric = recipe.accuracy.metric if recipe.accuracy else None
    metric = metric if metric is not None and needs_labels(metric) else None
    checked = {"step": "data", "roles": role_keys, "inputs": inputs, "metric": metric}
    return BuildPlan(
        recipe,
        source,
        tuple(variants),
        baseline,
        threads,
        key_of(checked) if roles else None,
        checked,
        role_keys,
        {role_keys[role]: of for role, of in roles.items()},
    )


def prepared_role(recipe: Recipe) -> str | None:
    """The role whose preparation is the recipe's: `evaluation`, where that has one."""
    pixels = [role for role, each in recipe.data.items() if each.prepare is not None]
    return next(iter(sorted(pixels, key=lambda role: role != "evaluation")), None)


def source_of(recipe: Recipe) -> Source:
    """The recipe's model as a source."""
    return recipe.model.in_folder(recipe.folder)


def _planned(
    name: str, steps: tuple[Step, ...], use: RunnerUse | None, *, required: bool, away: bool
) -> PlannedVariant:
    if use is not None:
        runner_name, runner = use.name, use.configured
    else:
        runner_name = DEFAULTS[steps[-1].format]
        runner = find_runner(runner_name)()
    # Where the runner's options ask for a GPU and there is none, the variant is skipped, as where a
    # pass needs one. It does not run on the CPU instead. What is measured elsewhere is built.
    gpu_need = environment.Needs(gpu=runner.requires().gpu and not runner.needs.gpu and not away)
    needs = (*(step.needs for step in steps), gpu_need)
    missing = tuple(dict.fromkeys(one for each in needs for one in environment.missing(each)))
    unmeasurable = tuple(environment.missing(runner.requires()))
    possible = () if missing else steps
    return PlannedVariant(name, steps, runner_name, runner, required, missing, unmeasurable, possible)


@dataclass(frozen=True)
class _Context:
    """What all keys of one recipe have in common."""

    recipe: Recipe
    threads: int
    data: dict[str, str]
    digests: FileDigests
    inputs: list[dict[str, Any]]
    roles: Mapping[str, Mapping[str, Any]]

    def source_step(self, source: Source) -> Step:
        kind = source.kind
        ingredients = {
            "step": "source",
            "kind": kind,
            "model": source.ingredients(self.digests),
            "inputs": self.inputs,
            "code": keys.of_step(
                f"models/sources/{kind}.py", [source.format], self.digests, checked=True
            ),
            "versions": environment.versions(source.needs.packages),
        }
        return Step(f"source {kind}", key_of(ingredients), source.format, ingredients, source.needs)

    def pass_step(self, parent: Step, traits: Traits) -> Step:
        traits = traits.reading(parent.format)
        produced = traits.produces[parent.format]
        maker = None if traits.reference else f"passes/{traits.name}.py"
        formats, checked = [parent.format, produced], traits.tolerance is not None
        ingredients = {
            "step": traits.name,
            "options": traits.options,
            "parent": parent.key,
            "inputs": self.inputs,
            "seed": self.recipe.seed,
            "data": {role: self.data[role] for role in traits.uses},
            "code": {
                **({"pass": traits.code} if traits.code else {}),
                **keys.of_step(maker, formats, self.digests, checked=checked),
            },
            "versions": environment.versions(traits.needs.packages),
        }
        if traits.device_bound:
            here = {"cpu": environment.cpu(), "threads": self.threads}
            ingredients["device"] = traits.bound_to or here
        if traits.reads_preparation and (role := prepared_role(self.recipe)) is not None:
            ingredients["prepare"] = {k: self.roles[role][k] for k in ("settings", "versions")}
        if traits.reads_postprocess and (after := self.recipe.postprocess) is not None:
            ingredients["postprocess"] = after.model_dump(mode="json")
        if traits.reads_outputs:
            ingredients["outputs"] = said_of_outputs(self.recipe)
        if traits.uses_batch_sizes:
            ingredients["batch_sizes"] = sorted(set(self.recipe.latency.batch_sizes))
        return Step(
            traits.name, key_of(ingredients), produced, ingredients, traits.needs, parent, traits
        )

    def with_checks(self, variant: PlannedVariant) -> PlannedVariant:
        """A variant that cannot be built, with what its first impossible step can check without."""
        number = next((n for n, each in enumerate(variant.steps) if environment.missing(each.needs)), 0)
        blocked = variant.steps[number]
        traits, parent = blocked.traits, blocked.parent
        if traits is None or parent is None or not traits.checks_source:
            return variant
        name, needs = f"check for {traits.name}", environment.Needs()
        versions = environment.versions((*traits.needs.packages, "tensorrt_rtx"))
        ingredients = {**blocked.ingredients, "step": name, "versions": versions}
        check = Step(name, key_of(ingredients), parent.format, ingredients, needs, parent, traits, True)
        return replace(variant, possible=(*variant.steps[:number], check))


@dataclass(frozen=True)
class Device:
    """A machine to measure on, and the variants that are measured there, the baseline among them.

    `name` is None where the recipe asks for no device: then it is this machine. A device on a cluster
    has `ray`, one that ssh reaches `ssh`, and this machine neither.
    """

    name: str | None
    ray: RayPlace | None
    variants: tuple[str, ...]
    ssh: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.ray is None and not self.ssh


def devices_of(recipe: Recipe, names: Sequence[str], baseline: str) -> tuple[Device, ...]:
    """The devices on which these variants are measured, in the recipe's order; at least one.

    Those of `latency.devices` come first, then those that only variants name. The baseline is measured
    on each: a speed-up holds within a device.
    """
    chosen = {name: recipe.variants[name].devices for name in names}
    usual = recipe.latency.devices
    if usual is None and not any(chosen.values()):
        return (Device(None, None, tuple(names)),)
    of_variant = {name: own or usual or (_here(recipe),) for name, own in chosen.items()}
    order = dict.fromkeys([*(usual or ()), *(each for own in of_variant.values() for each in own)])
    devices = []
    for name in order:
        members = [each for each in names if name in of_variant[each]]
        if members:
            there = tuple(each for each in names if each in members or each == baseline)
            devices.append(device_of(recipe, name, there))
    return tuple(devices)


def at_home(recipe: Recipe) -> Recipe:
    """The recipe without devices to measure on: everything is measured on this machine."""
    return recipe.model_copy(
        update={
            "latency": recipe.latency.model_copy(update={"devices": None}),
            "variants": {
                name: variant.model_copy(update={"devices": None})
                for name, variant in recipe.variants.items()
            },
        }
    )


def device_of(recipe: Recipe, name: str, variants: tuple[str, ...]) -> Device:
    """A device that the recipe names, or this machine, with the variants that are measured there."""
    settings = recipe.devices.get(name, DeviceSettings())
    return Device(name, settings.ray, variants, settings.ssh)


def _here(recipe: Recipe) -> str:
    """What the recipe calls this machine."""
    named = [name for name, settings in recipe.devices.items() if settings.is_here]
    return HERE if HERE in named or not named else named[0]
