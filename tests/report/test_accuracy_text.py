"""What each artifact costs in accuracy, in words: outputs by part, and how far scores moved."""

from example import accuracy, both, report, variant

from optcli.report.accuracy import document
from optcli.report.terminal import text as shown
from optcli.results.outcomes import PartDistance, ScoreChange


def told(**changed):
    judged = accuracy(2, 1)
    error = judged.output_error.model_copy(update={"parts": changed.pop("parts", ())})
    judged = judged.model_copy(update={"output_error": error, **changed})
    base = variant(1, both(1, 1), accuracy(), runtime="torch")
    return shown(document(report({"eager": base, "int8": variant(1, both(1, 1), judged)})))


def test_scores_that_moved_are_told_with_the_threshold_that_lets_as_many_through():
    moved = ScoreChange(of="detections", threshold=0.25, count=120, baseline=266, equal=0.131)
    text = told(scores=moved)
    assert "scores: 120 detections with 0.25 or more, the baseline 266; as many at 0.131" in text
    assert "scores:" not in told(scores=moved.model_copy(update={"equal": None}))
    assert "scores:" not in told()


def test_what_hardly_varied_is_counted_in_one_line():
    plain = {"part": "scores", "sqnr_db": 30.0, "max_abs": 0.1, "low": 0.0, "high": 1.0}
    parts = (
        PartDistance(output="a", faded_count=3, **plain),
        PartDistance(output="b", faded_count=2, **plain),
    )
    line = "5 channels or classes that hardly vary in eager are constant here"
    assert told(parts=parts).count(line) == 1
    assert "hardly vary" not in told()
