"""The finalists of a search: which trials become variants, and the recipe that has them.

They are judged on samples that the search never saw. The recipe extends the one that was searched.
"""

from __future__ import annotations

import itertools
import json
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from optcli.data import DataSettings
from optcli.errors import StoreError, UsageError
from optcli.files import regular_files
from optcli.recipe import Recipe, as_written
from optcli.results.tuning import TuningTrial, score_of
from optcli.tuning.candidates import written
from optcli.tuning.trial_facts import cut_of, highest_loss, is_cut

_WIDTH = 96
_MARK = "# Written by `"
# Trials are alike whose scores differ by less, and whose losses by less than this share of the bar.
_CLOSE, _CLOSE_LOSS = 0.03, 0.1


def variant_names(
    choices: Sequence[FinalistChoice], taken: Iterable[str] = ()
) -> dict[str, FinalistChoice]:
    """A name for each finalist: `openvino-int8`, `pruned-openvino-int8`, `openvino-int8-n2`, ...

    None is one of the `taken`: what the old recipe says of a variant of the same name would stay.
    """
    names: dict[str, FinalistChoice] = {}
    used = {name.lower() for name in taken}
    for choice in choices:
        parameters = choice.trial.parameters
        plain = f"{parameters['runtime']}-{parameters['precision']}"
        if parameters.get("blocks") or parameters.get("width"):
            plain = f"pruned-{plain}"
        numbered = (f"{plain}-n{count}" for count in itertools.count(2))
        name = next(each for each in itertools.chain((plain,), numbered) if each not in used)
        used.add(name)
        names[name] = choice
    return names


def names_of(recipe: Recipe) -> set[str]:
    """The names that the variants of a recipe have, in its files and by its matrix."""
    return {*recipe.variants, recipe.baseline, *_variants(as_written(recipe.path))}


def changes(data: Mapping[str, DataSettings], recipe: Recipe) -> dict[str, Any]:
    """What the tuned recipe says of the data: the roles that the search divided, with whole paths."""
    changed = {
        role: _placed(settings, recipe.folder).model_dump(
            mode="json", by_alias=True, exclude_defaults=True
        )
        for role, settings in data.items()
        if recipe.data.get(role) != settings
    }
    return {"data": changed} if changed else {}


def _placed(settings: DataSettings, folder: Path) -> DataSettings:
    """The settings with absolute paths: the recipe that names them may lie elsewhere."""
    placed = settings.with_paths(lambda path: str(folder / regular_files.expanded(path)))
    if not settings.runs_code:
        return placed
    return placed.model_copy(update={"source": f"{settings.kind}:{folder / settings.place}"})


def text(
    recipe: Recipe,
    out: Path,
    choices: Mapping[str, FinalistChoice],
    baseline: tuple[str, Mapping[str, Any]],
    changed: Mapping[str, Any],
    *,
    confidence: float | None,
    measuring_s: float,
    command: str,
) -> str:
    """The tuned recipe. `changed` are settings that the search was told, as a recipe has them.

    `confidence` is that of each finalist's verdict on accuracy, `measuring_s` the time cap of timed
    calls. Paths of the old recipe stay right, since the new one extends it. What is removed of it is
    what its files write: null for anything else would be read as a value.
    """
    name, variant = baseline
    before = as_written(recipe.path)
    replaced = [each for each in _variants(before) if each != name]
    # The passes of what it extends stand in it already, and that variant is removed.
    alone = {"extends": None} if "extends" in (_variants(before).get(name) or {}) else {}
    top: dict[str, Any] = {
        "version": 1,
        "name": f"{recipe.name}-tuned",
        "extends": os.path.relpath(recipe.path, out.absolute().parent),
        **({"matrix": None} if before.get("matrix") else {}),
        "baseline": name,
        **changed,
    }
    if recipe.accuracy is not None and confidence is not None:
        top["accuracy"] = {**top.get("accuracy", {}), "confidence": round(confidence, 6)}
    top["latency"] = {**top.get("latency", {}), "mode": "table", "max_seconds": measuring_s}
    lines = [
        f"{_MARK}{command}`. It is an ordinary recipe: build, compare and gate it.",
        *(f"{key}: {_flow(value)}" for key, value in top.items()),
        "variants:",
        *(f"  {each}: null" for each in replaced),
        f"  {name}: {_flow({**alone, **variant})}",
    ]
    for each, choice in choices.items():
        lines += [f"  {line}" for line in _comment(choice)]
        lines += [f"  {each}:", *_variant(choice)]
    return "\n".join(lines) + "\n"


def _variants(written: Mapping[str, Any]) -> dict[str, Any]:
    """The variants of a recipe as it was written."""
    variants: dict[str, Any] = written.get("variants") or {}
    return variants


def require_place(path: Path, recipe: Recipe) -> None:
    """Raise `UsageError` where the recipe cannot go: over somebody's own file, or into no folder."""
    if not path.parent.is_dir():
        raise UsageError(
            "the folder of the tuned recipe is not there",
            place=str(path.parent),
            hint="make it, or name another place with --out FILE",
        )
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"found {path.name}, wanted a .yaml file", place="--out", hint="a recipe is YAML"
        )
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        is_ours = file.readline().startswith(_MARK)
    if not is_ours or any(path.samefile(each) for each in recipe.read_from):
        raise UsageError(
            "there is a file that optcli tune did not write",
            place=str(path),
            hint="name another place with --out FILE, or move this file away",
        )


