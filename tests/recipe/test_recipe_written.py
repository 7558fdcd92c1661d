"""What makes one recipe of several texts: extends, --set, matrix and placeholders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from needs import imported

from optcli.errors import RecipeError
from optcli.recipe import Recipe, load, schema

Loaded = Callable[..., Recipe]
MATRIX = """
matrix:
  ov-${threads}t-${preset}:
    over: {threads: [1, 2], preset: [mixed, performance]}
    variant:
      passes: [export_onnx, to_openvino, {quantize_nncf: {preset: "${preset}"}}]
      runner: {name: openvino, threads: "${threads}"}
"""


def said(call: Callable[[], object]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        call()
    return [str(problem) for problem in caught.value.problems]


# extends


def test_a_recipe_changes_what_it_extends_and_keeps_the_rest(folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "extends: recipe.yaml\nname: mine\nlatency: {batch_sizes: [4]}\n"
        "variants: {onnx-int8: {runner: onnxruntime}, fresh: [export]}\n"
    )
    recipe = load(folder / "mine.yaml")
    assert recipe.name == "mine"
    assert recipe.extends == "recipe.yaml"
    assert recipe.latency.batch_sizes == (4,)
    assert recipe.latency.threads == 2
    int8 = recipe.variants["onnx-int8"]
    assert [use.name for use in int8.passes] == ["export_onnx", "quantize_nncf"]
    assert int8.runner is not None
    assert list(recipe.variants) == ["eager", "onnx", "onnx-int8", "ov", "fresh"]


def test_paths_of_an_extended_recipe_stay_where_they_were(folder: Path) -> None:
    text = (folder / "recipe.yaml").read_text()
    text = text.replace("onnx: [export_onnx]", "onnx: ['./mine.py:MyPass', MyPass]")
    (folder / "recipe.yaml").write_text(text + "plugins: [mine.py:MyPass]\n")
    (folder / "below").mkdir()
    (folder / "below" / "child.yaml").write_text("extends: [../recipe.yaml]\nname: child\n")
    recipe = load(folder / "below" / "child.yaml")
    assert recipe.folder == folder / "below"
    assert recipe.model.weights.file == "../digits.safetensors"
    assert recipe.model.source == "net:digits"
    assert recipe.data["evaluation"].source == "npz:../digits.npz"
    assert [use.reference for use in recipe.variants["onnx"].passes] == ["../mine.py:MyPass"] * 2


def test_a_problem_names_the_file_that_it_stands_in(folder: Path) -> None:
    (folder / "mine.yaml").write_text("extends: recipe.yaml\nseed: x\n")
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("preset: mixed", "preset: mxed"))
    own, parent = said(lambda: load(folder / "mine.yaml"))
    assert own.startswith(f"{folder / 'mine.yaml'}:2:7: seed: found 'x'")
    assert parent.startswith(f"{folder / 'recipe.yaml'}:24:19: quantize_nncf.preset")


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("a.yaml", "the recipe extends itself: a.yaml -> a.yaml"),
        ("b.yaml", "the recipe extends itself: a.yaml -> b.yaml -> a.yaml"),
        ("recpie.yaml", "did you mean 'recipe.yaml'?"),
        ("[3]", "extends[0]: found 3 (a number), wanted text"),
    ],
)
def test_extends_that_leads_nowhere(extends: str, message: str, folder: Path) -> None:
    (folder / "b.yaml").write_text("extends: a.yaml\n")
    base = (folder / "recipe.yaml").read_text()
    (folder / "a.yaml").write_text(f"{base}extends: {extends}\n")
    (problem,) = said(lambda: load(folder / "a.yaml"))
    assert message in problem


def test_a_parent_that_cannot_be_read_is_the_only_problem(folder: Path) -> None:
    (folder / "mine.yaml").write_text("extends: [gone.yaml, empty.yaml]\nname: mine\n")
    (folder / "empty.yaml").write_text("")
    gone, empty = said(lambda: load(folder / "mine.yaml"))
    assert gone.startswith(f"{folder / 'mine.yaml'}:1:11: there is no file")
    assert empty.startswith(f"{folder / 'empty.yaml'}:1:1: the recipe is empty")


def test_null_removes_what_is_extended(folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "extends: recipe.yaml\nname: mine\naccuracy: null\nmodel: {weights: null}\n"
        "variants: {ov: null, fast: {extends: slow, runner: null},\n"
        "  slow: {passes: [export_onnx], runner: openvino}}\n"
    )
    recipe = load(folder / "mine.yaml")
    assert recipe.accuracy is None
    assert recipe.model.weights is None
    assert "ov" not in recipe.variants
    assert recipe.variants["fast"].runner is None
    assert recipe.variants["slow"].runner is not None


def test_without_batch_sizes_the_smallest_that_the_model_takes_is_measured(loaded: Loaded) -> None:
    written = ("latency: {mode: quick, batch_sizes: [1, 8], threads: 2}", "latency: {threads: 2}")
    assert loaded(written).latency.batch_sizes == (1,)
    fixed = ("shape: [batch, 1, 8, 8], batch: {min: 1, opt: 8, max: 64}", "shape: [4, 1, 8, 8]")
    assert loaded(written, fixed).latency.batch_sizes == (4,)


# --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("latency.batch_sizes=[1,4]", lambda r: r.latency.batch_sizes == (1, 4)),
        ("slo=null", lambda r: r.slo is None),
        ("data.calibration.samples=null", lambda r: r.data["calibration"].samples is None),
        ("variants.ov=null", lambda r: "ov" not in r.variants),
        ("variants.ov.runner.threads=4", lambda r: r.variants["ov"].runner.configured.threads == 4),
        ("variants.onnx.runner.threads=4", None),
        ("variants.onnx.runner=openvino", lambda r: r.variants["onnx"].runner.name == "openvino"),
        (
            "variants.onnx-int8.passes.1.quantize_nncf.preset=performance",
            lambda r: r.variants["onnx-int8"].passes[1].options == {"preset": "performance"},
        ),
        (
            "variants.onnx.passes.export_onnx.opset=18",
            lambda r: r.variants["onnx"].passes[0].configured.opset == 18,
        ),
        ("variants.new=[export]", lambda r: r.variants["new"].passes[0].name == "export"),
        ("slo.p50_ms=3", lambda r: r.slo.p50_ms == 3 and r.slo.p99_ms == 50),
        ("seed=7", lambda r: r.seed == 7),
        ("name=1.0", lambda r: r.name == "1.0"),
        ("model.arguments.width=2", lambda r: r.model.arguments == {"width": 2}),
        ("inputs.0.batch.max=16", lambda r: r.inputs[0].batch_range().max == 16),
        ("accuracy=", None),
    ],
)
def test_set_replaces_one_value(
    text: str, value: Callable[[Recipe], bool] | None, loaded: Loaded
) -> None:
    if value is None:
        (problem,) = said(lambda: loaded(overrides=(text,)))
        assert problem.startswith(f"--set {text}: ")
    else:
        assert value(loaded(overrides=(text,)))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("latency.batch_size=[1]", "unknown key 'batch_size' in latency", "'batch_sizes'"),
        ("latncy.threads=1", "unknown key 'latncy'", "'latency'"),
        ("variants.onx.runner=torch", "there is no variant 'onx'", "'onnx'"),
        ("variants.onnx.passes.3={}", "has 1 items, found position 3", "from 0"),
        ("variants.onnx.passes.0.export.x=1", "is 'export_onnx', found 'export'", "0.export_onnx"),
        ("name.first=x", "is 'digits' and has no 'first'", "set 'name'"),
        ("latency.threads=two", "found 'two' (text), wanted a whole number", "whole number"),
        ("latency.batch_sizes=[1,", "syntax", "close"),
        ("latency", "wanted KEY=VALUE", "--set"),
        ("sloo=null", "no 'sloo' to remove", "slo"),
        ("extends=x.yaml", "cannot be set", "recipe"),
    ],
)
def test_set_that_is_wrong_names_itself(text: str, message: str, hint: str, loaded: Loaded) -> None:
    (problem,) = said(lambda: loaded(overrides=(text,)))
    first, second = problem.split("\n")
    assert first.startswith(f"--set {text}: ")
    assert message in first
    assert hint in second


# matrix


def test_a_matrix_writes_a_variant_for_every_combination(loaded: Loaded) -> None:
    recipe = loaded(("baseline: eager", f"baseline: eager{MATRIX}"))
    made = [name for name in recipe.variants if name.startswith("ov-")]
    assert made == ["ov-1t-mixed", "ov-1t-performance", "ov-2t-mixed", "ov-2t-performance"]
    variant = recipe.variants["ov-2t-mixed"]
    assert variant.runner is not None
    assert variant.runner.configured.threads == 2
    assert variant.passes[2].options == {"preset": "mixed"}


def test_a_matrix_alone_is_enough(loaded: Loaded, folder: Path) -> None:
    loaded()
    text = (folder / "recipe.yaml").read_text().split("baseline:")[0] + MATRIX
    (folder / "recipe.yaml").write_text(text)
    assert load(folder / "recipe.yaml").baseline == "ov-1t-mixed"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("[1, 2]", "[1, two]", "threads: found 'two' (text), wanted a whole number", "number"),
        ("[1, 2]", "1", "threads: found 1, wanted a list", "[1, 2]"),
        ("ov-${threads}t", "ov", "does not contain ${threads}", "-${threads}"),
        ("ov-${threads}t-${preset}", "ov-${threads}t${preset}x", None, None),
        ('"${threads}"', '"${thread}"', "thread is not set", "'threads'"),
        ("    variant:", "    varaint:", "'varaint'", "'variant'"),
        ("to_openvino, {", "to_openvno, {", "unknown pass 'to_openvno'", "'to_openvino'"),
        ("[1, 2]", "[1, 1]", "a variant 'ov-1t-mixed' twice", "differ"),
        ("ov-${threads}t-${preset}", "../${threads}-${preset}", "valid for a folder", "letters"),
    ],
)
def test_a_matrix_that_is_wrong(
    old: str, new: str, message: str | None, hint: str | None, loaded: Loaded
) -> None:
    matrix = MATRIX.replace(old, new)
    assert matrix != MATRIX
    if message is None:
        assert "ov-1tmixedx" in loaded(("baseline: eager", f"baseline: eager{matrix}")).variants
        return
    problems = said(lambda: loaded(("baseline: eager", f"baseline: eager{matrix}")))
    if "varaint" in new:  # a typo of a key that is needed is two things: one unknown, one missing
        assert len(problems) == 2
    else:
        assert len(problems) == 1
    assert any(message in problem and hint in problem for problem in problems if hint)


def test_a_name_that_is_taken_already(loaded: Loaded) -> None:
    matrix = "\nmatrix:\n  on${x}:\n    over: {x: [nx]}\n    variant: []\n"
    (problem,) = said(lambda: loaded(("baseline: eager", f"baseline: eager{matrix}")))
    assert "'onnx', which variants has already" in problem


def test_a_matrix_that_writes_too_many_is_refused(loaded: Loaded) -> None:
    over = ", ".join(f"{name}: [1, 2, 3, 4]" for name in "abcdefgh")
    key = "-".join(f"${{{name}}}" for name in "abcdefgh")
    matrix = f"\nmatrix:\n  m{key}:\n    over: {{{over}}}\n    variant: []\n"
    (problem,) = said(lambda: loaded(("baseline: eager", f"baseline: eager{matrix}")))
    assert "more than 200 variants" in problem


# placeholders


def test_placeholders_take_the_environment_or_their_default(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREADS", "3")
    monkeypatch.setenv("NAME", "1.0")
    monkeypatch.setenv("EMPTY", "")
    recipe = loaded(
        ("name: digits", "name: ${NAME}"),
        ("8], threads: 2", '8], threads: "${THREADS}"'),
        ("rate_per_s: 200", 'rate_per_s: "${RATE:-100}"'),
        ("weights: digits.safetensors", "weights: ${FOLDER:-.}/digits.${EMPTY:-safetensors}"),
        ("    gate: true", '    gate: "${GATE:-true}"'),
    )
    assert recipe.name == "1.0"
    assert recipe.latency.threads == 3
    assert recipe.slo is not None
    assert recipe.slo.rate_per_s == 100
    assert recipe.model.weights.file == "./digits.safetensors"
    assert recipe.variants["onnx-int8"].gate


def test_two_dollars_are_one(loaded: Loaded) -> None:
    edit = ("  weights: digits", "  arguments: {a: 5$$, b: $x, c: '$${HOME}'}\n  weights: digits")
    assert loaded(edit).model.arguments == {"a": "5$", "b": "$x", "c": "${HOME}"}


def test_set_may_hold_a_placeholder(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "5")
    assert loaded(overrides=("seed=${SEED}",)).seed == 5
    (problem,) = said(lambda: loaded(overrides=("seed=${OPTCLI_UNSET}",)))
    assert problem.startswith("--set seed=${OPTCLI_UNSET}: ")


def test_a_variable_that_says_null_removes_nothing(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "null")
    assert loaded(overrides=("name=${NAME}",)).name == "null"


def test_what_is_set_in_a_matrix_takes_the_names_of_the_matrix(loaded: Loaded) -> None:
    text = "matrix.ov-${threads}t-${preset}.variant.runner.hint=${hint:-throughput}"
    threads = "matrix.ov-${threads}t-${preset}.variant.runner.threads=${threads}"
    recipe = loaded(("baseline: eager", f"baseline: eager{MATRIX}"), overrides=(text, threads))
    runner = recipe.variants["ov-2t-mixed"].runner
    assert runner is not None
    assert runner.configured.model_dump() == {"threads": 2, "hint": "throughput", "device": "CPU"}


# the schema


def test_the_schema_knows_every_pass_and_runner_with_its_options(fakes: None) -> None:
    found = schema()
    defs = found["$defs"]
    with_options = defs["Pass"]["anyOf"][2]["properties"]
    assert {"quantize_nncf", "export_onnx"} <= with_options.keys()
    quantize = defs[with_options["quantize_nncf"]["$ref"].rpartition("/")[2]]
    assert quantize["description"] == "Quantizes."
    assert quantize["additionalProperties"] is False
    assert {"preset", "samples", "ignored"} == quantize["properties"].keys()
    names = [one["properties"]["name"] for one in defs["Runner"]["anyOf"] if "properties" in one]
    assert {"const": "openvino"} in names
    assert "ranges" not in defs["TensorSpec"]["properties"]
    assert {"model", "variants", "matrix", "latency"} <= found["properties"].keys()


def test_the_schema_accepts_the_good_recipe_and_refuses_unknown_keys(fakes: None, folder: Path) -> None:
    validator = imported("jsonschema").Draft202012Validator(schema())
    from optcli.recipe.nodes import Problems, ReadingBudget
    from optcli.recipe.reading import read

    def plain() -> dict[str, object]:
        node = read(folder / "recipe.yaml", os.fspath(folder), Problems(), ReadingBudget())
        assert node is not None
        return dict(node.plain())

    assert list(validator.iter_errors(plain())) == []
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text + MATRIX)
    assert list(validator.iter_errors(plain())) == []
    assert list(validator.iter_errors({**plain(), "latenzy": {}}))
