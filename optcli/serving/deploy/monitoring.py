"""A promise is watched: alerts for Prometheus and a dashboard for Grafana, written from the plan."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.results.plan import Plan

ALERTS, DASHBOARD = "alerts.yaml", "dashboard.json"
# Percentiles are over this time at least, and over so many requests at the planned rate.
_LEAST_S, _REQUESTS = 300, 1000
_BUDGET = 0.001
# A condition holds for so long before an alert fires.
_FOR = "2m"
_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """A panel: its `lines` are pairs of PromQL and a legend, `limits` are drawn, all in `unit`."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    limits: Sequence[float] = ()


@dataclass(frozen=True)
class WatchedMetrics:
    """What a server's own metrics say of a model, in PromQL.

    `broken` has a condition for each promised percentile, `latency_s` that percentile in seconds.
    `requests_per_s` is by outcome, `failing` the share that got no answer, and `gone` holds where the
    server says nothing. `charts` are of this server alone.
    """

    broken: Mapping[str, str]
    latency_s: Mapping[str, str]
    requests_per_s: str
    legend: str
    failing: str
    gone: str
    charts: Sequence[Panel]


def of_ray(model: str, plan: Plan) -> WatchedMetrics:
    """Metrics of a bundle. A bucket of its histogram ends at each promised latency."""
    over, chosen = _over(plan), f'model="{model}"'
    by, whole = "model, version, application", "model_request_seconds"

    def rate(name: str, more: str, labels: str = by) -> str:
        return f"sum by ({labels}) (rate({name}{{{chosen}{more}}}[{over}]))"

    answered = ',outcome=~"ok|deadline"'
    failed = ',outcome=~"queue_full|deadline|error"'
    parts = {name: _part(name) for name in plan.slo_ms}
    within = {
        name: rate(f"{whole}_bucket", f'{answered},le="{round(ms / 1000, 6)!r}"')
        for name, ms in plan.slo_ms.items()
    }
    computed = rate("model_stage_seconds_count", ',stage="compute"', by)
    mean = "rate({0}_sum{{{1}}}[{2}]) / rate({0}_count{{{1}}}[{2}])"
    return WatchedMetrics(
        broken={
            name: f"{within[name]} / {rate(f'{whole}_count', answered)} < {part:g}"
            for name, part in parts.items()
        },
        latency_s={
            name: f"histogram_quantile({part:g}, {rate(f'{whole}_bucket', answered, f'le, {by}')})"
            for name, part in parts.items()
        },
        requests_per_s=rate(f"{whole}_count", "", f"{by}, outcome"),
        legend="{{application}} {{outcome}}",
        failing=f"{rate(f'{whole}_count', failed)} / " + rate(f"{whole}_count", ',outcome!="invalid"'),
        gone=f"absent(model_queue_bound{{{chosen}}})",
        charts=(
            Panel(
                "Requests that wait or are computed",
                "short",
                [
                    (f"model_queue_depth{{{chosen}}}", "{{application}}"),
                    (f"model_queue_bound{{{chosen}}}", "{{application}}, at most"),
                ],
            ),
            Panel(
                "Mean time by stage",
                "s",
                [(mean.format("model_stage_seconds", chosen, over), "{{application}} {{stage}}")],
            ),
            Panel(
                "Mean requests of a call",
                "short",
                [(f"{computed} / {rate('model_compute_seconds_count', '', by)}", "{{application}}")],
                _batch(plan),
            ),
        ),
    )


def note(page: str) -> str:
    """What the README says of both files; `page` is where the server has its metrics."""
    return (
        f"`{ALERTS}` has rules for Prometheus, which alert where the promise is broken, requests get no"
        " answer, the server is gone, or there is more traffic than was planned for: name it in"
        f" `rule_files`, and let Prometheus read {page}. Grafana imports `{DASHBOARD}`"
    )


