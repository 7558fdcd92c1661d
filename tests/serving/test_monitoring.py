"""Alerts and dashboards of a promise: Prometheus' schema of rules, and the plan's own figures."""

from __future__ import annotations

import json
import re
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from ruamel.yaml import YAML

import optcli
from optcli.results.plan import Plan
from optcli.serving.deploy import monitoring

pytestmark = pytest.mark.usefixtures("hurried_plans")

Duration = Annotated[str, StringConstraints(pattern=r"^(\d+(ms|[smhdwy]))+$")]
Label = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AlertingRule(Part):
    """The fields of an alert, by Prometheus' documentation of `rule_files`."""

    alert: str
    expr: str
    for_: Duration | None = Field(None, alias="for")
    keep_firing_for: Duration | None = None
    labels: dict[Label, str] = {}
    annotations: dict[Label, str] = {}


class Group(Part):
    name: str
    interval: Duration | None = None
    limit: int = 0
    rules: list[AlertingRule] = Field(min_length=1)


class Rules(Part):
    groups: list[Group] = Field(min_length=1)


@pytest.fixture(scope="module")
def plan() -> Plan:
    slo = {"p95_ms": 120, "p99_ms": 200, "error_budget": 0.002}
    return optcli.plan(curve="6ms+1ms*b", rate_per_s=100, slo=slo, batch=8)


def written(tmp_path, plan, metrics):
    monitoring.write(tmp_path, "digits", plan, metrics)
    rules = Rules.model_validate(YAML(typ="safe").load(tmp_path / monitoring.ALERTS))
    (group,) = rules.groups
    return group.rules, json.loads((tmp_path / monitoring.DASHBOARD).read_text())


def expressions(rules, dashboard):
    of_panels = (each["expr"] for panel in dashboard["panels"] for each in panel["targets"])
    return [*(each.expr for each in rules), *of_panels]


def names_in(expression):
    return set(re.findall(r"\bmodel_\w+(?=\{)", expression))


def test_rules_follow_the_schema_and_speak_of_the_model(tmp_path, plan):
    rules, dashboard = written(tmp_path, plan, monitoring.of_ray("digits", plan))
    assert [each.alert for each in rules] == [
        "PromiseBroken", "PromiseBroken", "RequestsFail", "ServerGone", "TrafficAbovePlan",
    ]  # fmt: skip
    assert "p95 of the model digits is over the promised 120 ms" in rules[0].annotations["summary"]
    # Prometheus refuses two alerts of the same name and labels.
    assert len({(each.alert, *each.labels.items()) for each in rules}) == len(rules)
    assert rules[2].expr.endswith("> 0.002")
    assert rules[4].expr.endswith(f"> {plan.recommended.max_rate_per_s:.6g}")
    for each in expressions(rules, dashboard):
        assert each.count("(") == each.count(")")
        assert each.count('{model="digits"') == len(re.findall(r"\{", each))
        assert names_in(each)


def test_the_promise_is_a_bucket_of_the_bundle(tmp_path, plan):
    rules, _ = written(tmp_path, plan, monitoring.of_ray("digits", plan))
    assert 'outcome=~"ok|deadline",le="0.12"}[5m]' in rules[0].expr
    assert rules[0].expr.endswith("< 0.95")
    assert 'le="0.2"' in rules[1].expr


def test_a_slow_rate_has_a_longer_window(plan):
    slow = plan.model_copy(update={"planned_rate_per_s": 1.0})
    assert "[17m]" in monitoring.of_ray("digits", slow).broken["p95"]  # 1,000 requests
    assert "[5m]" in monitoring.of_ray("digits", plan).broken["p95"]


def test_the_dashboard_draws_promise_and_plan(tmp_path, plan):
    _, dashboard = written(tmp_path, plan, monitoring.of_ray("digits", plan))
    (source,) = dashboard["templating"]["list"]
    limits = {}
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == f"${{{source['name']}}}"
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
        limits[panel["title"]] = [each["value"] for each in steps[1:]]
    assert limits["p95, promised 120 ms"] == [0.12]
    assert limits["Requests a second, planned and at most"] == sorted(
        [plan.planned_rate_per_s, plan.recommended.max_rate_per_s]
    )
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_without_a_promise_the_rest_is_watched(tmp_path, plan):
    silent = plan.model_copy(update={"slo_ms": {}})
    rules, _ = written(tmp_path, silent, monitoring.of_ray("digits", silent))
    assert [each.alert for each in rules] == ["RequestsFail", "ServerGone", "TrafficAbovePlan"]
