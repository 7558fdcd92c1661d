"""Which output holds scores of classes, by recipes, by bundles and by both servers of a canary."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_loadtest_parts import IMAGE

from optcli.outputs import Exported
from optcli.pipeline.decoding import Decoding
from optcli.pipeline.model_files.built_variant import Samples
from optcli.results.loadtest import Served
from optcli.serving.bundle import Bundle, BundleTensor
from optcli.serving.deploy import ray_bundle
from optcli.serving.loadtest import canary, endpoint
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.loadtest.load_options import Options
from optcli.serving.prediction import of_recipe
from optcli.settings.postprocess import PostprocessSettings

DETECTOR = Decoding(PostprocessSettings.model_validate({"boxes": {"scores": "scores"}}), "recipe")
CLASSIFIER = Decoding(None, "unknown", Exported("classify", ("cat", "dog")))


@pytest.mark.parametrize(
    ("said", "answers_classes", "name"),
    [
        ({}, False, None),
        ({}, True, "first"),
        ({"metric": "top1"}, False, "first"),
        ({"metric": "top5", "output": "second"}, False, "second"),
        ({"metric": "python:error.py:Error"}, True, None),  # a regressor that answers images
        ({"metric": "python:error.py:Error", "class_names": ("cat", "dog")}, False, None),
        ({"metric": "calibration_error"}, False, "first"),
        ({"metric": "miou"}, False, None),
        ({"metric": "zero_shot_top1"}, True, None),
        ({"metric": "knn"}, True, None),
        ({"metric": "multilabel_map", "output": "second"}, True, None),
        ({"class_names": ("cat", "dog")}, False, "first"),
        ({"class_names": ("cat", "dog"), "decoding": DETECTOR}, False, None),
        ({"metric": "map", "decoding": DETECTOR}, False, None),
        ({"decoding": replace(DETECTOR, source="metadata")}, True, None),
        ({"decoding": CLASSIFIER}, False, "first"),
    ],
)
def test_the_recipe_says_which_output_holds_scores_of_classes(said, answers_classes, name):
    found = of_recipe.class_scores_of(
        Samples(**said), ["first", "second"], answers_classes=answers_classes
    )
    assert found == name


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (None, None, set()),  # two URLs
        (("scores",), None, {"scores"}),
        (None, ("scores",), {"scores"}),
        (("scores",), ("scores",), {"scores"}),
        ((), ("scores",), set()),  # the released bundle says that there are none
        (("scores",), (), set()),
    ],
)
def test_both_bundles_of_a_canary_must_say_it(first, second, names):
    bare = Endpoint(Served(url="http://x", model="m"), (IMAGE,), ("scores",))
    drivers = [SimpleNamespace(endpoint=replace(bare, class_scores=each)) for each in (first, second)]
    assert set(canary._class_scores(drivers, Options())) == names


@pytest.mark.parametrize(
    ("scores", "names"), [("scores", ("scores",)), (None, ()), ("unsaid", None), ("odd", ())]
)
def test_a_server_says_it_at_its_url(scores, names, monkeypatch):
    tensors = [BundleTensor(name=each, datatype="FP32", shape=(-1, 2)) for each in ("scores", "boxes")]
    known = {"model": "m", "platform": "x", "inputs": tensors, "outputs": tensors}
    about = ray_bundle._metadata(Bundle.model_construct(**known, class_scores=scores))
    for each in about["outputs"]:
        if scores == "unsaid":  # as another server answers
            del each["parameters"]
        elif scores == "odd":
            each["parameters"] = {"class_scores": "yes"}
    monkeypatch.setattr(endpoint, "_require_ready", lambda base, wait_s: None)
    monkeypatch.setattr(endpoint, "_json", lambda base, page: about)
    assert endpoint.asked("http://127.0.0.1:1", "m").class_scores == names
