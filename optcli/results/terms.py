"""What a candidate is judged by, resolved: the part of a recipe that a change must not bend unseen."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from optcli.results.outcomes import Result
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.gate import GateSettings
from optcli.settings.slo import SloSettings


class VariantTerms(Result):
    """How one variant takes part: marked for the gate or not, and the threads that it names."""

    gate: bool = False
    threads: int | None = None


class Terms(Result):
    """The terms of a judgement.

    `evaluation` is how the samples are chosen and the digest of their `content` (files and labels),
    None without evaluation data; `preparation` and `postprocess` are their settings. `samples` are the
    settings of the other roles' data, which judge nothing: they say what a change of samples was.
    `code` holds digests of the user's own files that judge: `metric`, `postprocess`, `data.evaluation`.
    `threads` is what the recipe says under `latency`; `baseline` names its float variant. `devices` are
    those of `gate.devices`, as the recipe describes them.
    """

    evaluation: dict[str, Any] | None = None
    preparation: dict[str, Any] | None = None
    postprocess: dict[str, Any] | None = None
    samples: dict[str, dict[str, Any]] = Field(default_factory=dict)
    accuracy: AccuracySettings | None = None
    slo: SloSettings | None = None
    gate: GateSettings = GateSettings()
    inputs: tuple[TensorSpec, ...] = ()
    code: dict[str, str] = Field(default_factory=dict)
    threads: int | None = None
    baseline: str
    devices: dict[str, Any] = Field(default_factory=dict)
    variants: dict[str, VariantTerms] = Field(default_factory=dict)
