"""Queueing: curves t(B), arrivals, formulas and the simulation of servers that batch.

Formulas prune, the simulation decides. Milliseconds and requests a second throughout; NumPy only.
"""

from __future__ import annotations

from optcli.measure.queueing.arrivals import (
    Arrivals,
    Bursts,
    Constant,
    Gamma,
    Poisson,
    Process,
)
from optcli.measure.queueing.batching import (
    Batching,
    Overhead,
    Prediction,
    Semantics,
    Simulation,
)
from optcli.measure.queueing.curve import Curve, Forms, with_forms
from optcli.measure.queueing.demand import Promise, highest_rate
from optcli.measure.queueing.simulation import replicate, simulate

__all__ = [
    "Arrivals",
    "Batching",
    "Bursts",
    "Constant",
    "Curve",
    "Forms",
    "Gamma",
    "Overhead",
    "Poisson",
    "Prediction",
    "Process",
    "Promise",
    "Semantics",
    "Simulation",
    "highest_rate",
    "replicate",
    "simulate",
    "with_forms",
]
