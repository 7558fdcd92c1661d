"""The settings of one build, as the parent hands them to the process of TensorRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optcli.models.engines import profiles


@dataclass(frozen=True)
class EngineJob:
    """What to build.

    `flags` are builder flags by name, to be set or cleared; one that the version lacks must be false.
    `kept` are layers that stay in FP32 under weak typing. `pools` are bytes by memory pool.
    `timing_cache` is a file that is read where it is there and written anew. `targets` are the compute
    capabilities of TensorRT-RTX. `hardware` is `none`, `ampere_plus` or `same_compute_capability`.
    """

    product: str
    onnx: str
    plan: str
    profiles: Sequence[profiles.Profile] = ()
    batch_sizes: Sequence[int] = ()
    strongly_typed: bool = True
    flags: Mapping[str, bool] = field(default_factory=dict)
    kept: Sequence[str] = ()
    pools: Mapping[str, int] = field(default_factory=dict)
    optimization_level: int | None = None
    aux_streams: int | None = None
    timing_cache: str | None = None
    hardware: str = "none"
    verbosity: str = "DETAILED"
    targets: Sequence[str] = ()