def write(path: Path, content: str) -> None:
    """Write the recipe, whole or not at all. Raises `StoreError`."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(content, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise StoreError(
            f"the tuned recipe cannot be written: {error.strerror}",
            place=str(path),
            hint="name another place with --out FILE",
        ) from error
    finally:
        fresh.unlink(missing_ok=True)


def settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """What `--set key.key=value` asked for, as a recipe has it; variants and `tune` are left out.

    Raises `UsageError` for a position in a list, which no recipe that extends another can change.
    """
    settings: dict[str, Any] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        parts = key.strip().split(".")
        if any(part.isdecimal() for part in parts):
            raise UsageError(
                f"a position in a list cannot be kept in the tuned recipe: {key.strip()}",
                place="--set",
                hint="write it in the recipe",
            )
        if parts[0] in ("variants", "matrix", "baseline", "tune"):
            continue
        at = settings
        for part in parts[:-1]:
            at = at.setdefault(part, {})
        at[parts[-1]] = YAML(typ="safe").load(value)
    return settings


def _variant(choice: FinalistChoice) -> list[str]:
    variant = written(choice.trial.passes, choice.trial.runner)
    lines = ["    passes:", *(f"      - {_flow(each)}" for each in variant["passes"])]
    if not variant["passes"]:
        lines = ["    passes: []"]
    if "runner" in variant:
        lines.append(f"    runner: {_flow(variant['runner'])}")
    return lines


def _comment(choice: FinalistChoice) -> list[str]:
    trial = choice.trial
    sentence = f"Trial {trial.number}: {choice.why}."
    if trial.score is not None:
        sentence += f" {trial.score.value:.2f} times the reference"
    if trial.loss is not None:
        sentence += f", {100 * trial.loss.value:z.2f} points lost on {trial.samples} validation samples"
    return textwrap.wrap(f"{sentence}.", _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _flow(value: Any) -> str:
    """A value in YAML's flow style; JSON is YAML."""
    return json.dumps(value)


@dataclass(frozen=True)
class FinalistChoice:
    """A trial that becomes a finalist, and why in words."""

    trial: TuningTrial
    why: str


def choose(
    trials: Sequence[TuningTrial], bar: float, most: int, *, certain: bool = False
) -> list[FinalistChoice]:
    """At most so many finalists: a pure function of the trials, the fastest first.

    The fastest inside the bar; the fastest whose loss is surely inside, or where none is, that uses
    half of the bar; the fastest without training; the fastest that loses nearly nothing; then others of
    the Pareto front of score and loss.
    Without a trial inside the bar there is none.

    `certain`: only what is surely inside the bar is accepted. The one with the smallest upper bound of
    the loss is then a finalist too: the evaluation samples may be enough for it and for no other.
    """
    inside = [t for t in trials if t.stage == "inside" and t.score is not None and t.loss is not None]
    inside = sorted(inside, key=_rank)
    chosen: dict[int, FinalistChoice] = {}

    def add(candidates: Sequence[TuningTrial], why: str) -> None:
        if candidates and len(chosen) < most:
            trial = candidates[0]
            same = any(_same(trial, each.trial) for each in chosen.values())
            if not same:
                chosen[trial.number] = FinalistChoice(trial, why)

    add(_trained_best(inside), "the fastest inside the bar on validation samples")
    sure = [t for t in inside if t.certain or (_has_bound(t) and highest_loss(t) <= bar)]
    add(_trained_best(sure), "the fastest that is surely inside the bar")
    if certain:
        add(sorted(inside, key=highest_loss), "smallest upper bound of the loss")
    if not sure:
        half = [t for t in inside if _loss(t) <= bar / 2]
        add(half, "the fastest that uses at most half of the bar")
    add([t for t in inside if not t.trains], "the fastest without training")
    add([t for t in inside if _loss(t) <= bar / 10], "the fastest that loses nearly nothing")
    for trial in front(inside):
        # Each finalist widens the bounds of all: one that hardly differs is not worth that.
        if not any(_is_like(trial, each.trial, bar) for each in chosen.values()):
            add([trial], "on the Pareto front of speed and loss")
    return sorted(chosen.values(), key=lambda each: _rank(each.trial))


def _trained_best(trials: Sequence[TuningTrial]) -> Sequence[TuningTrial]:
    """The fastest first; of one pruned network, trained several times, the one that is surest."""
    if not trials or not is_cut(trials[0]):
        return trials
    fastest = trials[0]
    alike = [t for t in trials if cut_of(t) == cut_of(fastest) and _is_as_fast(t, fastest)]
    return sorted(alike, key=highest_loss)


def front(trials: Sequence[TuningTrial]) -> list[TuningTrial]:
    """Trials that no other beats in both score and loss, the largest score first."""
    best: list[TuningTrial] = []
    for trial in sorted(trials, key=_rank):
        if not best or _loss(trial) < _loss(best[-1]):
            best.append(trial)
    return best


def _rank(trial: TuningTrial) -> tuple[float, float, int]:
    return (-score_of(trial), _loss(trial), trial.number)


def _loss(trial: TuningTrial) -> float:
    return trial.loss.value if trial.loss is not None else 1.0


def _has_bound(trial: TuningTrial) -> bool:
    return trial.loss is not None and trial.loss.high is not None


def _is_like(one: TuningTrial, other: TuningTrial, bar: float) -> bool:
    return _is_as_fast(one, other) and abs(_loss(one) - _loss(other)) < _CLOSE_LOSS * bar


def _is_as_fast(one: TuningTrial, other: TuningTrial) -> bool:
    return score_of(other) > 0 and abs(score_of(one) / score_of(other) - 1.0) < _CLOSE


def _same(one: TuningTrial, other: TuningTrial) -> bool:
    return one.number == other.number or (one.passes == other.passes and one.runner == other.runner)
