"""Builds that measure on two devices; the second is this machine under another description."""

from __future__ import annotations

import csv
import io
import json

import pytest
from edge_device import DEVICES, Edge, opened
from report_forms import markdown, text
from tiny_project import DATA, HEAD, project_in

from optcli import environment
from optcli.environment import Missing
from optcli.errors import ExitCode, StepError
from optcli.pipeline.on_ray import devices as on_cluster
from optcli.report import csv_text
from optcli.results import Report
from optcli.store import Store

VARIANTS = '  plain: []\n  copied: ["./fakes.py:Copy"]\n'


def head(measured_on="[here, edge]", more=""):
    return HEAD.replace("threads: 1}", f"devices: {measured_on}{more}}}") + DEVICES


@pytest.fixture(scope="module")
def both(template, tmp_path_factory):
    """A project, the report of its build on both devices, and the other device."""
    project, device = project_in(tmp_path_factory.mktemp("both"), template), Edge()
    project.recipe(VARIANTS, head=head(more=", min_speedup: 0.001"), data=DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_cluster, "opened", lambda *_: opened(device))
        return project, project.build(), device


@pytest.mark.long
@pytest.mark.slow
def test_each_device_has_its_own_rows_verdicts_and_recommendation(both):
    _, report, edge = both
    assert (report.device, list(report.devices)) == ("here", ["edge"])
    there = report.on("edge")
    for name in ("plain", "copied"):
        (mine,), (theirs,) = report.variants[name].latency, there.variants[name].latency
        assert (mine.device, theirs.device) == ("here", "edge")
        assert mine.p50_ms != theirs.p50_ms, "each was measured for itself"
    assert there.environment["cpu"]["model"] == "Edge CPU"
    assert there.environment["machine"]["identity"] == "edge"
    assert report.environment["cpu"] == environment.cpu()
    assert {row.threads for row in there.variants["copied"].latency} == {1}, "as many as it has cores"
    names = [each.name for each in there.variants["copied"].verdicts]
    assert "accuracy" in names
    assert "speed-up" in names
    assert there.recommendations.keys() == report.recommendations.keys() == {1}
    assert edge.measured == [("latency on edge", ["plain", "copied"])]
    assert edge.released == 1


@pytest.mark.slow
def test_the_report_is_read_as_it_was_written_and_by_who_knows_no_devices(both):
    project, report, _ = both
    written = project.artifacts / "tiny" / "report.json"
    assert Report.load(written) == report
    record = json.loads(written.read_text())
    assert record["schema"] == 2
    sizes = [row["batch_size"] for row in record["variants"]["copied"]["latency"]]
    assert sizes == [1], "one row a batch size, as ever"
    assert record["devices"]["edge"]["variants"]["copied"]["latency"][0]["device"] == "edge"
    assert (project.artifacts / "tiny" / "devices" / "edge" / "samples.npz").is_file()


@pytest.mark.slow
def test_people_see_one_table_a_device(both):
    project, report, _ = both
    said, document = text(report), markdown(report)
    assert "Batch size 1 on here" in said
    assert "Batch size 1 on edge" in said
    assert said.count("\nexit ") == 1
    assert "### Batch size 1 on edge" in document
    assert "edge: Edge CPU, 1 core," in document
    rows = csv.DictReader(io.StringIO(csv_text(report)))
    assert [row["device"] for row in rows] == ["here", "here", "edge", "edge"]
    page = (project.artifacts / "tiny" / "report.html").read_text()
    assert "Batch size 1 on edge" in page


@pytest.mark.long
@pytest.mark.slow
def test_what_was_measured_on_a_device_is_kept_under_its_machine(project, edge):
    project.recipe(VARIANTS, head=head())
    first = project.build()
    again = project.build()
    assert len(edge.measured) == 1
    for name, variant in again.devices["edge"].variants.items():
        assert variant.latency == first.devices["edge"].variants[name].latency
    edge.identity = "another edge"
    project.build()
    assert len(edge.measured) == 2
    assert len(list(Store(project.store).entries("measurement"))) == 3


