"""What `deploy --images`, `--cache` and `--sample-inputs` write, and only where they are asked for."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_variants import IMAGE, onnx_model, variant

import optcli
from optcli.artifact import Format
from optcli.cli import run
from optcli.data import DataSettings
from optcli.errors import UsageError
from optcli.pipeline.model_files.built_variant import Samples
from optcli.results import RecipeSummary, Report
from optcli.results.plan import Plan
from optcli.serving import bundle
from optcli.serving import deploy as deploying
from optcli.serving.drift.input_statistics import unpacked
from optcli.serving.targets import DeployOptions

pytestmark = pytest.mark.usefixtures("hurried_plans")

ANSWERS = {"postprocess.py", "instances.py", "suppression.py"}
MODULES = {*ANSWERS, "images.py", "image_endpoint.py", "cache.py", "images.json", "cache.json"}
KEEPING = {"keeping.py", "input_statistics.py", "reference-inputs.npz"}


@cache
def planned(engine: str) -> Plan:
    return optcli.plan(curve="1ms+1ms*b", rate_per_s=50, slo={"p95_ms": 100}, batch=4, target=engine)


def deployed(folder: Path, engine: str, *, metric: str | None = None, **asked: Any) -> Any:
    """A small variant with a photograph as its data, deployed into `out`."""
    onnx_model(folder / "model", {"image": ["batch", 3, 4, 4]})
    (folder / "set" / "cat").mkdir(parents=True)
    values = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(values).save(folder / "set" / "cat" / "one.jpg")
    settings = DataSettings.model_validate({"source": "imagefolder:set", "prepare": {"resize": [4, 4]}})
    built = replace(
        variant(folder / "model", Format.ONNX, IMAGE),
        samples=Samples(data=settings, folder=folder, roles={"evaluation": settings}, metric=metric),
    )
    (folder / "plan.json").write_text(planned(engine).to_json())
    report = Report.model_construct(recipe=RecipeSummary.model_construct(name="r", path="r.yaml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploying, "open_built", lambda *_, **__: built)
        return deploying.deploy(
            "small",
            report,
            folder / "report.json",
            folder / "out",
            engine=engine,
            plan=folder / "plan.json",
            name="net",
            options=DeployOptions(**asked),
        )


@pytest.mark.slow
def test_a_bundle_without_them_holds_none_of_it(tmp_path: Path) -> None:
    made = deployed(tmp_path, "ray")
    assert not (MODULES | KEEPING) & {*made.files}
    written = bundle.read(tmp_path / "out")
    assert (written.images, written.cache, written.sample_inputs) == (False, None, 0)
    assert written.class_scores is None
    requirements = (tmp_path / "out" / "requirements.txt").read_text()
    assert "pillow" not in requirements
    assert "redis" not in requirements


@pytest.mark.slow
def test_a_bundle_says_which_output_holds_scores_of_classes(tmp_path: Path) -> None:
    deployed(tmp_path, "ray", metric="top1")
    assert bundle.read(tmp_path / "out").class_scores == "logits"


@pytest.mark.slow
def test_a_bundle_with_a_cache_alone(tmp_path: Path) -> None:
    made = deployed(tmp_path, "ray", cache="memory", cache_ttl_s=5.0)
    assert MODULES & {*made.files} == {"cache.py", "cache.json"}
    assert bundle.read(tmp_path / "out").cache == "memory"
    assert json.loads((tmp_path / "out" / "cache.json").read_text())["ttl_s"] == 5
    assert len(made.commands) == 3


@pytest.mark.slow
def test_a_bundle_that_keeps_statistics(tmp_path: Path) -> None:
    made = deployed(tmp_path, "ray", sample_inputs=100)
    assert (MODULES | KEEPING) & {*made.files} == KEEPING
    assert bundle.read(tmp_path / "out").sample_inputs == 100
    found = unpacked((tmp_path / "out" / "reference-inputs.npz").read_bytes())
    (row,) = found.reference[0]
    pixels = np.asarray(
        Image.open(tmp_path / "set" / "cat" / "one.jpg").resize((4, 4), Image.Resampling.BILINEAR)
    )
    # The preparation of the recipe came first: an image of 4 by 4 pixels, its channels in front.
    np.testing.assert_allclose(row[:3], pixels.reshape(-1, 3).mean(0), atol=1)
    assert found.about["reference"]["role"] == "evaluation"
    assert "each replica keeps statistics of 100 inputs a day" in " ".join(made.notes)
    assert "1 sample of the evaluation data" in " ".join(made.notes)


@pytest.mark.slow
def test_a_bundle_with_images(tmp_path: Path) -> None:
    made = deployed(tmp_path, "ray", images=True)
    assert MODULES & {*made.files} == MODULES - {"cache.py", "cache.json"}
    assert bundle.read(tmp_path / "out").images
    assert bundle.read(tmp_path / "out").class_scores == "logits"
    assert bundle.read(tmp_path / "out").most_body_bytes == 32 * 1024 * 1024
    out = tmp_path / "out"
    assert (out / "golden-image.jpg").read_bytes() == (
        tmp_path / "set" / "cat" / "one.jpg"
    ).read_bytes()
    answer = json.loads((out / "golden-answer.json").read_text())
    assert [each["name"] for each in answer["classes"]] == ["cat"]
    words = shlex.split(made.commands[-1])
    assert words[-2:] == ["@golden-image.jpg", "localhost:8000/v2/models/net/images"]
    assert made.commands[-1] in (out / "README.md").read_text()


@pytest.mark.slow
def test_a_repository_with_an_ensemble(tmp_path: Path) -> None:
    made = deployed(tmp_path, "triton", images=True)
    assert {*made.files} == {
        "Dockerfile",
        "README.md",
        "golden-answer.json",
        "golden-image.jpg",
        "golden-request.json",
        "golden-response.json",
        "net-answer/1/model.py",
        "net-answer/1/postprocess.json",
        *(f"net-answer/1/{name}" for name in ANSWERS),
        "net-answer/config.pbtxt",
        "net-images/1/.keep",
        "net-images/config.pbtxt",
        "net-prepare/1/images.json",
        "net-prepare/1/images.py",
        "net-prepare/1/model.py",
        "net-prepare/config.pbtxt",
        "net/1/model.onnx",
        "net/config.pbtxt",
        "plan.json",
        "send_image.py",
    }
    assert shlex.split(made.commands[0]) == ["docker", "build", "-t", "net-images-server", "."]
    assert "net-images-server tritonserver" in made.commands[1]
    assert made.commands[-1] == "python send_image.py net-images golden-image.jpg"


@pytest.mark.slow
def test_what_cannot_be_carried_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cache"):
        deployed(tmp_path / "a", "ray", cache="file:cache")
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    built = variant(tmp_path / "model", Format.ONNX, IMAGE)  # no data, so no preparation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploying, "open_built", lambda *_, **__: built)
        (tmp_path / "plan.json").write_text((tmp_path / "a" / "plan.json").read_text())
        report = Report.model_construct(recipe=RecipeSummary.model_construct(name="r", path="r.yaml"))
        with pytest.raises(UsageError, match="how an image becomes an input is not known"):
            deploying.deploy(
                "small",
                report,
                tmp_path / "report.json",
                tmp_path / "out",
                engine="ray",
                plan=tmp_path / "plan.json",
                options=DeployOptions(images=True),
            )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "hint"), [({"cache": "memory"}, "add --images"), ({"images": True}, "add --cache memory")]
)
def test_known_answers_want_images_and_a_cache(
    tmp_path: Path, asked: dict[str, Any], hint: str
) -> None:
    with pytest.raises(UsageError, match="known answers are for images") as caught:
        deployed(tmp_path, "ray", known_answers="answers", **asked)
    assert caught.value.hint == hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "kserve", "--images"], "have no Python for images"),
        (["--target", "triton", "--cache", "memory"], "writes no cache for --target triton"),
        (["--target", "ray", "--cache-ttl", "1h"], "there is no cache"),
        (["--target", "triton", "--known-answers", "out"], "writes no cache for --target triton"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["deploy", "small", *arguments]) == 2
    assert message in capsys.readouterr().err
