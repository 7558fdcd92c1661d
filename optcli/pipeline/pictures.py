"""Pictures in a build: drawn beside the report where the recipe allows it, and not drawn again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from optcli import outputs, workers
from optcli.accuracy import pictures
from optcli.accuracy.metrics import reads
from optcli.accuracy.pictures import PicturesRequest
from optcli.artifact import Artifact
from optcli.data.labels import class_names_in
from optcli.errors import OptcliError, StoreError, raised_as
from optcli.models.formats import exporter_metadata
from optcli.pipeline import view
from optcli.pipeline.accuracy import EVALUATION, EvaluationContext, evaluations
from optcli.pipeline.decoding import decoding_of
from optcli.pipeline.plan import BuildPlan
from optcli.recipe import Recipe
from optcli.results.pictures import FOLDER, Picture, Pictures
from optcli.results.reading import record_of
from optcli.store import key_of

_ABOUT = "pictures.json"


def of_build(
    plan: BuildPlan,
    artifacts: Mapping[str, Artifact],
    judged: Collection[str],
    context: EvaluationContext,
    folder: Path,
) -> dict[str, tuple[Picture, ...]]:
    """The pictures of each variant of `judged`, below the build's `folder`.

    Those of an earlier build stay where nothing that decides them has changed, else they are removed.
    What goes wrong is a warning. Raises `StoreError` where pictures should go and cannot be removed.
    """
    recipe, place = plan.recipe, folder / FOLDER
    with raised_as(StoreError, "old pictures cannot be removed", of=OSError, place=str(place)):
        for left in folder.glob(f".{FOLDER}-*"):  # of a build that was killed
            shutil.rmtree(left)
        others = [name for name in judged if name != plan.baseline]
        wanted = recipe.report.pictures and plan.baseline in judged and others
        class_map = _class_map(recipe, artifacts[plan.baseline]) if wanted else None
        if not wanted or not (class_map or pictures.may_have(recipe.data["evaluation"])):
            view.remove(place, _ABOUT)
            return {}
    try:
        return _kept_or_drawn(plan, artifacts, others, context, place, class_map).variants
    except OptcliError as error:
        context.observer.warned("report", f"it has no pictures: {error.message}")
        return {}


def _kept_or_drawn(
    plan: BuildPlan,
    artifacts: Mapping[str, Artifact],
    others: Collection[str],
    context: EvaluationContext,
    place: Path,
    class_map: str | None,
) -> Pictures:
    recipe, store = plan.recipe, context.store
    names = recipe.class_names
    if isinstance(names, str):
        names = class_names_in(recipe.folder, names)
    names = names or decoding_of(recipe, artifacts[plan.baseline]).class_names
    keys, score = evaluations(plan, artifacts, context)
    deciding = {
        "baseline": keys[plan.baseline],
        "variants": {name: keys[name] for name in others},
        "names": names,
        "score": score,
        "class_map": class_map,
        "seed": recipe.seed,
        "code": store.digests.of(Path(pictures.__file__)),
    }
    key = key_of(deciding)
    stored = _drawn_before(place)
    if stored is not None and stored.key == key:
        return stored
    outputs = {
        name: entry.path
        for name in (plan.baseline, *others)
        if (entry := store.get(EVALUATION, keys[name])) is not None
    }
    if len(outputs) <= len(others):  # what is missing may be there another time
        key = ""
    hint = "make room, or set report: {pictures: false}"
    with raised_as(StoreError, "they cannot be written", of=OSError, place=str(place), hint=hint):
        view.remove(place, _ABOUT)
        fresh = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=place.parent))
        try:
            drawn = Pictures(key=key)
            if plan.baseline in outputs and len(outputs) > 1:
                request = PicturesRequest(
                    data=recipe.data["evaluation"],
                    folder=recipe.folder,
                    inputs=recipe.inputs,
                    baseline=outputs.pop(plan.baseline),
                    variants=outputs,
                    out=fresh,
                    class_names=names,
                    score=score,
                    class_map=class_map,
                    seed=recipe.seed,
                )
                drawn = workers.run(
                    "optcli.accuracy.pictures:draw",
                    request,
                    Pictures,
                    log=context.logs / "pictures.log",
                    timeout_s=context.timeout_s,
                    confined=(fresh,),
                ).model_copy(update={"key": key})
            (fresh / _ABOUT).write_text(drawn.model_dump_json(indent=1, exclude_defaults=True) + "\n")
            fresh.chmod(0o755)
            fresh.rename(place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return drawn


def _class_map(recipe: Recipe, baseline: Artifact) -> str | None:
    """The output that is a map of classes: as the metric, the recipe or the file says, or a guess."""
    declared, _ = outputs.of_facts(baseline.facts)
    judged = recipe.accuracy
    if judged is not None and reads(judged.metric) is not None:
        read = judged.output or (declared[0].name if declared else None)
        return read if reads(judged.metric) == "class_map" else None
    known = outputs.meanings(
        declared,
        recipe.inputs,
        metadata=exporter_metadata.of_facts(baseline.facts),
        settings=recipe.outputs,
        postprocess=recipe.postprocess,
    )
    return next((each.output for each in known if each.parts[0].kind == "class_map"), None)


def _drawn_before(place: Path) -> Pictures | None:
    """Pictures of an earlier build that are all there."""
    try:
        stored = Pictures.model_validate(record_of(place / _ABOUT))
    except (OSError, ValueError):
        return None
    named = [(p.file, p.baseline_file) for each in stored.variants.values() for p in each]
    files = {place.parent / file for pair in named for file in pair}
    return stored if all(map(Path.is_file, files)) else None
