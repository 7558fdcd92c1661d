"""A recipe that extends one in another folder names the very files that the other names itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from pydantic import Field

from optcli import data, passes, runners
from optcli.artifact import Format
from optcli.errors import RecipeError
from optcli.files import registry
from optcli.files.digest import FileDigests
from optcli.passes import Pass
from optcli.recipe import Recipe, load
from optcli.runners import Runner
from optcli.settings import Abbreviated, Settings, user_code
from optcli.settings.references import (
    CODE,
    CodeReference,
    MachinePath,
    RecipePath,
    SourceReference,
    WeightsReference,
)

CODE_FILE = "class Clip:\n    pass\n\n\ndef net():\n    pass\n\n\ndef samples():\n    pass\n"
BASE = """\
version: 1
name: base
model: {source: "onnx:models/net.onnx"}
inputs: [{name: image, shape: [batch, 3, 8, 8]}]
data:
  calibration: {source: "npz:./digits.npz", split: {file: "ids/some.txt", of: evaluation}}
  training: {source: "coco:boxes.json", root: photos}
  validation: "imagefolder:photos"
  evaluation: {source: "python:code.py:samples", files: [digits.npz, photos]}
accuracy: {metric: "python:code.py:net"}
postprocess: {python: code.py:samples}
class_names: ids/names.txt
plugins: [code.py:Clip]
variants:
  plain: []
  own: ["./code.py:Clip", clip, {"code.py:Clip": {limit: 1}}]
matrix:
  m-${x}:
    over: {x: [one, two]}
    variant: {passes: [Clip, "package.inner:Clip"]}
"""


@pytest.fixture
def below(tmp_path: Path) -> Path:
    """A folder with a recipe of every kind of path and the files that it names."""
    folder = tmp_path / "b"
    for name in ("models", "ids", "photos", "package"):
        (folder / name).mkdir(parents=True)
    (folder / "models" / "net.onnx").write_bytes(b"x")
    (folder / "weights.safetensors").write_bytes(b"x")
    (folder / "ids" / "some.txt").write_text("1\n")
    (folder / "ids" / "names.txt").write_text("cat\n")
    (folder / "boxes.json").write_text("{}")
    (folder / "photos" / "1.png").write_bytes(b"x")
    (folder / "code.py").write_text(CODE_FILE)
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "inner.py").write_text(CODE_FILE)
    split = np.array(["calibration", "evaluation"] * 2)
    np.savez(folder / "digits.npz", image=np.zeros((4, 3, 8, 8)), target=np.zeros(4), split=split)
    (folder / "base.yaml").write_text(BASE)
    (tmp_path / "a").mkdir()
    return folder


Extended = Callable[..., tuple[Recipe, Recipe]]


@pytest.fixture
def extended(below: Path) -> Extended:
    """The recipe with edits as it is itself, and as one in the folder `a` beside extends it."""

    def load_both(*edits: tuple[str, str], own: str = "", sets: tuple[str, ...] = ()) -> Any:
        text = BASE
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (below / "base.yaml").write_text(text)
        (below.parent / "a" / "top.yaml").write_text(f"extends: ../b/base.yaml\n{own}")
        return load(below / "base.yaml", sets), load(below.parent / "a" / "top.yaml", sets)

    return load_both


def _file(recipe: Recipe, text: str) -> Path:
    return (recipe.folder / text).resolve(strict=True)


def _code(recipe: Recipe, reference: str) -> tuple[Any, str]:
    """What the user's code is made of, and its name."""
    closure = user_code.closure(reference, recipe.folder)
    files = tuple(file.resolve(strict=True) for file in closure.files)
    assert files, reference
    return (files, closure.module), reference.rpartition(":")[2]


def _named(recipe: Recipe) -> dict[str, Any]:
    """Every file that the recipe names, by where it is named."""
    named: dict[str, Any] = {}
    assert isinstance(recipe.class_names, str)
    named["class_names"] = _file(recipe, recipe.class_names)
    kind, _, what = recipe.model.source.partition(":")
    named["source"] = _code(recipe, what) if kind == "python" else _file(recipe, what)
    named["weights"] = recipe.model.weights and _file(recipe, recipe.model.weights.file)
    for role, settings in recipe.data.items():
        code = settings.kind == "python"
        named[role] = _code(recipe, settings.place) if code else _file(recipe, settings.place)
        named[f"{role}.root"] = settings.root and _file(recipe, settings.root)
        named[f"{role}.files"] = [_file(recipe, file) for file in settings.files]
        split = settings.split
        named[f"{role}.split"] = split and split.file and _file(recipe, split.file)
    assert recipe.accuracy is not None
    assert recipe.postprocess is not None
    assert recipe.postprocess.python is not None
    named["metric"] = _code(recipe, recipe.accuracy.metric.removeprefix("python:"))
    named["postprocess"] = _code(recipe, recipe.postprocess.python)
    named["plugins"] = {name: _code(recipe, text) for name, text in recipe.plugins.items()}
    for name, variant in recipe.variants.items():
        named[name] = [_code(recipe, use.reference) for use in variant.passes if use.reference]
    return named


