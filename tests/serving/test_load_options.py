"""What a load test is asked for, without a server: arrivals, promises, and what they begin with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from bare_bundles import described_alone
from test_loadtest_parts import IMAGE
from test_loadtest_windows import point

import optcli
from optcli import cli
from optcli.errors import InputError, UsageError
from optcli.measure.queueing.demand import Demand
from optcli.observer import Silent
from optcli.results.loadtest import Served
from optcli.serving.loadtest import load_options, payloads, predicting, workflow
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.loadtest.load_options import Options
from optcli.serving.loadtest.messages import TensorAbout

pytestmark = pytest.mark.usefixtures("hurried_plans")

# 140 a second in a tenth of the time, and 40 a second between: 50 a second in the mean.
BURSTS = Options(arrivals="bursts:140,1800ms,200ms")


class Client:
    """Keeps which arrivals it was asked for; the promise breaks over `capacity`."""

    def __init__(self, capacity=120.0):
        self.capacity = capacity
        self.processes = []

    def point(self, process, spans, *, encoding, purpose):
        self.processes.append(process)
        return point(process.rate_per_s, breach=process.rate_per_s > self.capacity, purpose=purpose)


@pytest.fixture
def server(monkeypatch):
    """A server with a plan for 50 requests a second."""
    monkeypatch.setattr(predicting, "Demand", partial(Demand, requests=500))
    plan = optcli.plan(curve="2ms+0.5ms*b", rate_per_s=50, slo={"p95_ms": 100}, batch=8, target="ray")
    how = {"batch": 8, "wait_ms": 5.0, "instances": 1, "semantics": "sealed"}
    return Endpoint(Served(url="http://x", model="m", **how), (IMAGE,), ("scores",), plan=plan)


def carried_out(server, options, client=None):
    client = client or Client()
    whole = workflow._Whole(server, options, load_options.terms_of(server, options), client)
    whole.carry_out(load_options.rates_of(server, options))
    return whole.report("http://x", "now", "random"), client.processes


@pytest.mark.slow
def test_bursts_are_those_of_the_planned_rate_and_keep_their_form_along_the_curve(server):
    test, (process,) = carried_out(server, BURSTS)
    assert (process.rate_per_s, process.burst_per_s) == pytest.approx((50, 140))
    assert next(rate for rate, _ in test.curve_ms["plan"]) == pytest.approx(5)


@pytest.mark.slow
def test_a_server_that_was_started_here_has_one_ingress_whatever_the_plan_has(server, monkeypatch):
    options = Options(rates_per_s=(150,))
    overhead = {"ingress_ms": 5, "after_ms": 1}
    asked_for = {"curve": "2ms+0.5ms*b", "rate_per_s": 150, "slo": {"p95_ms": 100}, "target": "ray"}
    plan = optcli.plan(**asked_for, overhead=overhead, batch=8)
    assert plan.recommended.ingresses == 2
    elsewhere = replace(server, plan=plan)
    here = replace(elsewhere, served=server.served.model_copy(update={"own": True}))
    (many, _), (one, _) = carried_out(elsewhere, options), carried_out(here, options)
    assert [each.kind for each in many.notes] == []
    assert "2 machines" in next(each.text for each in one.notes if each.kind == "one-machine")
    # At 150 a second one ingress has a load of 0.75, each of two 0.375.
    assert dict(one.curve_ms["plan"])[150] > 1.3 * dict(many.curve_ms["plan"])[150]


@pytest.mark.slow
def test_bursts_grow_with_the_rate_in_the_search_of_the_limit(server):
    options = Options(arrivals=BURSTS.arrivals, find_limit=True)
    test, processes = carried_out(server, options)
    assert 100 < test.limit.rate_per_s <= 120
    assert {round(each.burst_per_s / each.rate_per_s, 6) for each in processes} == {2.8}


def test_a_search_with_bursts_needs_the_rate_that_they_are_given_for():
    bare = Endpoint(Served(url="http://x", model="m"), (IMAGE,), ("scores",))
    options = Options(
        arrivals=BURSTS.arrivals,
        find_limit=True,
        slo_ms={"p95": 100.0},
        calibrate=True,
        calibration=Path("calibration.json"),
    )
    with pytest.raises(UsageError, match="bursts are given for a rate") as caught:
        load_options.require_promise(bare, options, load_options.terms_of(bare, options))
    assert "--rate" in caught.value.hint


def test_a_cache_is_neither_calibrated_nor_switched_elsewhere(tmp_path, capsys):
    options = Options(calibrate=True, with_cache=True)
    with pytest.raises(UsageError, match="a cache would answer for it"):
        workflow.load_test(
            str(tmp_path), options, Silent()
        )  # before it looks for a server in the folder
    nobody = "http://127.0.0.1:1"
    for targets in ([nobody], [nobody, nobody, "--shadow", "10%"]):  # nor whether somebody is there
        assert cli.run(["loadtest", *targets, "--rate", "5", "--arrivals", "trace:FILE"]) == 2
        assert "--arrivals: 'trace:FILE' is no kind of arrivals" in capsys.readouterr().err
    assert cli.run(["loadtest", "http://127.0.0.1:1", "--with-cache"]) == 2
    assert "a server at a URL keeps its cache as it is" in capsys.readouterr().err


def test_the_golden_image_of_a_bundle_is_sent_first_and_suffices(tmp_path):
    bundle, own = tmp_path / "bundle", tmp_path / "own"
    for folder in (bundle, own):
        folder.mkdir()
    images = Options(encoding="image")
    described_alone(bundle, images=True)
    with pytest.raises(UsageError, match="there are no images to send"):
        load_options.require_options(images, str(bundle))
    for name in ("golden-image.png", "golden-answer.json"):
        (bundle / name).write_text("{}")
    (own / "a.jpg").write_text("")
    load_options.require_options(images, str(bundle))
    # Of a server at a URL, the folder is named.
    load_options.require_options(replace(images, golden=bundle), "http://x")
    golden = (bundle / "golden-image.png", bundle / "golden-answer.json")
    server = Endpoint(Served(url="http://x", model="m"), (IMAGE,), ("scores",), golden=golden)
    setup, _ = load_options.setup_of(server, images, tmp_path)
    assert (setup.images, setup.golden_answer) == ((golden[0],), golden[1])
    setup, _ = load_options.setup_of(server, replace(images, images=own), tmp_path)
    assert (setup.images, setup.golden_answer) == ((golden[0], own / "a.jpg"), golden[1])
    (bundle / "golden-answer.json").write_text("no JSON")
    with pytest.raises(InputError, match="no answer to an image"):
        payloads.golden_of(setup)


@pytest.mark.parametrize(
    "more",
    [["--encoding", "image"], ["--encoding", "image", "--images"]],
)
def test_a_bundle_that_takes_no_images_is_not_asked_for_some(tmp_path, capsys, more):
    """Whoever then named some would only hear that the bundle takes none."""
    described_alone(tmp_path, images=False)
    named = [str(tmp_path)] if more[-1] == "--images" else []
    assert cli.run(["loadtest", str(tmp_path), "--trust", *more, *named]) == 2
    said = capsys.readouterr().err
    assert "the bundle takes no images" in said
    assert "deploy the variant again with --images" in said
    assert "there are no images to send" not in said


def test_images_for_a_folder_that_is_no_bundle_are_not_asked_for_either(tmp_path, capsys):
    assert cli.run(["loadtest", str(tmp_path), "--encoding", "image"]) == 2
    assert "has no bundle.json" in capsys.readouterr().err


RECIPE = """
version: 1
name: pixels
model: {source: "onnx:net.onnx"}
inputs: [{name: image, shape: [batch, 3, 8, 6]}]
data: {evaluation: {source: "imagefolder:photos", prepare: {resize: [8, 6], scale: 1/255}}}
variants: {whole: []}
"""


def told(tmp_path, monkeypatch, *shape: int):
    """What the worker is told that takes samples for a server of this input."""
    asked_for = []
    monkeypatch.setattr(
        load_options, "run", lambda _, request, *__, **___: asked_for.append(request) or 1
    )
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "photos/cat").mkdir(parents=True)
    for name in ("net.onnx", "photos/cat/1.png"):
        (tmp_path / name).write_bytes(b"x")
    server = TensorAbout("image_pixels", "UINT8", (-1, *shape))
    load_options.recipe_samples(tmp_path / "recipe.yaml", [server], tmp_path)
    return asked_for[0]


@pytest.mark.parametrize(("shape", "inside"), [((8, 6, 3), "values"), ((480, 640, 3), "all")])
def test_a_server_that_prepares_images_itself_is_sent_pixels(tmp_path, monkeypatch, shape, inside):
    request = told(tmp_path, monkeypatch, *shape)
    assert request.data.prepare.inside == inside
    (spec,) = request.inputs
    assert (spec.name, spec.dtype, spec.shape) == ("image_pixels", "uint8", ("batch", *shape))


def test_photographs_of_any_size_are_no_samples(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="photographs of any size") as caught:
        told(tmp_path, monkeypatch, -1, -1, 3)
    assert "--encoding image" in caught.value.hint
