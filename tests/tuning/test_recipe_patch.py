"""A repair's patch: the options change where they stand, and nothing else does."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tiny_project import write_images, write_model

from optcli.errors import StoreError, UsageError
from optcli.recipe import load
from optcli.tuning import patch

HEAD = """\
# top of the file
version: 1
name: tiny
model: {source: "onnx:model.onnx"}   # a file
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 4, 4], batch: {min: 1, opt: 2, max: 4}}
data:
  calibration: {source: "imagefolder:images"}
variants:
  plain:     []          # the baseline
"""
WANTED = {"ignored_names": ["/head/Conv", "Conv:7"], "types": ["Conv", "MatMul"], "method": "entropy"}
FORMS = {
    "a name in a flow list": "  small: [quantize_onnxruntime]   # why\n",
    "a name in a block list": "  small:\n    - quantize_onnxruntime   # why\n",
    "flow options": "  small: [{quantize_onnxruntime: {samples: 3, method: minmax}}]   # why\n",
    "no options": "  small:\n    passes: [{quantize_onnxruntime: {}}]   # why\n",
    "null options": "  small:\n    passes:\n      - quantize_onnxruntime:  # why\n    required: true\n",
    "block options": (
        "  small:\n    passes:\n      - quantize_onnxruntime:   # why\n"
        "          samples: 3   # few\n          method: minmax\n          # below\n"
        "    required: true\n"
    ),
    "a list to be replaced": (
        "  small:\n    - quantize_onnxruntime:   # why\n        types:\n          - Gemm\n"
        "          - Conv\n        # below\n        samples: 3\n"
    ),
}


def recipe(folder: Path, small: str, more: str = "") -> Path:
    write_images(folder / "images")
    write_model(folder / "model.onnx")
    path = folder / "recipe.yaml"
    path.write_text(f"{HEAD}{small}{more}# end\n")
    return path


def comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


@pytest.mark.parametrize("form", FORMS)
def test_only_the_options_change_and_every_comment_stays(tmp_path: Path, form: str) -> None:
    path = recipe(tmp_path, FORMS[form], "  other: [quantize_onnxruntime]\n")
    read = load(path)
    result = patch.patched(read, "small", 0, WANTED)
    before = path.read_text()
    assert path.read_text() == before, "nothing is written yet"
    assert sorted(comments(result)) == sorted(comments(before))
    path.write_text(result)
    use = load(path).variants["small"].passes[0]
    assert use.options == {**read.variants["small"].passes[0].options, **WANTED}
    assert load(path).variants["other"].passes[0].options == {}
    assert YAML(typ="safe").load(result)["model"] == {"source": "onnx:model.onnx"}


def test_the_diff_names_the_lines_that_change(tmp_path: Path) -> None:
    path = recipe(tmp_path, FORMS["flow options"])
    text = patch.difference(path, patch.patched(load(path), "small", 0, {"method": "entropy"}))
    changed = [line for line in text.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-  small: [{quantize_onnxruntime: {samples: 3, method: minmax}}]   # why",
        "+  small: [{quantize_onnxruntime: {samples: 3, method: entropy}}]   # why",
    ]


def test_many_names_are_broken_into_lines(tmp_path: Path) -> None:
    path = recipe(tmp_path, FORMS["flow options"])
    names = [f"/backbone/stage{i}/Conv" for i in range(40)]
    result = patch.patched(load(path), "small", 0, {"ignored_names": names})
    assert max(len(line) for line in result.splitlines()) < 140
    path.write_text(result)
    assert load(path).variants["small"].passes[0].options["ignored_names"] == names


def test_a_pass_that_two_variants_share_is_left_alone(tmp_path: Path) -> None:
    path = recipe(tmp_path, FORMS["flow options"], "  other: {extends: small, required: true}\n")
    with pytest.raises(UsageError, match="the variant small takes its passes from the same lines") as e:
        patch.patched(load(path), "other", 0, WANTED)
    assert "ignored_names: [/head/Conv" in e.value.hint
    assert not list(tmp_path.glob(".recipe*")), "nothing is left beside the recipe"


def test_a_pass_of_another_file_is_left_alone(tmp_path: Path) -> None:
    recipe(tmp_path, FORMS["flow options"])
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: recipe.yaml\nversion: 1\nname: mine\n")
    with pytest.raises(UsageError, match="this recipe's own file"):
        patch.patched(load(mine), "small", 0, WANTED)


def test_writing_replaces_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recipe(tmp_path, FORMS["flow options"])
    path.chmod(0o640)
    patch.write(path, "new\n")
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o640

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        patch.write(path, "newer\n")
    assert path.read_text() == "new\n"
    assert [each.name for each in tmp_path.glob(".*")] == []