def write(folder: Path, model: str, plan: Plan, metrics: WatchedMetrics) -> None:
    """Write both files into the folder. Raises OSError."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 10_000
    rules = [dict(each) for each in _rules(model, plan, metrics)]
    with (folder / ALERTS).open("w", encoding="utf-8") as file:
        yaml.dump({"groups": [{"name": f"promise of {model}", "rules": rules}]}, file)
    dashboard = json.dumps(_dashboard(model, plan, metrics), indent=2)
    (folder / DASHBOARD).write_text(dashboard + "\n", encoding="utf-8")


def _rules(model: str, plan: Plan, metrics: WatchedMetrics) -> Iterator[Mapping[str, Any]]:
    def rule(
        name: str, condition: str, severity: str, summary: str, **labels: str
    ) -> Mapping[str, Any]:
        return {
            "alert": name,
            "expr": condition,
            "for": _FOR,
            "labels": {"severity": severity, "model": model, **labels},
            "annotations": {"summary": summary},
        }

    for name, ms in plan.slo_ms.items():
        broken_promise = f"{name} of the model {model} is over the promised {ms:g} ms"
        yield rule("PromiseBroken", metrics.broken[name], "page", broken_promise, percentile=name)
    budget = _budget(plan)
    broken_promise = f"more than {100 * budget:g} % of the requests to the model {model} got no answer"
    yield rule("RequestsFail", f"{metrics.failing} > {budget:g}", "page", broken_promise)
    yield rule("ServerGone", metrics.gone, "page", f"no server has metrics of the model {model}")
    most = _most(plan)
    broken_promise = (
        f"the model {model} gets more requests than {most:.4g} a second, which the plan carries"
    )
    yield rule(
        "TrafficAbovePlan", f"sum({metrics.requests_per_s}) > {most:.6g}", "ticket", broken_promise
    )


def _dashboard(model: str, plan: Plan, metrics: WatchedMetrics) -> dict[str, Any]:
    """A dashboard that Grafana imports; people choose the Prometheus that it reads."""
    charts = [
        Panel(
            f"{name}, promised {ms:g} ms",
            "s",
            [(metrics.latency_s[name], name)],
            [ms / 1000],
        )
        for name, ms in plan.slo_ms.items()
    ]
    charts += [
        Panel(
            "Requests a second, planned and at most",
            "reqps",
            [(metrics.requests_per_s, metrics.legend)],
            [plan.planned_per_s, _most(plan)],
        ),
        Panel(
            "Share of the requests without an answer",
            "percentunit",
            [(metrics.failing, "failing")],
            [_budget(plan)],
        ),
        *metrics.charts,
    ]
    chosen = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "title": f"Promise of {model}",
        "uid": None,
        "schemaVersion": 39,
        "tags": ["optcli"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [chosen]},
        "panels": [_panel(index, chart) for index, chart in enumerate(charts)],
    }


def _panel(index: int, chart: Panel) -> dict[str, Any]:
    limits = [{"color": "red", "value": limit} for limit in sorted(chart.limits)]
    return {
        "id": index + 1,
        "title": chart.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"x": 12 * (index % 2), "y": 8 * (index // 2), "w": 12, "h": 8},
        "fieldConfig": {
            "defaults": {
                "unit": chart.unit,
                "min": 0,
                "custom": {"thresholdsStyle": {"mode": "line" if limits else "off"}},
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"color": "green", "value": None}, *limits],
                },
            },
            "overrides": [],
        },
        "targets": [
            {"refId": chr(65 + number), "expr": line, "legendFormat": legend, "datasource": _SOURCE}
            for number, (line, legend) in enumerate(chart.lines)
        ],
    }


def _part(percentile: str) -> float:
    """The share of the requests that a percentile speaks of: 0.95 of `p95`."""
    return int(percentile.removeprefix("p")) / 100


def _over(plan: Plan) -> str:
    """Over how long a percentile is taken, as PromQL writes it."""
    seconds = max(_LEAST_S, _REQUESTS / plan.planned_per_s)
    return f"{math.ceil(seconds / 60)}m"


def _budget(plan: Plan) -> float:
    promised = (plan.asked.get("slo") or {}).get("error_budget")
    return _BUDGET if promised is None else float(promised)


def _most(plan: Plan) -> float:
    one = plan.recommended
    return plan.planned_per_s if one is None else one.max_rate_per_s


def _batch(plan: Plan) -> list[float]:
    return [] if plan.recommended is None else [plan.recommended.batch]
