"""A load test of a bundle in a real Ray, which it starts itself and stops at the end."""

from __future__ import annotations

import json

import pytest
from ray_cluster import command_line
from small_bundles import bundled, changed, sealed_plan
from small_variants import IMAGE, onnx_model, variant
from warm_workers import descendants

from optcli import cli
from optcli.artifact import Format
from optcli.results.loadtest import LoadTest
from optcli.serving.deploy import extras
from optcli.serving.deploy.extras import Extras
from optcli.serving.loadtest import calibrating
from optcli.serving.targets import DeployOptions

pytestmark = pytest.mark.usefixtures("hurried_loads", "hurried_plans")

QUICK = ("--seconds", "1.5", "--settle", "0.2s")


@pytest.mark.long
@pytest.mark.slow
def test_a_bundle_is_started_calibrated_loaded_and_stopped(tmp_path, capsys):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    built = variant(tmp_path / "model", Format.ONNX, IMAGE)
    folder = tmp_path / "bundle"
    plan = sealed_plan(instances=1)
    bundled(built, plan, folder)
    # Its cache of answers, of which the load test sends the same again and again, must be switched off.
    files = {extras.CACHE_FILE: extras.cache_file("memory", built, 60.0)}
    Extras(DeployOptions(cache="memory"), modules=("cache",), files=files).write(folder, built)
    changed(folder, cache="memory", extras=["cache"], deadline_ms=30_000)  # on a busy machine too
    (folder / "plan.json").write_text(plan.to_json())  # as deploy does
    before = descendants()
    code = cli.run(
        ["loadtest", str(folder), *QUICK, "--rate", "30", "--calibrate", "--json", "--trust"]
    )
    said = capsys.readouterr()
    assert code in (1, 5), said.err  # seconds of load accept nothing
    test = LoadTest.model_validate_json(said.out)
    assert (test.served.folder, test.served.own) == (str(folder), True)
    assert (test.served.batch, test.served.semantics) == (4, "sealed")
    (point,) = test.points
    assert point.checked > 0
    assert point.wrong == 0
    assert {"parse", "queue", "batch_wait", "compute", "post"} <= set(point.server.stages_ms)
    assert {"ingress", "replica"} <= set(point.server.cpu_cores)
    assert 1 <= point.server.batch_rows <= 4
    assert not point.server.cache_hit_share
    assert [each.by for each in point.predicted] == ["plan", "calibration"]
    kept = json.loads((folder / calibrating.FILE).read_text())
    assert kept["points_ms"] == {str(size): ms for size, ms in test.calibration.points_ms.items()}
    assert min(test.calibration.points_ms) == 1
    assert not [command_line(each) for each in descendants() - before]


def test_a_folder_that_is_no_bundle_is_named(tmp_path, capsys):
    assert cli.run(["loadtest", str(tmp_path), "--rate", "5"]) == 2
    assert "has no bundle.json" in capsys.readouterr().err
    assert cli.run(["loadtest", str(tmp_path / "nowhere"), "--rate", "5"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert cli.run(["loadtest", str(tmp_path), "--plan", "plan.json", "--rate", "5"]) == 2
    assert "a bundle has its own plan" in capsys.readouterr().err
