"""The gate with devices: each decides with its own latency, and one that tells nothing is no pass."""

from __future__ import annotations

import shutil

import pytest
from edge_device import DEVICES, Edge
from gated_project import COPIED, git, judge, of
from tiny_project import HEAD

from optcli import environment
from optcli.artifact import Format
from optcli.environment import Missing
from optcli.errors import ExitCode, StepError, UsageError
from optcli.gate import history
from optcli.gate import variant as gating_variant
from optcli.gate.origins import GateRun
from optcli.gate.terms import changes
from optcli.results.gate import Terms
from optcli.settings.gate import GateSettings
from optcli.store import Store

GATED = HEAD + DEVICES + "gate: {devices: %s}\n"


@pytest.fixture
def there(repository, edge):
    """The project with a commit whose gate decides on this machine and on the other one."""
    edge.cores = 3
    repository.recipe(COPIED % "old", head=GATED % "[here, edge]")
    git(repository.folder, "commit", "-qam", "devices")
    return repository


@pytest.mark.slow
def test_each_device_is_measured_and_the_worst_decides(there, pairs, tmp_path):
    pairs.growth = [0.0, 0.10]
    report = judge(there, history=tmp_path / "h.jsonl")
    found = [each for each in report.variants["copied"].comparisons if each.metric == "p50"]
    assert [(each.name, each.device, each.outcome) for each in found] == [
        ("p50 on here", "here", "accept"),
        ("p50 on edge", "edge", "reject"),
    ]
    assert (report.outcome, report.exit_code) == ("reject", ExitCode.REJECTED)
    assert "copied p50 on edge" in report.sentence
    assert report.variants["copied"].samples == (
        "copied.here.samples.npz",
        "copied.edge.samples.npz",
    )
    assert report.devices["edge"]["cpu"]["model"] == "Edge CPU"
    assert [now.options["threads"] for _, now, _, _ in pairs.seen] == [
        max(1, environment.usable_cores() - 1),
        2,
    ]
    of_p50 = {each.metric: each.machine for each in history.load(tmp_path / "h.jsonl")}
    assert of_p50["p50 on here"] != of_p50["p50 on edge"], "no series over two machines"


@pytest.mark.slow
def test_without_devices_nothing_names_one(repository, pairs):
    found = of(judge(repository), "p50")
    assert (found.name, found.device) == ("p50", None)


@pytest.mark.slow
def test_what_a_device_cannot_run_is_inconclusive(there, edge, pairs):
    edge.lacks = {"copied": (Missing("the package onnxruntime is not installed", "install it"),)}
    report = judge(there)
    assert (report.outcome, len(pairs.seen)) == ("inconclusive", 1)
    assert "it does not run on edge: the package onnxruntime" in report.sentence


@pytest.mark.slow
def test_a_device_that_is_lost_is_inconclusive(there, edge, pairs, monkeypatch):
    def lost(*_):
        raise StepError("the device edge was lost 3 times while it measured")

    monkeypatch.setattr(Edge, "alone", lost)
    report = judge(there)
    assert report.outcome == "inconclusive"
    assert "was lost" in report.sentence


@pytest.mark.long
@pytest.mark.slow
def test_native_code_of_another_cpu_is_not_compared_there(there, edge, pairs, monkeypatch):
    there.recipe(
        '  plain: []\n  copied: {passes: ["./fakes.py:Tuned"], gate: true}\n',
        head=GATED % "[edge]",
    )
    git(there.folder, "commit", "-qam", "bound")
    edge.flags = []
    assert judge(there).outcome == "accept", "what was calibrated elsewhere runs there"
    monkeypatch.setattr(gating_variant, "NATIVE", frozenset({Format.ONNX}))
    report = judge(there)
    assert report.outcome == "inconclusive"
    assert "bound to the CPU it was made on" in report.sentence


def test_another_device_than_the_baselines_is_a_change_of_the_rule():
    before = Terms(baseline="a", gate=GateSettings(devices=("edge",)), devices={"edge": {"ray": {}}})
    now = Terms(baseline="a", gate=GateSettings())
    found = changes(before, now)
    assert {(each.kind, each.place) for each in found} == {
        ("rule", "gate.devices"),
        ("rule", "devices.edge"),
    }
    assert all(each.open for each in found)


@pytest.mark.long
@pytest.mark.slow
def test_a_device_of_the_baseline_that_is_gone_from_the_recipe_is_an_error(there, pairs):
    there.recipe(COPIED % "old")
    with pytest.raises(UsageError, match="judged on a device 'edge'") as caught:
        judge(there)
    assert "--accept rule" in caught.value.hint
    report = judge(there, accept=("untracked-data", "rule"))
    assert of(report, "p50").device is None


@pytest.mark.slow
def test_a_device_of_a_cluster_needs_ray(repository, pairs):
    shutil.rmtree(repository.store)
    repository.recipe(COPIED % "old", head=GATED % "[edge]")
    with pytest.raises(UsageError, match="found no --ray") as caught:
        judge(repository, accept=("untracked-data", "rule"))
    assert caught.value.place == "devices.edge"
    assert GateRun().ray is None
    assert Store(repository.store).keys("measurement") == []
