"""The requests to an evaluating process, and its messages about progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings


@dataclass(frozen=True)
class AnswersFile:
    """A file of answers that another machine gave; `partial`: samples without an answer do not count.

    `outputs` are the baseline's by name, each with the shape of one sample; none where they do not
    matter.
    """

    path: Path
    partial: bool = False
    outputs: tuple[tuple[str, tuple[int, ...] | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """An artifact, its runner and the part `job` of `jobs` of the set; see `optcli.accuracy.evaluate`.

    It is judged on `data`, whose paths are relative to `folder`, as `settings` and `postprocess` say.
    `feeds` are the model's own inputs in the order of `inputs`, where names or element types differ.
    `reference`: others are compared with it, so that outputs which can be no scores and no classes are
    an error of the recipe, and not of the model. `guessed`: nobody says that `postprocess` is right.
    `out` is the folder of what it leaves. `prepared` is a folder with the samples as they were prepared
    before; without it they may be left in `keep`, for others. With `answers` these are evaluated, and
    the artifact is not opened. `answered`: only the samples count that this file answers.
    """

    inputs: tuple[TensorSpec, ...]
    feeds: tuple[TensorSpec, ...]
    data: DataSettings
    folder: Path
    settings: AccuracySettings | None = None
    postprocess: PostprocessSettings | None = None
    reference: bool = False
    guessed: bool = False
    artifact: Artifact
    runner: str
    options: dict[str, Any]
    out: Path
    job: int = 0
    jobs: int = 1
    prepared: Path | None = None
    keep: Path | None = None
    answers: AnswersFile | None = None
    answered: Path | None = None


@dataclass(frozen=True)
class EvaluationProgress:
    """How many samples of how many have gone through the model."""

    done: int
    of: int
