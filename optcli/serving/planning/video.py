"""Cameras: a queue of one frame for each, and the stride that carries a burst."""

from __future__ import annotations

from dataclasses import replace

from optcli.queueing import Batching, Cameras, Curve, replicate
from optcli.queueing.demand import Demand
from optcli.queueing.formulas import capacity_per_s
from optcli.results.plan import VideoPlan
from optcli.serving.planning.settings import CameraSettings

# Every camera sends so many times as many frames in a burst.
_BURST = 2.0
_REQUESTS = 20_000


def video_plan(curve: Curve, demand: Demand, batching: Batching, cameras: CameraSettings) -> VideoPlan:
    """What a queue of one frame for each camera drops, now and in a burst of twice the frames."""
    process = Cameras(cameras.count, cameras.frames_per_s, cameras.stride, cameras.jitter_ms)
    one_each = replace(batching, stream_cap=1)
    usual = replicate(
        process, curve, one_each, demand.overhead, runs=2, requests=_REQUESTS, seed=demand.seed
    )
    burst = replicate(
        process.scaled(_BURST),
        curve,
        one_each,
        demand.overhead,
        runs=2,
        requests=_REQUESTS,
        seed=demand.seed,
    )
    room = demand.utilisation * capacity_per_s(
        curve,
        batching.batch,
        batching.workers,
        demand.occupied_ms,
        ingress_ms=demand.overhead.ingress_ms,
    )
    stride = cameras.stride
    while _BURST * cameras.count * cameras.frames_per_s / stride > room:
        stride += 1
    return VideoPlan(
        cameras=cameras.count,
        frames_per_s=cameras.frames_per_s,
        stride=cameras.stride,
        queue_per_camera=1,
        on_full="drop-oldest",
        drop_share=usual.drop_share.value,
        burst_stride=stride,
        drop_share_in_bursts=burst.drop_share.value,
        p95_ms_in_bursts=burst.p95_ms.value,
    )