@pytest.mark.slow
def test_the_first_device_stands_where_reports_have_always_had_it(project, edge):
    project.recipe(VARIANTS, head=head("[edge]"))
    report = project.build()
    assert (report.device, report.devices) == ("edge", {})
    assert report.environment["cpu"]["model"] == "Edge CPU"
    assert {row.device for each in report.variants.values() for row in each.latency} == {"edge"}
    assert (project.artifacts / "tiny" / "samples.npz").is_file()


@pytest.mark.slow
def test_a_variant_that_is_measured_elsewhere_alone_says_so(project, edge):
    project.recipe(
        '  plain: []\n  copied: {passes: ["./fakes.py:Copy"], devices: [edge]}\n', head("[here]")
    )
    report = project.build()
    assert report.variants["copied"].latency == ()
    assert report.variants["copied"].reason == "not measured on here"
    there = report.on("edge")
    assert there.variants["copied"].latency
    assert there.variants["copied"].reason is None
    assert there.variants["plain"].latency, "the baseline is measured on each device"


@pytest.mark.long
@pytest.mark.slow
def test_what_does_not_run_on_a_device_is_named_and_costs_the_others_nothing(project, edge):
    edge.lacks = {"copied": (Missing("no NVIDIA GPU was found", "bring one"),)}
    project.recipe(VARIANTS + '  third: [{"./fakes.py:Copy": {note: third}}]\n', head=head())
    report = project.build()
    there = report.on("edge")
    assert (
        there.variants["copied"].reason == "not measured on edge: no NVIDIA GPU was found (bring one)"
    )
    assert there.variants["copied"].latency == ()
    assert there.variants["third"].latency
    assert report.variants["copied"].latency
    assert report.exit_code == ExitCode.DONE


@pytest.mark.slow
def test_a_device_that_is_lost_costs_its_own_figures(project, edge):
    edge.error = StepError("the device edge was lost 3 times while it measured")
    project.recipe(VARIANTS, head=head())
    report = project.build()
    assert {each.status for each in report.variants.values()} == {"built"}
    assert {each.status for each in report.devices["edge"].variants.values()} == {"failed"}
    assert "was lost" in report.devices["edge"].variants["plain"].reason
    assert report.exit_code == ExitCode.FAILED
    assert report.exit_reason.startswith("on edge: ")
    assert edge.released == 1


@pytest.mark.long
def test_a_verdict_on_any_device_decides_the_exit_code(project, edge):
    """What is fast enough here is not on the other one, of which this is said by its own verdicts."""
    required = '  plain: []\n  copied: {passes: ["./fakes.py:Copy"], required: true}\n'
    project.recipe(required, head=head() + "slo: {p50_ms: 1000}\n")
    assert project.build().exit_code == ExitCode.DONE

    class Slow(Edge):
        """Its clock ticks as if each call took a million times as long."""

        def measure(self, *args):
            from dataclasses import replace

            found = super().measure(*args)
            slower = tuple(replace(each, ns=each.ns * 1_000_000) for each in found.series)
            return replace(found, series=slower)

    edge.__class__ = Slow
    report = project.build(remeasure=True)
    verdicts = {each.name: each.outcome for each in report.on("edge").variants["copied"].verdicts}
    assert verdicts["slo p50_ms"] in ("reject", "inconclusive")
    assert report.exit_code in (ExitCode.REJECTED, ExitCode.INCONCLUSIVE)
    assert report.exit_reason.startswith("on edge: ")
    mine = {each.name: each.outcome for each in report.variants["copied"].verdicts}
    assert mine["slo p50_ms"] == "accept"


@pytest.mark.slow
def test_a_recipe_is_measured_at_home_where_nobody_can_reach_its_devices(project, edge):
    project.recipe(VARIANTS, head=head())
    report = project.build(at_home=True)
    assert (report.device, report.devices, edge.measured) == (None, {}, [])


@pytest.mark.slow
def test_without_other_devices_no_cluster_is_asked(project, monkeypatch):
    def never(*_):
        raise AssertionError("nothing of a cluster was asked for")

    monkeypatch.setattr(on_cluster, "opened", never)
    project.recipe(VARIANTS, head=head("[here]"))
    report = project.build()
    assert (report.device, report.devices) == ("here", {})
