"""What deploy writes for priorities: applications in Ray; and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from small_bundles import sealed_plan
from small_variants import IMAGE, onnx_model, variant

from optcli.artifact import Format
from optcli.cli import run
from optcli.errors import RecipeError, UsageError
from optcli.results import RecipeSummary, Report
from optcli.results.plan import Plan
from optcli.serving import bundle
from optcli.serving import deploy as deploying
from optcli.serving.deploy import plans, ray_config
from optcli.serving.targets import DeployOptions

pytestmark = pytest.mark.usefixtures("hurried_plans")

SHARES = {"high": 0.2, "low": 0.8}
RECIPE = """\
version: 1
name: small
model: {source: onnx:model/model.onnx}
inputs:
  - {name: image, shape: [batch, 3, 4, 4], batch: {max: 8}}
variants: {small: []}
slo: {p95_ms: 120, rate_per_s: 200}
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return sealed_plan(curve="6ms+4ms*b", slo={"p95_ms": 120}, priorities=SHARES, batch=None)


def deployed(folder: Path, plan: Plan | None, engine: str = "ray", **options: Any) -> Any:
    """A small variant, deployed into `out`; without a plan by the recipe's own promise."""
    if not (folder / "model").exists():
        onnx_model(folder / "model", {"image": ["batch", 3, 4, 4]})
    built = variant(folder / "model", Format.ONNX, IMAGE)
    (folder / "recipe.yaml").write_text(RECIPE)
    if plan is not None:
        (folder / "plan.json").write_text(plan.to_json())
    report = Report.model_construct(
        recipe=RecipeSummary.model_construct(name="r", path=str(folder / "recipe.yaml"))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploying, "open_built", lambda *_, **__: built)
        return deploying.deploy(
            "small",
            report,
            folder / "report.json",
            folder / "out",
            engine=engine,
            plan=None if plan is None else folder / "plan.json",
            name="net",
            options=DeployOptions(**options),
        )


def config(folder: Path) -> Any:
    return YAML(typ="safe").load((folder / bundle.CONFIG).read_text())


@pytest.mark.long
@pytest.mark.slow
def test_each_priority_is_an_application_with_what_the_plan_gives_it(tmp_path, plan):
    made = deployed(tmp_path, plan, engine="ray")
    out = tmp_path / "out"
    written = bundle.read(out)
    applications = config(out)["applications"]
    assert [(each["name"], each["route_prefix"]) for each in applications] == [
        ("net-high", "/high"),
        ("net-low", "/"),
    ]
    for known, application, planned in zip(
        written.priorities, applications, plan.priorities, strict=True
    ):
        one, (model,) = planned.configuration, application["deployments"]
        assert (known.name, known.share) == (planned.name, planned.share)
        assert (known.route or "/") == application["route_prefix"]
        assert model["num_replicas"] == known.instances == one.instances
        assert model["user_config"]["max_batch_size"] == known.largest_batch == one.batch
        assert model["user_config"]["batch_wait_timeout_s"] == pytest.approx(one.wait_ms / 1000)
        assert model["user_config"]["deadline_ms"] == known.deadline_ms
        assert known.queue_cap == one.queue_cap
        assert known.most_in_flight == one.max_in_flight
    assert written.instances == sum(each.instances for each in written.priorities)
    assert written.most_in_flight == sum(each.most_in_flight for each in written.priorities)
    assert written.cpus == written.instances * written.threads
    readme = (out / "README.md").read_text()
    (named,) = (command for command in made.commands if "localhost:8000/high/v2/models/net" in command)
    assert named in readme
    assert "with the priority high" in readme
    assert "which no other priority uses: high 1 replica for 0.2 of the traffic" in " ".join(made.notes)


@pytest.mark.slow
def test_a_bundle_without_priorities_is_one_application(tmp_path):
    deployed(tmp_path, sealed_plan(), engine="ray")
    assert bundle.read(tmp_path / "out").priorities == ()
    (application,) = config(tmp_path / "out")["applications"]
    assert (application["name"], application["route_prefix"]) == ("net", "/")
    assert "priority" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_without_a_plan_the_option_says_the_shares(tmp_path, monkeypatch):
    settings = {}
    from_settings = plans.planning.from_settings

    def planned(asked, **_):
        settings.update(asked.priorities)
        known = {"curve": "6ms+4ms*b", "batch": 8}
        return from_settings(asked.model_copy(update=known))

    monkeypatch.setattr(plans.planning, "from_settings", planned)
    deployed(tmp_path, None, engine="ray", priorities=SHARES)
    assert settings == SHARES
    assert [each.name for each in bundle.read(tmp_path / "out").priorities] == ["high", "low"]


def test_a_server_that_serves_none_apart_refuses_priorities(tmp_path):
    with pytest.raises(RecipeError, match="found priorities beside target triton"):
        deployed(tmp_path, None, engine="triton", priorities=SHARES)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_does_not_go_together_is_refused_and_leaves_nothing(tmp_path, plan):
    with pytest.raises(UsageError, match="the plan decides which priorities") as caught:
        deployed(tmp_path, plan, engine="ray", priorities=SHARES)
    assert "--priority high=0.2,low=0.8" in caught.value.hint
    with pytest.raises(RecipeError, match=r"shares of priorities that add up to 0\.9"):
        deployed(tmp_path, None, engine="ray", priorities={"high": 0.1, "low": 0.8})
    without = plan.priorities[1].model_copy(update={"configuration": None})
    broken = plan.model_copy(update={"priorities": (plan.priorities[0], without)})
    with pytest.raises(UsageError, match="no configuration for the priority low"):
        deployed(tmp_path, broken, engine="ray")
    refused = broken.model_copy(
        update={"outcome": "not-kept", "sentence": "No configuration keeps it."}
    )
    with pytest.raises(UsageError, match="configuration to deploy: No configuration keeps it"):
        deployed(tmp_path, refused, engine="ray", force=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["", "1", "2nd", "very urgent", "a/b", "a#b", "é", "x" * 33, "a\n"])
def test_a_name_that_no_request_could_give_is_refused(name):
    with pytest.raises(UsageError, match="cannot be called") as caught:
        ray_config.require_name(name)
    assert caught.value.place == "--priority"


@pytest.mark.slow
def test_a_wait_that_is_too_short_names_the_priority(plan):
    tight = {"least_wait_ms": 9.0, "wait_ms": 10.0, "batch": 4}
    high, low = plan.priorities
    low = low.model_copy(update={"configuration": low.configuration.model_copy(update=tight)})
    plan = plan.model_copy(update={"priorities": (high, low)})
    assert [lane.wait_ms for lane in ray_config.lanes_of(plan, None, force=False)][1] == 10
    wait_ms = high.configuration.wait_ms
    with pytest.raises(UsageError, match="is too short") as caught:
        ray_config.lanes_of(plan, min(wait_ms, 8.0), force=False)
    assert caught.value.place == "--wait"
    notes = [lane.note for lane in ray_config.lanes_of(plan, min(wait_ms, 8.0), force=True)]
    assert notes[1].startswith("for the priority low, a wait of ")


@pytest.mark.parametrize("text", ["high", "high=", "=0.2", "high=x"])
def test_a_share_that_is_none_is_refused_before_anything_is_read(text, capsys):
    assert run(["deploy", "small", "--target", "ray", "--priority", text]) == 2
    assert "--priority" in capsys.readouterr().err
