"""The batch sweep of a real tiny model in a build: measured, shown, kept and reused."""

from __future__ import annotations

import pytest
from report_forms import markdown, text
from tiny_project import HEAD, Heard, Project

from optcli.errors import RecipeError
from optcli.pipeline.building import build
from optcli.results import Report

pytestmark = pytest.mark.slow

SWEPT = HEAD.replace("threads: 1}", "threads: 1, sweep: {max_seconds: 0.5, launches: 2}}")


def built(project: Project) -> tuple[Report, list[str]]:
    heard = Heard()
    place = {"store": project.store, "artifacts": project.artifacts}
    return build(project.folder / "recipe.yaml", observer=heard, **place), heard.built


@pytest.mark.long
def test_a_sweep_is_measured_shown_and_kept(project: Project) -> None:
    project.recipe("  plain: []\n", head=f"{SWEPT}slo: {{p99_ms: 1000}}\n")
    found, steps = built(project)
    swept = found.variants["plain"].sweep
    assert swept is not None
    assert [point.batch_size for point in swept.points] == [1, 2, 4]
    assert swept.stopped_because == "4 is the largest the model takes"
    assert (swept.launches, swept.threads) == (2, 1)
    assert swept.fit is not None
    assert swept.budget is not None
    assert swept.budget.batch_size == 4
    assert all(point.p50_ms.low <= point.p50_ms.value <= point.p50_ms.high for point in swept.points)
    assert "plain › sweep" in steps
    for shown in (text(found), markdown(found)):
        assert "Batch sweep of plain" in shown
        assert "budget: within 1000 ms at p99: batch 4, " in shown
    assert (project.artifacts / "tiny/logs/plain.sweep.log").is_file()

    again, steps = built(project)
    assert again.variants["plain"].sweep == swept
    assert "plain › sweep" not in steps
    project.recipe("  plain: []\n", head=f"{SWEPT}slo: {{p99_ms: 2000}}\n")
    assert built(project)[0].variants["plain"].sweep.budget.p99_ms == 2000


@pytest.mark.long
def test_a_disturbed_sweep_decides_nothing_and_is_not_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optcli.measure.latency.launches.NOT_FIT", -1.0)
    project.recipe("  plain: []\n", head=f"{SWEPT}slo: {{p99_ms: 1000}}\n")
    found, _ = built(project)
    swept = found.variants["plain"].sweep
    assert swept is not None
    assert not any(point.fit for point in swept.points)
    assert swept.fit is None
    assert swept.budget is not None
    assert swept.budget.batch_size is None
    assert "plain › sweep" in built(project)[1]


def test_there_is_none_unless_the_recipe_asks(project: Project) -> None:
    project.recipe("  plain: []\n")
    found, steps = built(project)
    assert found.variants["plain"].sweep is None
    assert "Batch sweep" not in text(found)
    assert not any("sweep" in step for step in steps)


def test_a_slip_in_its_settings_is_found_at_its_place(project: Project) -> None:
    project.recipe("  plain: []\n", head=HEAD.replace("threads: 1}", "threads: 1, sweep: {mx: 3}}"))
    with pytest.raises(RecipeError, match=r"unknown key 'mx' in latency\.sweep"):
        built(project)
