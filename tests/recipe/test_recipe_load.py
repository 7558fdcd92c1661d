"""A good recipe comes out as it was written; a file that is none is said to be none."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from optcli import passes
from optcli.artifact import Format
from optcli.environment import Needs
from optcli.errors import OptcliError, RecipeError
from optcli.passes import Traits
from optcli.recipe import PassUse, Recipe, check_formats, load, option_problems
from optcli.recipe.nodes import Problems, ReadingBudget
from optcli.recipe.reading import read

Loaded = Callable[..., Recipe]


def problems_of(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        call()
    return [str(problem) for problem in caught.value.problems]


def test_the_good_recipe_loads_as_written(loaded: Loaded, folder: Path) -> None:
    recipe = loaded()
    assert recipe.name == "digits"
    assert recipe.baseline == "eager"
    assert recipe.folder == folder
    assert recipe.path == folder / "recipe.yaml"
    assert list(recipe.variants) == ["eager", "onnx", "onnx-int8", "ov"]
    _, quantize = recipe.variants["onnx-int8"].passes
    assert quantize.name == "quantize_nncf"
    assert quantize.configured is not None
    assert quantize.configured.model_dump() == {"preset": "mixed", "samples": 300, "ignored": ()}
    assert quantize.place == f"{folder / 'recipe.yaml'}:23:9"
    assert recipe.variants["onnx-int8"].gate
    runner = recipe.variants["ov"].runner
    assert runner is not None
    assert (runner.name, runner.configured.threads) == ("openvino", 2)
    assert recipe.inputs[0].batch_range().max == 64
    assert recipe.data["calibration"].samples == 16
    assert recipe.model.weights.file == "digits.safetensors"


def test_the_first_variant_is_the_baseline_where_none_is_named(loaded: Loaded) -> None:
    assert loaded(("baseline: eager\n", "")).baseline == "eager"
    assert loaded(("baseline: eager\n", "baseline: null\n")).baseline == "eager"


def test_an_input_may_say_its_range_of_values(loaded: Loaded) -> None:
    recipe = loaded(("shape: [batch, 1, 8, 8],", "shape: [batch, 1, 8, 8], range: [0, 255],"))
    assert recipe.inputs[0].range == (0, 255)


def test_a_runner_may_be_a_name_alone(loaded: Loaded) -> None:
    recipe = loaded(("    gate: true", "    runner: openvino"))
    runner = recipe.variants["onnx-int8"].runner
    assert runner is not None
    assert runner.name == "openvino"


@pytest.mark.slow
def test_the_digest_is_of_what_was_said_not_of_how_or_where(
    loaded: Loaded, folder: Path, tmp_path: Path
) -> None:
    digest = loaded().digest
    assert (
        loaded(("onnx: [export_onnx]", "onnx: {passes: [{export_onnx: {opset: 20}}]}")).digest == digest
    )
    assert loaded(("version: 1", "# said\nversion: 1")).digest == digest
    assert loaded(("opt: 8", "opt: 4")).digest != digest
    assert loaded(("preset: mixed", "preset: performance")).digest != digest
    loaded()
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    assert load(elsewhere / "recipe.yaml").digest == digest


def test_a_variant_extends_another(loaded: Loaded) -> None:
    recipe = loaded(
        ("    gate: true", "    gate: true\n    required: true"),
        (
            "  ov:",
            "  more:\n    extends: ov-fast\n    gate: true\n"
            "  ov-fast:\n    extends: ov\n    passes: [quantize_nncf]\n"
            "    runner: {hint: throughput}\n  ov:",
        ),
    )
    fast, more = recipe.variants["ov-fast"], recipe.variants["more"]
    assert [use.name for use in fast.passes] == ["export_onnx", "to_openvino", "quantize_nncf"]
    assert fast.runner is not None
    assert fast.runner.configured.model_dump() == {"threads": 2, "hint": "throughput", "device": "CPU"}
    assert more.passes == fast.passes
    assert more.gate
    assert not fast.gate
    assert more.extends == "ov-fast"


def test_another_runner_takes_nothing_from_the_one_it_replaces(loaded: Loaded) -> None:
    recipe = loaded(
        ("    gate: true", "    runner: {name: onnxruntime, threads: 1}"),
        ("    runner: {name: openvino", "    extends: onnx-int8\n    runner: {name: openvino"),
        ("    passes: [export_onnx, to_openvino]", "    passes: [to_openvino]"),
        ("threads: 2, hint: latency", "hint: latency"),
    )
    runner = recipe.variants["ov"].runner
    assert runner is not None
    assert runner.configured.threads is None


def test_a_key_that_only_a_named_part_has_is_not_looked_for_there(loaded: Loaded) -> None:
    (said,) = problems_of(lambda: loaded(("baseline: eager", "baseline: eager\nshape: [1]")))
    assert "unknown key 'shape'" in said
    assert "inputs.shape" not in said


def test_a_circle_of_variants_is_one_problem(loaded: Loaded) -> None:
    (said,) = problems_of(
        lambda: loaded(
            ("onnx: [export_onnx]", "onnx: {extends: onnx-int8}"),
            ("    gate: true", "    extends: onnx"),
        )
    )
    assert "onnx -> onnx-int8 -> onnx" in said


def test_what_is_wrong_in_a_parent_is_blamed_once(loaded: Loaded) -> None:
    (said,) = problems_of(
        lambda: loaded(("onnx: [export_onnx]", "a: {extends: b}\n  b: [{export_onnx: {opset: 1}}]"))
    )
    assert "opset: found 1, wanted at least 13" in said


def test_passes_of_the_user_are_named_by_file_plugin_or_package(loaded: Loaded, folder: Path) -> None:
    (folder / "other.py").write_text("class HTTPPass: pass\n")
    recipe = loaded(
        ("baseline:", "plugins: [./mine.py:MyPass, other.py:HTTPPass]\nbaseline:"),
        (
            "onnx: [export_onnx]",
            "onnx: ['./mine.py:MyPass', {my_pass: {a: 1}}, MyPass, http_pass, theirs]",
        ),
    )
    uses = recipe.variants["onnx"].passes
    assert [use.configured for use in uses] == [None] * 5
    assert [use.reference for use in uses] == [
        "./mine.py:MyPass",
        "./mine.py:MyPass",
        "./mine.py:MyPass",
        "other.py:HTTPPass",
        "their.package:Theirs",
    ]
    assert uses[1].options == {"a": 1}


def test_plugins_may_be_given_names(loaded: Loaded) -> None:
    recipe = loaded(
        ("baseline:", "plugins: {sharpen: ./mine.py:MyPass}\nbaseline:"),
        ("onnx: [export_onnx]", "onnx: [sharpen]"),
    )
    assert recipe.variants["onnx"].passes[0].reference == "./mine.py:MyPass"


def _traits(**made: Format) -> Traits:
    produces = {Format(source): target for source, target in made.items()}
    return Traits("mine", {}, tuple(produces), produces, "code", Needs(), ("validation",))


def test_formats_are_checked_again_when_the_users_passes_are_known(loaded: Loaded) -> None:
    recipe = loaded(("onnx: [export_onnx]", "onnx: ['./mine.py:MyPass', quantize_nncf]"))
    place = recipe.variants["onnx"].passes[0].place
    (role,) = problems_of(lambda: check_formats(recipe, {place: _traits(torch=Format.ONNX)}))
    assert "data: validation" in role
    said = problems_of(lambda: check_formats(recipe, {place: _traits(torch=Format.TORCH)}))
    assert any("quantize_nncf reads onnx or openvino, but ./mine.py:MyPass" in text for text in said)
    known = loaded(
        ("onnx: [export_onnx]", "onnx: ['./mine.py:MyPass', quantize_nncf]"),
        ("  evaluation:", "  validation: npz:digits.npz\n  evaluation:"),
    )
    place = known.variants["onnx"].passes[0].place
    check_formats(known, {place: _traits(torch=Format.ONNX)})


def test_nothing_can_follow_torch_compile(loaded: Loaded) -> None:
    said = problems_of(lambda: loaded(("onnx: [export_onnx]", "onnx: [torch_compile, export_onnx]")))
    assert any("export_onnx cannot follow torch_compile" in text for text in said)
    assert any("put torch_compile last" in text for text in said)


def test_uses_of_one_place_that_differ_have_places_that_differ(loaded: Loaded) -> None:
    recipe = loaded(
        (
            "baseline: eager",
            "baseline: eager\nmatrix:\n  m-${a}:\n    over: {a: [1, 2]}\n"
            "    variant: [{'./mine.py:MyPass': {x: '${a}'}}]",
        )
    )
    places = [recipe.variants[name].passes[0].place for name in ("m-1", "m-2")]
    assert places[1] == f"{places[0]} #2"


def test_options_of_the_users_passes_are_said_as_plainly(fakes: None) -> None:
    kind = passes.find("prune")
    use = PassUse(name="mine", options={"ratio": "a", "hihg": 3}, place="recipe.yaml:3:7")
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(use.options)
    problems = option_problems(use, kind, caught.value)
    assert {(p.file, p.line, p.column) for p in problems} == {("recipe.yaml", 3, 7)}
    assert sorted(p.message for p in problems) == [
        "mine.ratio: found 'a' (text), wanted a number",
        "unknown key 'hihg' in mine",
    ]
    assert any("'high'" in p.hint for p in problems)


FILES = {
    "empty": (b"", 1, "empty"),
    "comments": (b"# nothing\n", 1, "empty"),
    "list": (b"- a\n- b\n", 1, "found a list, wanted a mapping"),
    "text": (b"hello", 1, "found text, wanted a mapping"),
    "latin": (b"version: 1\nname: caf\xe9\n", 2, "byte 0xe9 is not UTF-8"),
    "binary": (b"\x93NUMPY\x01\x00", 1, "not UTF-8"),
    "control": (b"version: 1\nname: a\x01b\n", 2, "U+0001"),
    "large": (b"#" * 300_000, 1, "300000 bytes"),
    "deep": (b"a: " + b"[" * 1200, 1, "nested"),
    "deep enough": (b"a: " + b"[" * 60 + b"]" * 60, 1, "nested more than"),
    "itself": (b"a: &a [*a]\n", 1, "nested more than"),
    "list as key": (b"? [a, b]\n: c\n", 1, "found a list or mapping as a key"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_recipe(name: str, folder: Path) -> None:
    data, line, message = FILES[name]
    path = folder / "recipe.yaml"
    path.write_bytes(data)
    said = next(text for text in problems_of(lambda: load(path)) if message in text)
    assert said.startswith(f"{path}:{line}:")
    assert "hint: " in said


@pytest.mark.slow
def test_aliases_that_make_little_text_large_are_refused(folder: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (folder / "recipe.yaml").write_text("\n".join(lines))
    (said,) = problems_of(lambda: load(folder / "recipe.yaml"))
    assert "aliases make more than" in said


def test_a_missing_file_names_those_beside_it(folder: Path) -> None:
    (said,) = problems_of(lambda: load(folder / "recpie.yaml"))
    assert "there is no file" in said
    assert "did you mean 'recipe.yaml'?" in said
    (said,) = problems_of(lambda: load(folder))
    assert "is a folder" in said
    assert "recipe.yaml" in said


def test_yaml_reads_as_1_2_and_merge_keys_work(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "a: &x {on: 0o17, b: 1e-3, n: ~, d: 2024-01-01}\nb: {<<: *x, on: yes, t: True, f: -.inf}\n"
    )
    node = read(path, "a.yaml", Problems(), ReadingBudget())
    assert node is not None
    assert node.plain() == {
        "a": {"on": 15, "b": 1e-3, "n": None, "d": "2024-01-01"},
        "b": {"on": "yes", "b": 1e-3, "n": None, "d": "2024-01-01", "t": True, "f": -float("inf")},
    }


ODD: list[Any] = [
    None,
    "",
    "x",
    -1,
    0,
    1.5,
    float("nan"),
    10**30,
    True,
    [],
    {},
    [None],
    {"a": {}},
    [[]],
]


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _with(value[path[0]], path[1:], new)
    return copy


@pytest.mark.slow
def test_no_odd_value_anywhere_makes_anything_but_a_recipe_error(folder: Path) -> None:
    base = read(folder / "recipe.yaml", "recipe.yaml", Problems(), ReadingBudget())
    assert base is not None
    plain = base.plain()
    odd_path = folder / "odd.json.yaml"
    paths = [path for path in _places_in(plain) if path]
    for index, path in itertools.product(range(4), paths):
        odd = ODD[(len(path) * 5 + paths.index(path) + index * 4) % len(ODD)]
        odd_path.write_text(json.dumps(_with(plain, path, odd)).replace("NaN", ".nan"))
        with contextlib.suppress(RecipeError):
            load(odd_path)


def _places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        inner = [_places_in(item, (*path, key)) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [_places_in(item, (*path, index)) for index, item in enumerate(value)]
    else:
        inner = []
    return [path, *(place for places in inner for place in places)]


@pytest.mark.slow
def test_loading_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("version: 1\nname: x\nvariants: {a: [quantize_nncf]}\n")
    code = (
        "import sys; from pathlib import Path; from optcli.recipe import load\n"
        "try: load(Path(sys.argv[1]))\n"
        "except Exception as error: assert 'model' in str(error), error\n"
        "heavy = {'numpy', 'torch', 'torchvision', 'onnx', 'onnxruntime', 'openvino', 'scipy'}\n"
        "found = heavy & sys.modules.keys(); assert not found, found\n"
    )
    path = str(tmp_path / "recipe.yaml")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_problems_survive_the_way_from_a_worker(loaded: Loaded) -> None:
    from optcli.errors import from_record

    with pytest.raises(RecipeError) as caught:
        loaded(("baseline: eager", "baseline: eagr"))
    again: OptcliError = from_record(json.loads(json.dumps(caught.value.to_record())))
    assert isinstance(again, RecipeError)
    assert again.problems == caught.value.problems


IMAGES = ("samples: 16}", "samples: 16, prepare: {}}")
EVALUATED = ("    split: evaluation\n", "    split: evaluation\n    prepare: {}\n")
SIZE = (
    "  - {name: size, dtype: int64, shape: [batch, 2], batch: {min: 1, opt: 8, max: 64}, value: %s}\n"
)


@pytest.mark.parametrize(
    ("value", "decoding", "original"),
    [
        ("original_size", "boxes: {}", True),
        ("original_size_wh", "rows: {}", True),
        ("original_size", "boxes: {original: false}", False),
        ("original_size", "boxes: {normalized: true}", None),
        ("[640, 640]", "boxes: {}", None),
        ("[640, 640]", "boxes: {original: true}", True),
    ],
)
def test_boxes_of_a_model_that_knows_the_original_size_are_in_its_pixels(
    loaded, value, decoding, original
):
    more = f"{SIZE % value}postprocess: {{{decoding}}}\ndata:\n"
    recipe = loaded(IMAGES, EVALUATED, ("data:\n", more))
    how = recipe.postprocess.boxes or recipe.postprocess.rows
    assert how.original is original