def test_every_kind_of_path_names_the_same_file(extended: Extended) -> None:
    itself, top = extended()
    assert _named(top) == _named(itself)
    assert top.folder != itself.folder
    assert top.model.source == "onnx:../b/models/net.onnx"
    assert top.data["calibration"].split is not None
    assert top.data["calibration"].split.file == "../b/ids/some.txt"
    assert top.data["training"].root == "../b/photos"
    assert top.data["validation"].source == "imagefolder:../b/photos"
    assert top.data["evaluation"].files == ("../b/digits.npz", "../b/photos")
    assert top.accuracy is not None
    assert top.accuracy.metric == "python:../b/code.py:net"
    assert top.plugins == {"Clip": "../b/code.py:Clip", "clip": "../b/code.py:Clip"}
    assert len(_named(top)["own"]) == 3
    assert len(_named(top)["m-one"]) == 2


def test_the_keys_of_what_is_named_are_the_same(extended: Extended) -> None:
    keys = []
    for recipe in extended():
        source = recipe.model.in_folder(recipe.folder)
        settings = recipe.data["calibration"]
        made_of = data.ingredients(settings, recipe.folder, FileDigests())
        own = recipe.variants["m-one"].passes[1].reference
        assert own is not None
        code = user_code.digest(own, recipe.folder, FileDigests())
        keys.append((source.ingredients(FileDigests()), made_of, code))
    assert keys[0] == keys[1]


