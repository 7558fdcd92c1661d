"""The verdicts of a build under another bar or policy; nothing is evaluated again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optcli import accuracy
from optcli.errors import UsageError
from optcli.errors.paths import shown
from optcli.recipe import load
from optcli.results import Report
from optcli.results.outcomes import ACCURACY_VERDICTS


def rejudged(report: Report, place: Path, overrides: Sequence[str]) -> Report:
    """The report with its verdicts on accuracy as the recipe with `overrides` has them.

    Without one of `accuracy` it is left as it is. Raises `UsageError` where the recipe is gone, or
    where the metric or the confidence is another one, which only a build can work out.
    """
    if not any(each.strip().startswith("accuracy") for each in overrides):
        return report
    path = Path(report.recipe.path)
    hint = f"optcli build {shown(path)} with the same --set"
    if not path.is_file():
        raise UsageError(
            f"the recipe of this report is gone: {shown(path)}", place=str(place), hint=hint
        )
    settings = load(path, overrides).accuracy
    judged = {name: v.accuracy for name, v in report.variants.items() if v.accuracy is not None}
    for figures in judged.values():
        if settings is None or (figures.metric is not None and settings.metric != figures.metric):
            wanted = settings.metric if settings else "nothing"
            raise UsageError(
                f"the build judged by {figures.metric}, wanted {wanted}", place="--set", hint=hint
            )
        if figures.drop is not None and settings.confidence != figures.confidence:
            raise UsageError(
                f"the build's intervals are for a confidence of {figures.confidence:g},"
                f" wanted {settings.confidence:g}",
                place="--set accuracy.confidence",
                hint=hint,
            )
    variants = dict(report.variants)
    for name, figures in judged.items():
        fresh = accuracy.verdicts(figures, settings, is_baseline=name == report.baseline)
        others = (v for v in report.variants[name].verdicts if v.name not in ACCURACY_VERDICTS)
        variants[name] = variants[name].model_copy(update={"verdicts": (*fresh, *others)})
    return report.model_copy(update={"variants": variants})
