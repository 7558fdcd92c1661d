"""Latency: artifacts in their own processes, taking turns in short rounds in random order.

`measure` gives raw samples, `to_results` turns them into percentiles, intervals and speed-ups,
`verdicts` judges them. Nothing heavy is imported here: a cached build reads verdicts without NumPy.
"""

from optcli.measure.latency.measure import LaunchPairs, measure, nothing_measured
from optcli.measure.latency.plan import Candidate, LatencyOrder, SweepOrder
from optcli.measure.latency.quality import protocol
from optcli.measure.latency.samples import Measured, Series, load, save
from optcli.measure.latency.summary import lost_p99, pair_log_ratios, speedup, to_results, undecided
from optcli.measure.latency.sweep import sweep
from optcli.measure.latency.verdicts import resources, verdicts
