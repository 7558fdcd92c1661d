"""A search as a picture: every trial by speed and loss, the finalists in front, size as area."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.labels import beside
from optcli.report.html.marks import Area
from optcli.report.html.scales import spanning
from optcli.report.html.tags import Markup, tag
from optcli.results.tuning import Tuning, TuningTrial

_HEIGHT = 360
_SMALLEST, _LARGEST = 3.5, 14.0


def search(tuning: Tuning) -> Markup:
    """Trials by speed and change of accuracy; empty where fewer than two were judged."""
    judged = [each for each in tuning.trials if each.score is not None and each.loss is not None]
    if len(judged) < 2:
        return Markup()
    gain = tuning.objective if tuning.objective in ("size", "memory", "cost") else "speed"
    name = f"Trials: change of accuracy against {gain}"
    return marks.figure(name, lambda width: _draw(width, judged, tuning))


def _draw(width: int, judged: Sequence[TuningTrial], tuning: Tuning) -> Markup:
    area = Area(52, width - 16, 32, _HEIGHT - 42)
    x = spanning([_score(each) for each in judged], area.left + 14, area.right - 14)
    kept = [-100 * _loss(each) for each in judged]
    bar = None if tuning.bar is None else -100 * tuning.bar
    # A trial that lost everything shall not flatten the others.
    lowest = max(min(kept), 4 * bar) if bar else min(kept)
    shown = [max(each, lowest) for each in (*kept, bar or 0.0)]
    y = spanning(shown, area.bottom - 6, area.top, log=False)
    speed = f"times {wording.better(tuning.objective)} as the reference"
    shapes = marks.axes(area, x, y, speed, "change, points")
    if bar is not None:
        shapes.append(marks.line(area.left, y(bar), area.right, y(bar), "budget"))
    largest = max(each.size_bytes or 1 for each in judged)
    names = {each.trial: each.variant for each in tuning.finalists}
    places, labels = [], []
    for trial, change in zip(judged, kept, strict=True):
        share = math.sqrt((trial.size_bytes or 1) / largest)
        radius = max(_SMALLEST, _LARGEST * share)
        at, height = x(_score(trial)), y(max(change, lowest))
        words = f"trial {trial.number}: {trial.label}, {wording.number(_score(trial))}x, {change:+.2f}"
        kind = "solid" if trial.number in names else "faint"
        dot = tag("circle", tag("title", words), cx=at, cy=height, r=radius, class_=kind)
        shapes.append(marks.series(0 if trial.number in names else 7, dot))
        if trial.number in names:
            places.append((at, height))
            labels.append(names[trial.number])
    shapes += beside(places, labels, area, [])
    return marks.picture(width, _HEIGHT, "Trials of the search", *shapes)


def _score(trial: TuningTrial) -> float:
    return trial.score.value if trial.score is not None else 0.0


def _loss(trial: TuningTrial) -> float:
    return trial.loss.value if trial.loss is not None else 0.0
