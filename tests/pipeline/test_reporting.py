"""Reports of builds, of `bench` and of `verify-accuracy` are put together alike."""

from pathlib import Path

import pytest

from optcli.artifact import Artifact, Format
from optcli.errors import ExitCode, RunnerError
from optcli.pipeline import reporting
from optcli.report import Advice
from optcli.results import RecipeSummary, Report, Verdict

ARTIFACT = Artifact("key", Format.ONNX, Path("elsewhere"), "fp32", 12, "content", {})
RUNNER = {"name": "onnxruntime", "requested": {"threads": 2}, "precision": "fp32"}


def verdict(outcome, blocking=True):
    return Verdict(name="accuracy", outcome=outcome, blocking=blocking, reason="because")


def made(variant, **options):
    return reporting.report(
        RecipeSummary(name="digits", path="", digest="d"),
        "eager",
        {"eager": variant},
        packages={"pydantic"},
        started="2026-03-01T12:00:00+00:00",
        code=ExitCode.REJECTED,
        **options,
    )


def test_what_was_run_names_its_artifact_and_runner():
    variant = reporting.ran(
        ARTIFACT, "eager", RUNNER, None, status="cached", verdicts=(verdict("accept"),)
    )
    assert (variant.status, variant.reason, variant.runner) == ("cached", None, RUNNER)
    assert variant.artifact.model_dump() == {
        "key": "key",
        "format": "onnx",
        "path": "eager",
        "precision": "fp32",
        "size_bytes": 12,
        "digest": "content",
    }
    assert variant.verdicts == (verdict("accept"),)


@pytest.mark.parametrize("problem", ["it aborted", RunnerError("it aborted")])
def test_a_problem_makes_it_failed_whatever_else_holds(problem):
    variant = reporting.ran(ARTIFACT, "eager", RUNNER, problem, status="skipped", reason="no baseline")
    assert (variant.status, variant.reason) == ("failed", str(problem))
    skipped = reporting.ran(ARTIFACT, "eager", RUNNER, None, status="skipped", reason="no baseline")
    assert (skipped.status, skipped.reason) == ("skipped", "no baseline")


def test_a_report_names_versions_machine_and_how_it_ended():
    report = made(reporting.ran(ARTIFACT, "eager", RUNNER, None))
    assert (report.exit_code, report.recommended, report.recommendation) == (1, None, "")
    assert list(report.environment["versions"]) == ["pydantic"]
    assert report.environment["confinement"]
    assert "machine" not in report.environment
    assert report.started < report.finished
    assert Report.model_validate_json(report.to_json()) == report


def test_a_build_says_more():
    report = made(
        reporting.ran(ARTIFACT, "eager", RUNNER, None),
        reason="it is slower",
        advice=Advice(recommended="eager", sentence="Serve eager.", by_batch={}),
        protocol={"mode": "quick"},
        machine={"identity": "m"},
        judged_by={"bar": 1},
    )
    assert (report.recommended, report.recommendation) == ("eager", "Serve eager.")
    assert (report.exit_reason, report.protocol) == ("it is slower", {"mode": "quick"})
    assert (report.environment["machine"], report.judged_by) == ({"identity": "m"}, {"bar": 1})


@pytest.mark.parametrize(
    ("verdicts", "failures", "code"),
    [
        ([], [], ExitCode.DONE),
        ([verdict("reject", blocking=False)], [], ExitCode.DONE),
        ([verdict("inconclusive"), verdict("reject")], [], ExitCode.REJECTED),
        ([verdict("inconclusive")], [], ExitCode.INCONCLUSIVE),
        ([verdict("reject")], [ExitCode.FAILED], ExitCode.FAILED),
    ],
)
def test_failures_and_blocking_verdicts_end_it(verdicts, failures, code):
    assert reporting.exit_code(verdicts, failures) == code
