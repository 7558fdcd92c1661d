"""What layouts, metrics and targets declare decides, and their names decide nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import optcli
from optcli.accuracy import metrics, pictures
from optcli.data import layouts, two_preparations
from optcli.data.layouts.npz import Npz
from optcli.data.layouts.python import PythonData
from optcli.data.settings import DataSettings
from optcli.errors import UsageError
from optcli.pipeline.trusting import brings_python
from optcli.runners import names as runner_names
from optcli.serving import targets
from optcli.serving.prediction import of_recipe
from optcli.settings.references import PathReference, annotation_of, marks_in
from optcli.tuning import finalists

PACKAGE = Path(optcli.__file__).parent


class Stream(PythonData):
    """Code of the user's, by another name."""


class Tensors(Npz):
    """Arrays, by another name."""


@pytest.fixture
def known(monkeypatch):
    more = {"stream": Stream, "tensors": Tensors}
    find, names = layouts.find, layouts.names()
    monkeypatch.setattr(layouts, "find", lambda kind: more.get(kind) or find(kind))
    monkeypatch.setattr(layouts, "names", lambda: (*names, *more))
    return more


def role(source: str, **settings) -> DataSettings:
    return DataSettings.model_validate({"source": source, **settings})


def test_a_layout_that_runs_code_is_never_taken_for_data(known, tmp_path):
    stream = role("stream:code.py:samples")
    recipe = SimpleNamespace(data={"evaluation": stream}, accuracy=None, postprocess=None)
    assert brings_python(recipe)  # type: ignore[arg-type]
    assert not pictures.may_have(stream)
    placed = finalists._placed(stream, tmp_path)
    assert placed.source == f"stream:{tmp_path / 'code.py:samples'}"
    marks = marks_in(annotation_of(DataSettings.model_fields["source"]))
    (mark,) = [each for each in marks if isinstance(each, PathReference)]
    assert mark.code("stream:code.py:samples") == "code.py:samples"
    assert mark.moved("stream:code.py:samples", tmp_path, tmp_path.parent).startswith(
        f"stream:{tmp_path.name}/"
    )
    samples = SimpleNamespace(data=stream)
    with pytest.raises(UsageError, match="in Python of the recipe's own"):
        of_recipe._steps(samples, None, ())  # type: ignore[arg-type]


def test_a_layout_of_arrays_holds_inputs_unless_they_are_prepared(known):
    tensors, images = role("tensors:a.npz"), role("tensors:a.npz", prepare={"scale": 2.0})
    assert not pictures.may_have(tensors)
    assert pictures.may_have(images)
    assert tensors.holds_inputs
    assert not images.holds_inputs
    assert not list(two_preparations({"evaluation": role("npz:b.npz"), "calibration": images}))
    assert not tensors.layout.names_classes()
    with pytest.raises(UsageError, match="holds inputs that are prepared already"):
        of_recipe._steps(SimpleNamespace(data=tensors), None, ())  # type: ignore[arg-type]


def test_a_layout_that_can_name_classes_is_asked_for_them():
    naming = {name for name in layouts.names() if layouts.find(name).names_classes()}
    assert {"coco", "imagefolder", "parquet", "torchvision", "voc", "yolo"} <= naming
    assert not {"npz", "python"} & naming


def comparisons(text: str) -> list[tuple[int, str, str]]:
    """The texts that are compared with what is a kind, a metric, a target or a runner: with line."""
    seen = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        texts = [
            each.value
            for side in sides
            for each in ast.walk(side)
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        compared = [each for each in sides if texts and not isinstance(each, ast.Constant)]
        subjects = list(map(ast.unparse, compared))
        seen += [(node.lineno, subject, each) for subject in subjects for each in texts]
    return seen


# A training judges its held-out samples by top-1: a bar of another metric says nothing to it. The text
# of `accuracy.text` is an option of one metric, and stands in the ground, which knows no metrics.
ALLOWED = {("tuning/space.py", "top1"), ("settings/accuracy.py", "zero_shot_top1")}
# Where a kind is one of models: `optcli/sources`.
OF_MODELS = ("scaffold/", "settings/references.py")


def test_no_name_of_a_layout_a_metric_a_target_or_a_runner_decides_outside_its_module():
    owners = {
        "kind": (layouts.names(), "data/layouts"),
        "metric": (metrics.metric_names(), "accuracy/metrics"),
        "engine": (targets.names(), "serving/targets"),
        "target": (targets.names(), "serving/targets"),
        "runner_name": (runner_names(), "runners"),
    }
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for line, subject, text in comparisons(path.read_text(encoding="utf-8")):
            last = subject.rpartition(".")[2]
            names, owner = owners.get(last, ((), ""))
            allowed = (file, text) in ALLOWED or (last == "kind" and file.startswith(OF_MODELS))
            if text in names and not file.startswith(owner) and not allowed:
                wrong.append(f"{file}:{line}: {subject} is compared with {text!r}")
    assert not wrong, "\n".join(wrong)


def test_a_planted_comparison_is_seen():
    assert (1, "self.settings.kind", "npz") in comparisons('x = self.settings.kind == "npz"')
    assert (1, "engine", "ray") in comparisons('if engine in ("ray", "triton"): ...')
