"""The merge gate: a candidate against a baseline, with known error rates. `running.gate` starts it."""
