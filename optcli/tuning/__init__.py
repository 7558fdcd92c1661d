"""Tune: tries options by building. Searches under constraints, or repairs one variant's accuracy."""

from optcli.tuning.repairing import repair
from optcli.tuning.search import tune
