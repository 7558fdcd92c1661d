"""Plans and bundles of variants that are compiled for some batch sizes: t(B) with its steps."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import quiet
from small_bundles import bundled, looked_at, sealed_plan
from small_variants import variant

import optcli
from optcli.artifact import Format
from optcli.measure.latency import Candidate, SweepOrder
from optcli.measure.latency.measured_curve import curve_of
from optcli.measure.latency.sweep import sweep
from optcli.observer import Silent
from optcli.report import html, terminal
from optcli.report.plan import document
from optcli.results import Estimate, Report, Sweep, SweepPoint
from optcli.serving.deploy import plans, ray_bundle, ray_config, ray_runtimes
from optcli.serving.loadtest import predicting
from optcli.settings.latency import SweepSettings

pytestmark = pytest.mark.usefixtures("hurried_plans")

STATIC = {"name": "openvino", "shapes": "static", "compiled_batch_sizes": [1, 8], "can_pad": True}
GAINS = {"static_gains": {"1": 1.2, "8": 1.25}}


def report(variant, name="ov"):
    return Report.model_validate(
        {
            "schema": 2,
            "recipe": {"name": "tiny", "path": "tiny.yaml", "digest": "d"},
            "environment": {},
            "baseline": name,
            "recommended": None,
            "recommendation": "",
            "started": "2026-03-01T12:00:00+00:00",
            "finished": "2026-03-01T12:00:00+00:00",
            "exit_code": 0,
            "variants": {name: {"status": "built", **variant}},
        }
    )


def of_table(runner, times, **more):
    rows = [
        {
            "batch_size": size,
            "threads": 1,
            "samples": 100,
            "p50_ms": {"value": ms},
            "mean_ms": ms,
            "throughput_per_s": 1000 * size / ms,
            "measured_at": "2026-03-01T12:00:00+00:00",
        }
        for size, ms in times.items()
    ]
    return report({"runner": {**STATIC, **runner}, "latency": rows, **more})


def of_sweep(runner, times, padded=(), name="ov"):
    points = [
        SweepPoint(
            batch_size=size,
            p50_ms=Estimate(value=ms),
            throughput_per_s=1000 * size / ms,
            samples=500,
            quantiles_ms=(0.9 * ms, ms, 1.1 * ms),
            padded_to=dict(padded).get(size),
        )
        for size, ms in times.items()
    ]
    swept = Sweep(points=tuple(points), stopped_because="8 is the largest wanted")
    return report({"runner": {**STATIC, **runner}, "sweep": swept.model_dump()}, name)


@pytest.mark.parametrize(
    ("found", "times"),
    [
        (of_table({}, {1: 5.0, 8: 16.0}), [5, 16, 16, 16, 16, 16, 16, 16]),
        (of_table(GAINS, {1: 5.0, 8: 16.0}), [5, 8, 10, 12, 14, 16, 16, 16]),
        (
            of_table({"padded_batch_sizes": {"4": 8}, **GAINS}, {1: 5.0, 4: 16.2, 8: 16.0}),
            [5, 8, 10, 16, 16, 16, 16, 16],
        ),
        (of_sweep({}, {1: 5.0, 2: 15.9, 4: 16.1, 8: 16.0}, {2: 8, 4: 8}), [5, *[16] * 7]),
        (of_sweep({}, {1: 5.0, 2: 8.0, 4: 12.0, 8: 16.0}), [5, 8, 10, 12, 14, 16, 16, 16]),
        (
            of_table({"shapes": "dynamic", "compiled_batch_sizes": None}, {1: 5.0, 8: 19.0}),
            [5, 7, 9, 11, 13, 15, 17, 19],
        ),
        (
            of_table(
                {
                    "shapes": None,
                    "compiled_batch_sizes": None,
                    "routes": {"fixed": [1, 8], "any_size": True, "padded_from": {"1": 1, "8": 5}},
                },
                {1: 5.0, 8: 17.0},
            ),
            [5, 8, 11, 14, 17, 17, 17, 17],
        ),
    ],
    ids=["padded", "gains", "the table", "a padded sweep", "a sweep", "dynamic", "AOTInductor"],
)
def test_the_measured_curve_has_the_steps_of_the_compiled_sizes(found, times):
    known = curve_of(found, "ov", None)
    assert known.curve.times_ms(8) == pytest.approx(times)


@pytest.mark.slow
def test_a_plan_takes_the_compiled_size_and_says_what_is_padded():
    asked = {"rate_per_s": 200, "slo": {"p95_ms": 60}, "instances": 1}
    plan = optcli.plan(of_table({}, {1: 5.0, 8: 12.0}), **asked)
    assert plan.recommended.batch == 8
    assert [point.batch for point in plan.by_batch] == [1, 8]
    assert (plan.curve.compiled, plan.curve.padded_from) == ((1, 8), {8: 2})
    said = "the server pads batches of 2 to 7 to 8: they take as long as the larger size"
    assert f"  {said}\n" in terminal.text(document(plan))
    assert said in html.html(document(plan))
    fixed = optcli.plan(of_table({}, {1: 5.0, 8: 12.0}), batch=4, **asked)
    notes = {note.kind: note for note in fixed.notes}
    assert notes["padded"].figures == {"batch": 4, "to": 8}
    assert notes["padded"].text == "the server pads batches of 4 to 8: they take as long"
    straight = optcli.plan(curve="1:5ms,8:12ms", **asked)
    assert straight.recommended.batch == 4
    assert "pads" not in terminal.text(document(straight))
    assert straight.recommended.p95_ms < plan.recommended.p95_ms, "it was a promise of too much"


@pytest.mark.slow
def test_a_plan_that_is_read_again_predicts_by_the_same_steps(tmp_path):
    plan = optcli.plan(of_table(GAINS, {1: 5.0, 8: 16.0}), rate_per_s=100, slo={"p95_ms": 60})
    (tmp_path / "plan.json").write_text(plan.to_json())
    again = predicting.of_plan(plans.read(tmp_path / "plan.json")).curve
    assert again.times_ms(8) == pytest.approx([5, 8, 10, 12, 14, 16, 16, 16])
    assert again.padded == ((6, 8),)


VECTOR = {"name": "x", "shape": ("batch", 64), "batch": {"min": 1, "opt": 2, "max": 8}}


def network(folder):
    """Two matrix products over 8192 features, which take longer the more rows there are."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder.mkdir()
    rng = np.random.default_rng(0)
    weights = {"a": (64, 8192), "b": (8192, 64), "c": (64, 10)}
    tensors = [numpy_helper.from_array(rng.random(s, dtype=np.float32), n) for n, s in weights.items()]
    steps = [("x", "a", "h"), ("h", "b", "g"), ("g", "c", "y")]
    nodes = [helper.make_node("MatMul", [left, right], [out]) for left, right, out in steps]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 64), ("y", 10))
    )
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "model.onnx")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("runner", ["openvino", "onnxruntime"])
def test_runner_sweep_plan_and_bundle_of_a_real_model_agree(tmp_path, monkeypatch, runner):
    """Swept by real processes; each batch goes in the bundle where the runner had it."""
    for module, name, value in quiet.LIFTED:
        monkeypatch.setattr(module, name, value)
    network(tmp_path / "model")
    options = {"threads": 1, "shapes": "static", "batch_sizes": [1, 8]}
    built = variant(tmp_path / "model", Format.ONNX, VECTOR, runner={"name": runner, **options})
    swept = sweep(
        SweepOrder(
            Candidate("small", built.artifact, runner, options),
            built.inputs,
            None,
            SweepSettings(max=8, max_seconds=60, launches=2),
            0,
            p99_ms=1000.0,
        ),
        tmp_path / "log",
        Silent(),
    )
    with built.runner.open(built.artifact, built.inputs) as opened:
        effective = {"name": runner, "threads": 1, **opened.effective()}
    points = {point.batch_size: point for point in swept.points}
    assert list(points) == [1, 2, 4, 8]
    assert {points[1].padded_to, points[8].padded_to} == {None}
    # Where batches went is real; times of a busy machine would be no curve.
    times = {size: 16.0 if at.padded_to else 4.0 + 2.0 * min(size, 6) for size, at in points.items()}
    padded = {size: at.padded_to for size, at in points.items() if at.padded_to}
    found = of_sweep(effective, times, padded, "small")
    known = curve_of(found, "small", None)
    assert known.forms.compiled == (1, 8)
    built = replace(built, effective=effective)
    plan = sealed_plan(batch=8)
    lanes = ray_config.lanes_of(plan, None, force=True)
    bundled(built, plan, tmp_path / "out")
    interface, runtime = looked_at(built, tmp_path / "looked"), ray_runtimes.runtime_of(built)
    prepared = ray_bundle.prepared("small", built, found.recipe, interface, runtime, plan, lanes, known)
    settings = prepared.bundle.runner.settings
    for name in ("model", "forms"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    import model as copied

    served = copied.Model(tmp_path / "out" / "model", json.loads(prepared.bundle.to_json()))
    for size in range(2, 8):
        to = known.curve.padded_to(size)
        assert (settings["padded_from"]["8"] <= size) is (to == 8)
        if to == 8:
            assert known.curve.time_ms(size) == known.curve.time_ms(8)
        if size in points and size > max((s for s in (2, 4) if not points[s].padded_to), default=0):
            assert points[size].padded_to == to
        x = np.random.default_rng(size).random((size, 64), np.float32)
        assert np.allclose(served.run({"x": x})["y"], _alone(served, x), rtol=1e-4)
    for name in ("model", "forms"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def _alone(served, x):
    """The rows by themselves, in the form that is compiled for one."""
    return np.concatenate([served.run({"x": row[None]})["y"] for row in x])