FORMS = {
    "a network of the user's": (
        'model: {source: "onnx:models/net.onnx"}',
        'model: {source: "python:code.py:net", weights: weights.safetensors}',
    ),
    "a network in a module": (
        'model: {source: "onnx:models/net.onnx"}',
        'model: {source: "python:package.inner:net", weights: ./weights.safetensors}',
    ),
    "a module beside": ('metric: "python:code.py:net"', 'metric: "python:code:net"'),
    "postprocess in short": ("{python: code.py:samples}", '"python:code.py:samples"'),
    "plugins by name": (
        "plugins: [code.py:Clip]",
        "plugins: {clip: code.py:Clip, Clip: ./code.py:Clip}",
    ),
    "from the environment": ("npz:./digits.npz", "npz:${OPTCLI_DIGITS:-digits.npz}"),
    "in a text of the environment": ("ids/some.txt", "ids/${OPTCLI_IDS:-some}.txt"),
    "a number for a name": ("ids/some.txt", "${OPTCLI_IDS:-7}"),
    "a path that goes up": ("npz:./digits.npz", "npz:../b/digits.npz"),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_paths(form: str, extended: Extended, below: Path) -> None:
    (below / "7").write_text("1\n")
    itself, top = extended(FORMS[form])
    assert _named(top) == _named(itself)


def test_a_path_is_moved_wherever_it_is_extended_from(below: Path) -> None:
    (below.parent / "a" / "deep").mkdir()
    (below.parent / "a" / "middle.yaml").write_text("extends: ../b/base.yaml\nname: middle\n")
    top = below.parent / "a" / "deep" / "top.yaml"
    top.write_text(
        "extends: ../middle.yaml\nname: top\n"
        'data: {evaluation: {files: null}, training: {source: "coco:mine.json"}}\n'
    )
    (top.parent / "mine.json").write_text("{}")
    recipe = load(top)
    assert recipe.model.source == "onnx:../../b/models/net.onnx"
    # Of one role, each value is relative to the file that says it.
    assert recipe.data["training"].source == "coco:mine.json"
    assert recipe.data["training"].root == "../../b/photos"


def test_a_folder_behind_a_link_is_the_one_that_the_system_finds(below: Path) -> None:
    elsewhere = below.parent / "elsewhere" / "deep" / "recipes"
    elsewhere.mkdir(parents=True)
    (below.parent / "a" / "link").symlink_to(elsewhere)
    (elsewhere / "top.yaml").write_text("extends: ../../../b/base.yaml\nname: top\n")
    path = below.parent / "a" / "link" / "top.yaml"
    assert _named(load(path)) == _named(load(below / "base.yaml"))
    (below / "base.yaml").write_text(BASE.replace("[batch,", "[0,"))
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert Path(caught.value.problems[0].file).samefile(below / "base.yaml")


def test_what_is_missing_is_not_taken_from_the_folder_of_the_recipe_above(below: Path) -> None:
    (below / "models" / "net.onnx").unlink()
    (below.parent / "a" / "models").mkdir()
    (below.parent / "a" / "models" / "net.onnx").write_bytes(b"x")
    (below.parent / "a" / "top.yaml").write_text("extends: ../b/base.yaml\n")
    with pytest.raises(RecipeError) as caught:
        load(below.parent / "a" / "top.yaml")
    (problem,) = caught.value.problems
    assert problem.file == str(below / "base.yaml")
    assert str(below / "models" / "net.onnx") in problem.message


def test_what_is_set_is_relative_to_the_recipe_itself(below: Path) -> None:
    (below.parent / "a" / "top.yaml").write_text("extends: ../b/base.yaml\n")
    sets = ["model.source=onnx:../b/models/net.onnx", "data.training.root=../b/photos"]
    recipe = load(below.parent / "a" / "top.yaml", sets)
    assert recipe.model.source == "onnx:../b/models/net.onnx"
    assert recipe.data["training"].root == "../b/photos"


B, A = Path("/x/b"), Path("/x/a")


@pytest.mark.parametrize(
    ("mark", "text", "moved"),
    [
        (RecipePath, "c/d.txt", "../b/c/d.txt"),
        (RecipePath, ".", "../b"),
        (RecipePath, "/c/d.txt", "/c/d.txt"),
        (RecipePath, "~/c.txt", "~/c.txt"),
        (RecipePath, "", ""),
        (WeightsReference, "DEFAULT", "DEFAULT"),
        (WeightsReference, "ResNet50_Weights.IMAGENET1K_V2", "ResNet50_Weights.IMAGENET1K_V2"),
        (WeightsReference, "gone.pth", "../b/gone.pth"),
        (WeightsReference, "c/gone", "../b/c/gone"),
        (CodeReference, "c.py:F", "../b/c.py:F"),
        (CodeReference, "python:c.py:F.g", "python:../b/c.py:F.g"),
        (CodeReference, "/c.py:F", "/c.py:F"),
        (CodeReference, "json:loads", "json:loads"),
        (CodeReference, "c/d:F", "c/d:F"),
        (CodeReference, "c.py", "c.py"),
        (Annotated[str, SourceReference(("npz",))], "npz:c.npz", "npz:../b/c.npz"),
        (Annotated[str, SourceReference(("npz",))], "python:c.py:F", "python:../b/c.py:F"),
        (Annotated[str, SourceReference(("npz",))], "torchvision:CIFAR10", "torchvision:CIFAR10"),
        (Annotated[str, SourceReference(("npz",))], "npz:", "npz:"),
        (Annotated[str, SourceReference(("npz",))], "npz", "npz"),
    ],
)
def test_what_each_type_makes_of_a_text(mark: Any, text: str, moved: str) -> None:
    assert mark.__metadata__[0].moved(text, B, A) == moved


def test_a_module_beside_is_known_by_its_file_elsewhere(below: Path) -> None:
    other = below.parent / "a"
    assert CODE.moved("package.inner:Clip", below, other) == "../b/package/inner.py:Clip"
    assert CODE.moved("package:Clip", below, other) == "../b/package/__init__.py:Clip"
    assert CODE.moved("package/inner:Clip", below, other) == "package/inner:Clip"
    assert CODE.moved("packages.inner:Clip", below, other) == "packages.inner:Clip"


# Options of passes and settings of runners


class _Part(Settings):
    table: RecipePath = Field("x", description="a file")


class _Short(Abbreviated):
    short_for: ClassVar[str] = "file"
    file: RecipePath = Field("x", description="a file")


class Reads(Pass):
    """A pass with paths in every form that an option can have."""

    accepts: ClassVar = (Format.ONNX,)
    cache: RecipePath | None = None
    tables: tuple[RecipePath, ...] = ()
    by_name: dict[str, RecipePath] = Field(default_factory=dict)
    parts: dict[str, _Part] = Field(default_factory=dict)
    part: bool | _Part = False
    either: int | RecipePath = 0
    short: _Short = _Short()
    code: CodeReference = "json:loads"
    program: MachinePath | None = None
    word: str = "x"

    def produces(self, source: Format) -> Format:
        return source

    def run(self, source: Any, job: Any) -> Any:
        raise AssertionError("a recipe is checked without running a pass")


class Kept(Runner):
    """A runner with paths."""

    runs: ClassVar = (Format.ONNX,)
    kernels: RecipePath | None = None
    program: MachinePath | None = None

    def load(self, artifact: Any) -> None: ...
    def bind(self, feed: Any) -> None: ...
    def execute(self) -> None: ...
    def fetch(self) -> dict[str, Any]:
        return {}

    def effective(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def with_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {(passes.__name__, "reads"): Reads, (runners.__name__, "kept"): Kept}
    names, load_class = registry.names, registry.load

    def named(package: str) -> tuple[str, ...]:
        return (*names(package), *(name for room, name in own if room == package))

    def loaded(package: str, name: str, base: type) -> type:
        return own.get((package, name)) or load_class(package, name, base)

    monkeypatch.setattr(registry, "names", named)
    monkeypatch.setattr(registry, "load", loaded)


OPTIONS = (
    "{cache: c.bin, tables: [t, /abs], by_name: {x: y}, parts: {p: {table: q}}, part: {table: r}, "
    "either: e, short: s, code: code.py:net, program: ./python, word: w}"
)


@pytest.mark.usefixtures("with_paths")
def test_options_of_passes_and_settings_of_runners_are_moved(extended: Extended) -> None:
    edits = (
        ("  plain: []", f"  plain: []\n  reads: [{{reads: {OPTIONS}}}]"),
        ("    variant: {passes: [Clip, ", '    variant: {passes: [{reads: {cache: "k/${x}"}}, '),
    )
    own = (
        "variants:\n  reads: {runner: {name: kept, kernels: mine.bin}}\n"
        "  kept: {passes: [], runner: {name: kept, kernels: k.bin, program: ./python}}\n"
        "  more: {extends: kept, runner: {kernels: other.bin}}\n"
    )
    itself, top = extended(*edits, own=own)
    (use,) = top.variants["reads"].passes
    assert use.configured is not None
    assert use.configured.model_dump() == {
        "cache": "../b/c.bin",
        "tables": ("../b/t", "/abs"),
        "by_name": {"x": "../b/y"},
        "parts": {"p": {"table": "../b/q"}},
        "part": {"table": "../b/r"},
        "either": "../b/e",
        "short": {"file": "../b/s"},
        "code": "../b/code.py:net",
        "program": "./python",
        "word": "w",
    }
    assert use.options["cache"] == "../b/c.bin"
    (before,) = itself.variants["reads"].passes
    assert before.configured is not None
    assert before.configured.model_dump()["cache"] == "c.bin"
    made, *_ = top.variants["m-one"].passes
    assert made.options == {"cache": "../b/k/one"}
    runner = top.variants["reads"].runner
    assert runner is not None
    assert runner.configured.model_dump()["kernels"] == "mine.bin"


@pytest.mark.usefixtures("with_paths")
def test_settings_of_a_runner_are_moved_where_only_the_variant_below_names_it(
    extended: Extended,
) -> None:
    variants = (
        "  plain: []\n  kept: {runner: {name: kept, kernels: k.bin, program: ./python}}\n"
        "  more: {extends: kept, runner: {kernels: l.bin}}"
    )
    own = "variants: {most: {extends: kept, runner: {kernels: m.bin}}}\n"
    _, top = extended(("  plain: []", variants), own=own)
    kernels = {}
    for name in ("kept", "more", "most"):
        runner = top.variants[name].runner
        assert runner is not None
        kernels[name] = runner.configured.model_dump()["kernels"]
        assert runner.configured.model_dump()["program"] == "./python"
    assert kernels == {"kept": "../b/k.bin", "more": "../b/l.bin", "most": "m.bin"}


def test_options_of_the_users_passes_stay_as_they_are_written(extended: Extended) -> None:
    # Their classes are not imported while a recipe is read, and they run with no folder of a recipe.
    _, top = extended(("limit: 1", "file: x.bin"))
    assert top.variants["own"].passes[2].options == {"file": "x.bin"}


def test_extends_in_the_same_folder_changes_no_path(below: Path) -> None:
    (below / "top.yaml").write_text("extends: base.yaml\n")
    recipe = load(below / "top.yaml")
    assert recipe.digest == load(below / "base.yaml").digest
    assert recipe.data["calibration"].source == "npz:./digits.npz"


def test_files_are_named_by_where_the_system_finds_them(below: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(below.parent)
    (below.parent / "a" / "top.yaml").write_text("extends: ../b/base.yaml\nlatency: {threds: 1}\n")
    (below / "base.yaml").write_text(BASE.replace("plain: []", "plain: [none-such]"))
    with pytest.raises(RecipeError) as caught:
        load(Path("a/top.yaml"))
    assert [problem.file for problem in caught.value.problems] == [
        os.path.join("a", "top.yaml"),
        os.path.join("b", "base.yaml"),
    ]
