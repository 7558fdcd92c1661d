"""Measurements that nobody measured: series of given times, and comparisons of them."""

import numpy as np

from optcli.measure.latency.samples import LaunchStart, Measured, OpenedArtifact, Series
from optcli.settings.latency import LatencySettings


def series(ns, name="eager", launch=None, **changed):
    rows = len(ns)
    launch = launch or [0] * rows
    about = {
        "launch": tuple(launch),
        "round": tuple(launch[:row].count(launch[row]) for row in range(rows)),
        "cpu_ns": (0,) * rows,
        "switches": (0,) * rows,
        "steal_s": (0.0,) * rows,
        "waited_ns": (0,) * rows,
        "idle_cpu_ns": (0,) * rows,
        "first_feed": (0,) * rows,
        "feeds": 16,
        "starts": tuple(LaunchStart(each, 9.0, 10, True, 0.5, 10**6) for each in sorted(set(launch))),
    }
    return Series(name, 1, 0, np.asarray(ns, dtype=np.int64), **{**about, **changed})


def measured(*found, mode="quick", **settings):
    usual = {"launches": 1, "rounds": 8} if mode == "quick" else {}
    chosen = LatencySettings.model_validate({"mode": mode, **usual, **settings})
    return Measured(
        baseline="eager",
        measured_at="2026-01-01T00:00:00+00:00",
        settings=chosen.model_dump(mode="json"),
        seed=0,
        real_inputs=True,
        groups=(tuple(each.name for each in found),),
        lead_in=2,
        series=found,
        opened={each.name: OpenedArtifact((1.0,), (1.0,), 2, {}) for each in found},
    )
