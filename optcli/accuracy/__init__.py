"""Accuracy: what an artifact loses against the baseline on the same samples, in its own runner.

`evaluate` runs one artifact over the evaluation set in processes of its own, `compare` pairs it with
the baseline sample by sample, `verdicts` judges it. Nothing heavy is imported here.
"""

from optcli.accuracy.evaluation import (
    Elsewhere,
    Evaluation,
    EvaluationRequest,
    UnderWay,
    evaluate,
    evaluate_part,
)
from optcli.accuracy.labels import better_order
from optcli.accuracy.metrics import metric_names, require_metric
from optcli.accuracy.pairs import compare
from optcli.accuracy.policies import too_few
from optcli.accuracy.preparations import GAIN, better_preparation, low, surely_misses
from optcli.accuracy.verdicts import unjudged, verdicts
