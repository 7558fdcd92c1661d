"""What hostile or careless people write into a recipe: refused with its place, at once and briefly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optcli.errors import RecipeError
from optcli.recipe import load


def problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(path, overrides)
    return [str(problem) for problem in caught.value.problems]


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("/dev/zero", "found a device, wanted a regular file"),
        ("pipe", "found a pipe, wanted a regular file"),
        (".", "is a folder"),
        ("circle.yaml", "Too many levels of symbolic links"),
        ('"a\\0b"', "the text holds the character U+0000"),
        ("a" * 300, "File name too long"),
        ("x" * 5000, "found text of 5000 characters"),
    ],
)
def test_what_is_extended_must_be_a_file(tmp_path, value, says):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle.yaml").symlink_to("circle.yaml")
    path = recipe(tmp_path, f"version: 1\nname: x\nextends: {value}\n")
    assert any(says in text for text in problems(path))


def test_no_content_of_another_file_is_shown(tmp_path):
    contents = (
        "root:x:0:0:secret\n",
        "secret:*:0:0:::\n",
        "secret\n",
        "- secret\n",
        "secret: [secret\n",
        "@secret",
    )
    (tmp_path / "link.yaml").symlink_to("passwd")
    for name in ("passwd", "link.yaml"):
        path = recipe(tmp_path, f"version: 1\nname: x\nextends: {name}\n")
        for content in contents:
            (tmp_path / "passwd").write_text(content)
            assert not any("secret" in text for text in problems(path)), content


def test_a_recipe_that_is_a_pipe_or_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "found a pipe" in problems(tmp_path / "pipe")[0]
    assert "found a device" in problems(Path("/dev/zero"))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: " + "9" * 4000, "wanted a number that fits into 64 bits"),
        ("seed: 0x" + "f" * 4000, "wanted a number that fits into 64 bits"),
        ("seed: " + "9" * 6000, "found text of 6000 characters"),
        ("seed: .inf", "found inf"),
        ("seed: true", "found true, wanted a whole number"),
        ("version: true", "found true, wanted 1"),
        ('x: "\\U00110000"', "this is not YAML"),
        ("x: " + "[" * 3000, "nested"),
        ("slo: {p50_ms: .inf}", "wanted a finite number"),
        ("slo: {p50_ms: .nan}", "wanted a finite number"),
        ("latency: {batch_sizes: [true]}", "found true"),
        ("latency: {batch_sizes: ['1']}", "found '1' (text)"),
        ("latency: {max_seconds: .inf}", "wanted a finite number"),
        ("gate: {p50: {limit: .inf}}", "wanted a finite number"),
        ("data: {evaluation: {source: 'npz:x', prepare: {std: -1}}}", "numbers above 0"),
        ("data: {evaluation: {source: 'npz:x', prepare: {std: .nan}}}", "wanted a finite number"),
        ("data: {evaluation: {source: 'npz:x', prepare: {scale: 1e999999999/1}}}", "1/255"),
    ],
)
def test_values_that_mean_nothing(tmp_path, text, says):
    path = recipe(tmp_path, f"name: x\n{text}\n")
    found = problems(path)
    assert any(says in each for each in found), found


@pytest.mark.slow
def test_900_variants_that_extend_each_other(tmp_path):
    lines = "".join(f"  v{i}: {{extends: v{i + 1}}}\n" for i in range(900))
    path = recipe(tmp_path, f"version: 1\nname: x\nvariants:\n{lines}  v900: []\n")
    assert any("extend each other in a row" in text for text in problems(path))


def test_a_long_value_is_cut(tmp_path):
    path = recipe(tmp_path, "version: 1\nname: x\nvariants: {}\n")
    for text in ("x" * 100_000, f"latency.mode={'y' * 4000}", "a." * 3000 + "b=1", f"{'k' * 5000}=1"):
        assert all(len(each) < 2500 for each in problems(path, text))


@pytest.mark.parametrize(
    "name",
    [
        "report.json",
        "Report.HTML",
        "logs",
        "GATE",
        "samples.npz",
        "profiles",
        "nul",
        "COM1.onnx",
        "a/b",
        "-x",
        ".x",
        "x.",
        "x" * 101,
        "x y",
        "..",
        "",
    ],
)
def test_names_of_variants_that_collide(tmp_path, name):
    path = recipe(tmp_path, f"version: 1\nname: x\nvariants: {{'{name}': []}}\n")
    assert any("the variant name" in text for text in problems(path))


@pytest.mark.parametrize("name", ["baselines", "Baselines", ".store", "con", "x.yaml", "x" * 101])
def test_names_of_recipes_that_collide(tmp_path, name):
    path = recipe(tmp_path, f"version: 1\nname: {name}\nvariants: {{a: []}}\n")
    assert any("name: found" in text or f"name: '{name}"[:20] in text for text in problems(path))


@pytest.mark.slow
def test_an_old_terminal_gets_what_it_can_show():
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    for arguments in (["--help"], ["passes"], ["build", "recipe-\u00e9.yaml"]):
        done = subprocess.run(
            [sys.executable, "-m", "optcli", *arguments],
            env=environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode in (0, 2), done.stderr
