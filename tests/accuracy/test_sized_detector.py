"""A detector that is told the size of the original image: built, evaluated and asked, all for real."""

from pathlib import Path

import numpy as np
import pytest
import sized_detector

from optcli.data.images import Images
from optcli.outputs.postprocess import Postprocess
from optcli.pipeline.building import build
from optcli.pipeline.model_files.built_variant import open_built
from optcli.serving.inference import ProbeRequest, probe
from optcli.serving.inference.answering import Answering
from optcli.serving.inference.listing import Stored
from optcli.serving.prediction.of_recipe import image_serving
from optcli.store import Store

pytestmark = pytest.mark.slow


def answers(built, folder):
    """The boxes of every image, as `optcli infer` finds them."""
    request = ProbeRequest(
        built.artifact,
        built.runner_name,
        built.options,
        built.inputs,
        (built.inputs[0].concrete(1)[0],),
        0,
        timed=False,
    )
    told = image_serving(built, probe(request, None).outputs)
    images = [Stored(path.name, str(path)) for path in sorted((folder / "set" / "images").iterdir())]
    with built.runner.open(built.artifact, built.inputs) as model:
        answering = Answering(
            model,
            built.inputs,
            Images(told.images),
            Postprocess(told.postprocess),
            batch_size=built.inputs[0].batch_range().max,
            readers=1,
        )
        found = answering.answer(images, lambda image: Path(image.path).read_bytes())
    assert not found.failures
    return [row["boxes"][0]["box"] for row in found.rows]


@pytest.mark.parametrize(
    "settings",
    [
        {"value": "original_size_wh"},
        {"value": "original_size_wh", "rows": 1, "whole": True},
    ],
    ids=["by image", "without a batch"],
)
def test_it_is_built_judged_and_asked(tmp_path, settings):
    recipe = sized_detector.write_project(tmp_path, **settings)
    report = build(recipe, store=tmp_path / "store", artifacts=tmp_path / "artifacts")
    for name in ("plain", "optimized"):
        variant = report.variants[name]
        assert variant.status == "built"
        assert variant.accuracy.value == pytest.approx(1.0)
        assert variant.latency[0].p50_ms.value > 0
    path = tmp_path / "artifacts" / "sized" / "report.json"
    built = open_built("optimized", report, path, store=Store(tmp_path / "store"))
    boxes = [box for _, box in sized_detector.IMAGES]
    assert np.allclose(answers(built, tmp_path), boxes, atol=1e-3)
