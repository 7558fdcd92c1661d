"""A file that judges, such as the texts of zero-shot, is known by its content, before a build runs."""

from __future__ import annotations

import numpy as np
import pytest

from optcli.errors import InputError
from optcli.files.digest import FileDigests
from optcli.pipeline import making
from optcli.pipeline.terms import judged_by, judging_files, terms_of
from optcli.recipe import load
from optcli.store import Store

RECIPE = """
version: 1
name: clip
model: {source: "onnx:model.onnx"}
inputs: [{name: x, shape: [batch, 4]}]
data: {evaluation: "npz:data.npz"}
accuracy: {metric: zero_shot_top1, text: texts.npy}
variants: {onnx: []}
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "clip.yaml").write_text(RECIPE)
    np.save(tmp_path / "texts.npy", np.ones((3, 4)))
    np.savez(tmp_path / "data.npz", x=np.ones((3, 4)), y=np.arange(3))
    (tmp_path / "model.onnx").write_bytes(b"a network")
    return load(tmp_path / "clip.yaml")


def test_other_texts_are_other_terms_and_another_key(recipe, tmp_path):
    terms, key = terms_of(recipe, FileDigests()), judged_by(recipe, FileDigests(), ())
    assert terms_of(recipe, FileDigests()) == terms
    np.save(tmp_path / "texts.npy", 2 * np.ones((3, 4)) + np.eye(3, 4))
    assert terms_of(recipe, FileDigests()).code["accuracy.text"] != terms.code["accuracy.text"]
    assert judged_by(recipe, FileDigests(), ()) != key


def test_where_the_texts_lie_is_in_no_key(recipe, tmp_path):
    key = judged_by(recipe, FileDigests(), ())
    (tmp_path / "moved").mkdir()
    (tmp_path / "texts.npy").rename(tmp_path / "moved" / "texts.npy")
    moved = load(tmp_path / "clip.yaml", ["accuracy.text=moved/texts.npy"])
    assert judged_by(moved, FileDigests(), ()) == key


def test_texts_that_are_missing_end_a_build_before_anything_runs(recipe, tmp_path):
    (tmp_path / "texts.npy").unlink()
    with pytest.raises(InputError, match=r"no such file: texts.npy") as caught:
        making.planned(tmp_path / "clip.yaml", Store(tmp_path / "store"), (), ())
    assert caught.value.place == "accuracy.text"


def test_only_texts_are_such_files(recipe, tmp_path):
    (tmp_path / "plain.yaml").write_text(RECIPE.replace("zero_shot_top1, text: texts.npy", "top1"))
    assert judging_files(load(tmp_path / "plain.yaml")) == {}
