"""`optcli deploy` on a project that was built: the repository, bad plans, and what is in the way."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from optcli import plan
from optcli.cli import run
from optcli.results import Report
from optcli.serving import bundle
from optcli.serving.deploy import model_configuration

pytestmark = pytest.mark.usefixtures("hurried_plans")


@cache
def planned(**settings: object) -> str:
    """A plan for a curve that was given by hand."""
    asked = {"curve": "1:6ms,2:8ms,4:12ms", "rate_per_s": 250, "slo": {"p95_ms": 120}}
    return plan(**asked, **settings).to_json()


@pytest.fixture
def hand(place) -> Path:
    path = place.folder / "hand.json"
    path.write_text(planned())
    return path


@pytest.fixture
def quiet_plan(place, capsys) -> Path:
    """A plan for the curve that the build measured, which counts as measured on a quiet machine."""
    path = place.artifacts / "tiny" / "report.json"
    report = Report.load(path)
    variants = {
        name: one.model_copy(
            update={"latency": tuple(row.model_copy(update={"flags": ()}) for row in one.latency)}
        )
        for name, one in report.variants.items()
    }
    path.write_text(report.model_copy(update={"variants": variants}).to_json())
    assert run(["plan", "tiny", "--variant", "plain", "--rate", "20", "--slo", "p95=5s", "--json"]) == 0
    file = place.folder / "plan.json"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.slow
def test_a_repository_is_whole_and_says_how_to_serve_it(place, optcli, hand):
    said = optcli(
        "deploy", "plain", "--target", "triton", "--plan", hand, "--out", "repository", "--json"
    )
    assert said.code == 0, said.err
    deployed = json.loads(said.out)
    folder = place.folder / "repository"
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert deployed["files"] == files
    assert files == [
        "README.md",
        "golden-request.json",
        "golden-response.json",
        "plain/1/model.onnx",
        "plain/config.pbtxt",
        "plan.json",
    ]
    built = place.artifacts / "tiny" / "plain" / "model.onnx"
    assert (folder / "plain" / "1" / "model.onnx").read_bytes() == built.read_bytes()
    config = model_configuration.read(folder / "plain" / "config.pbtxt")
    planned = json.loads((folder / "plan.json").read_text())["recommended"]
    assert planned == json.loads(hand.read_text())["recommended"]
    assert config.max_batch_size == planned["batch"] > 1
    assert "sample a/" in deployed["golden"]
    text = (folder / "README.md").read_text()
    for command in deployed["commands"]:
        assert command in text
        assert shlex.split(command)[0] in ("docker", "curl")
    assert len(deployed["commands"]) == 3
    assert "/v2/models/plain/infer" in deployed["commands"][2]
    assert "@golden-request.json" in deployed["commands"][2]
    assert any("not on what this build measured" in note for note in deployed["notes"])


@pytest.mark.slow
def test_a_name_of_its_own_and_words_for_people(place, optcli, hand):
    said = optcli(
        "deploy", "copied", "tiny", "--target", "triton", "--plan", hand, "--name", "digits.v2"
    )
    assert said.code == 0, said.err
    assert "The model digits.v2 lies in copied-triton, 6 files: README.md has" in said.out
    assert "\n  the plan rests on the curve" in said.out
    folder = place.folder / "copied-triton"
    assert model_configuration.read(folder / "digits.v2" / "config.pbtxt").name == "digits.v2"
    assert json.loads((folder / "golden-response.json").read_text())["model_name"] == "digits.v2"


@pytest.mark.slow
def test_the_plan_of_the_very_build_is_taken_without_doubt(place, optcli, quiet_plan):
    said = optcli("deploy", "plain", "--target", "triton", "--plan", quiet_plan, "--json")
    assert said.code == 0, said.err
    assert not any("curve" in note for note in json.loads(said.out)["notes"])


@pytest.mark.slow
def test_a_plan_of_another_measurement_is_refused_unless_forced(place, optcli, quiet_plan):
    said = optcli("deploy", "copied", "--target", "triton", "--plan", quiet_plan)
    assert said.code == 2
    assert "the plan rests on the table of plain in tiny" in said.err
    assert "for copied" in said.err
    assert "--variant copied" in said.err
    assert not (place.folder / "copied-triton").exists()
    said = optcli("deploy", "copied", "--target", "triton", "--plan", quiet_plan, "--force", "--json")
    assert said.code == 0, said.err
    assert "the predictions are not of this artifact" in " ".join(json.loads(said.out)["notes"])


@pytest.mark.slow
def test_a_plan_of_a_busy_machine_is_inconclusive_unless_forced(place, optcli, hand):
    plan = json.loads(hand.read_text()) | {"outcome": "inconclusive"}
    hand.write_text(json.dumps(plan))
    said = optcli("deploy", "plain", "--target", "triton", "--plan", hand)
    assert said.code == 5
    assert "the plan is inconclusive" in said.err
    assert not (place.folder / "plain-triton").exists()
    said = optcli("deploy", "plain", "--target", "triton", "--plan", hand, "--force")
    assert said.code == 0, said.err
    assert "busy machine: its figures decide nothing" in said.out


@pytest.mark.slow
def test_without_a_plan_the_recipe_promises(place, optcli, quiet_plan):
    recipe = place.folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "slo: {p95_ms: 5000, rate_per_s: 20}\n")
    said = optcli("deploy", "plain", recipe, "--target", "triton", "--json")
    assert said.code == 0, said.err
    deployed = json.loads(said.out)
    assert "of 5000 ms at 20" in deployed["sentence"]
    plan = json.loads((place.folder / "plain-triton" / "plan.json").read_text())
    assert plan["asked"]["variant"] == "plain"
    assert plan["curve"]["source"] == "the table of plain in tiny"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slo", "lacks"),
    [("", "`slo`"), ("slo: {p95_ms: 9}\n", "rate_per_s"), ("slo: {rate_per_s: 9}\n", "p50_ms")],
)
def test_without_a_plan_and_a_promise_it_says_which_command_gives_one(place, optcli, slo, lacks):
    recipe = place.folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + slo)
    said = optcli("deploy", "plain", recipe, "--target", "triton")
    assert said.code == 2
    assert f"it has no {lacks}" in said.err
    assert "optcli plan recipe.yaml --variant plain" in said.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("plane",), "has no variant 'plane'", "did you mean 'plain'?"),
        (("plain", "--name", "a/b"), "a model of Triton cannot be called 'a/b'", "letters"),
        (("plain", "--out", "full"), "full: this folder is not empty", "--out"),
        (("plain", "--out", "recipe.yaml"), "recipe.yaml: this is a file", "--out"),
        (("plain", "--plan", "gone.json"), "gone.json: there is no such file", "optcli plan"),
    ],
)
def test_bad_input_is_one_sentence_with_a_hint_and_loses_nothing(
    place, optcli, hand, arguments, message, hint
):
    full = place.folder / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    given = arguments if "--plan" in arguments else (*arguments, "--plan", hand)
    said = optcli("deploy", *given, "--target", "triton")
    assert said.code == 2
    assert message in said.err
    assert hint in said.err
    assert (full / "mine.txt").read_text() == "mine"
    assert not [path for path in place.folder.iterdir() if path.name.startswith(".full-")]


@pytest.mark.slow
def test_a_batch_beyond_the_model_leaves_nothing_behind(place, optcli, hand):
    plan = json.loads(hand.read_text())
    plan["recommended"]["batch"] = 9
    hand.write_text(json.dumps(plan))
    before = sorted(place.folder.iterdir())
    said = optcli("deploy", "plain", "--target", "triton", "--plan", hand)
    assert said.code == 2
    assert "batches of up to 9, and the model takes 1 to 4" in said.err
    assert sorted(place.folder.iterdir()) == before


@pytest.mark.slow
def test_a_changed_artifact_is_refused(place, optcli, hand):
    model = place.artifacts / "tiny" / "plain" / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    said = optcli("deploy", "plain", "--target", "triton", "--plan", hand)
    assert said.code == 2
    assert "are not those that the report speaks of" in said.err


@pytest.mark.slow
def test_an_empty_folder_is_taken(place, optcli, hand):
    (place.folder / "empty").mkdir()
    said = optcli("deploy", "plain", "--target", "triton", "--plan", hand, "--out", "empty")
    assert said.code == 0, said.err
    assert (place.folder / "empty" / "plain" / "config.pbtxt").is_file()


@pytest.fixture
def sealed(place) -> Path:
    """A plan for the batches of Ray Serve."""
    path = place.folder / "sealed.json"
    path.write_text(planned(target="ray", batch=4))
    return path


@pytest.mark.slow
def test_a_bundle_for_ray_is_whole_and_says_how_to_start_it(place, optcli, sealed):
    said = optcli("deploy", "plain", "--target", "ray", "--plan", sealed, "--out", "deployed", "--json")
    assert said.code == 0, said.err
    deployed, folder = json.loads(said.out), place.folder / "deployed"
    assert deployed["engine"] == "ray"
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert deployed["files"] == files
    made = bundle.read(folder)
    assert (made.model, made.recipe.name, made.largest_batch) == ("plain", "tiny", 4)
    samples, expected = (dict(np.load(folder / f"{name}.npz")) for name in ("samples", "expected"))
    assert list(samples) == [tensor.name for tensor in made.inputs]
    assert list(expected) == [tensor.name for tensor in made.outputs]
    assert {len(array) for array in (samples | expected).values()} == {
        len(next(iter(samples.values())))
    }
    first = json.loads((folder / "golden-request.json").read_text())["inputs"][0]
    assert np.ravel(next(iter(samples.values()))[0]).tolist() == first["data"]
    text = (folder / "README.md").read_text()
    for command in deployed["commands"]:
        assert command in text
    assert deployed["commands"][0] == "python launch.py --port 8000"
    assert "no authentication and no TLS" in text


@pytest.mark.slow
def test_ray_plans_for_sealed_batches_by_itself(place, optcli, quiet_plan):
    recipe = place.folder / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "slo: {p95_ms: 5000, rate_per_s: 20}\n")
    said = optcli("deploy", "plain", recipe, "--target", "ray", "--json")
    assert said.code == 0, said.err
    plan = json.loads((place.folder / "plain-ray" / "plan.json").read_text())
    assert (plan["recommended"]["semantics"], plan["target"]) == ("sealed", "ray")
    assert json.loads(said.out)["sentence"] == plan["sentence"]


@pytest.mark.slow
def test_ray_makes_a_plan_for_triton_again_and_refuses_a_wait_that_is_too_short(
    place, optcli, hand, sealed
):
    said = optcli("deploy", "plain", "--target", "ray", "--plan", hand, "--out", "again")
    assert said.code == 0, said.err
    assert "the plan was for Triton, and was made again for Ray Serve" in said.out
    assert json.loads((place.folder / "again" / "plan.json").read_text())["target"] == "ray"
    plan = json.loads(sealed.read_text())
    plan["recommended"] |= {"least_wait_ms": 30.0, "wait_ms": 40.0}
    sealed.write_text(json.dumps(plan))
    asked = ("deploy", "plain", "--target", "ray", "--plan", sealed, "--wait", "10ms")
    said = optcli(*asked)
    assert said.code == 2
    assert "--wait: a wait of 10 ms is too short" in said.err
    assert not (place.folder / "plain-ray").exists()
    said = optcli(*asked, "--force", "--json")
    assert said.code == 0, said.err
    assert bundle.read(place.folder / "plain-ray").wait_ms == 10
    assert "so that requests queue" in " ".join(json.loads(said.out)["notes"])


@pytest.mark.slow
def test_only_ray_takes_another_wait(place, optcli, hand):
    said = optcli("deploy", "plain", "--target", "triton", "--plan", hand, "--wait", "10ms")
    assert said.code == 2
    assert "--target triton takes the plan's wait" in said.err


def test_torchserve_says_what_to_use(optcli):
    said = optcli("deploy", "plain", "--target", "torchserve")
    assert said.code == 2
    assert "TorchServe is archived" in said.err
    assert "--target triton" in said.err


@pytest.mark.slow
def test_without_tritonclient_it_says_how_to_get_it(place, optcli, hand, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    said = optcli("deploy", "plain", "--target", "triton", "--plan", hand)
    assert said.code == 3
    assert "pip install aiohttp prometheus-client" in said.err
