"""The merge gate: a candidate against a baseline, with known error rates.

`decide` is the rule for one latency; it is handed log ratios of launch pairs and answers pass, fail,
continue or inconclusive.
"""

from __future__ import annotations

from optcli.gate.rule import Decision, Rule, decide, planned

__all__ = ["Decision", "Rule", "decide", "planned"]
