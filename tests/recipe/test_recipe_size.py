"""Little text that would be very much: read quickly, or refused with its place, but never a hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from optcli.errors import RecipeError
from optcli.recipe import load
from optcli.recipe.nodes import Problems, ReadingBudget
from optcli.recipe.reading import parse

HEAD = """\
version: 1
name: x
model: {source: "torchvision:resnet18"}
inputs: [{name: x, dtype: float32, shape: [batch, 3, 32, 32]}]
"""
FOURTEEN = list(range(1, 15))
NAMED = ", ".join(['"${x}"'] * 9_000)
QUOTED = ", ".join(['"1"'] * 18_000)
OPTIONS = ", ".join(f"o{i}: 1" for i in range(9_000))
ENTRY = f"over: {{x: {FOURTEEN}, y: {FOURTEEN}}}"
# Each took from seconds to minutes, and says now what is wrong with it.
HANGS = {
    "nulls": ("".join(f"a{i}:\n" for i in range(31_999)), "more than 20000 keys and values"),
    "dashes": ("a:\n" + "-\n" * 49_000, "more than 20000 keys and values"),
    "fewer nulls": ("".join(f"a{i}:\n" for i in range(9_900)), "more than these 100 problems"),
    "nulls in one line": (
        "{" + ", ".join(f"a{i}: " for i in range(9_900)) + "}",
        "more than these 100 problems",
    ),
    "brackets": ("x: " + "[" * 120_000, "nested more than 50 deep"),
    "laughs": (
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
        "aliases make more than 20000 values",
    ),
    "variants": (
        f"{HEAD}variants:\n" + "".join(f"  v{i}: {{extends: v{i + 1}}}\n" for i in range(3_000)),
        "found 3000, wanted at most 1000",
    ),
    "variants that extend what is not there": (
        f"{HEAD}variants:\n" + "".join(f"  v{i}: {{extends: w{i}}}\n" for i in range(990)),
        "extends an unknown variant 'w0'",
    ),
    "a matrix": (
        f"{HEAD}matrix:\n"
        + "".join(f"  m{i}-${{x}}-${{y}}: {{{ENTRY}, variant: []}}\n" for i in range(400)),
        "more than 1000 variants together",
    ),
    "a matrix of much": (
        f"{HEAD}matrix:\n  m-${{x}}: {{over: {{x: [{[1] * 9_000}]}}, variant: {{a: [{NAMED}]}}}}\n",
        "is a list or mapping",
    ),
    "a long text from a matrix": (
        f"{HEAD}matrix:\n  m-${{x}}: {{over: {{x: [{'a' * 40}]}}, "
        f"variant: [prune: {{x: '{'${x}' * 1_000}'}}]}}\n",
        "found text of 40000 characters",
    ),
    "passes": (
        f"{HEAD}variants:\n  a: [{', '.join(['export_onnx'] * 18_000)}]\n",
        "wanted at most 100",
    ),
    "unknown options": (
        f"{HEAD}variants: {{a: [{{export_onnx: {{{OPTIONS}}}}}]}}\n",
        "unknown key 'o0' in export_onnx",
    ),
    "text for numbers": (
        f"{HEAD}latency: {{batch_sizes: [{QUOTED}]}}\nvariants: {{a: []}}\n",
        "wanted a whole number",
    ),
    "plugins": (
        f"{HEAD}plugins: [{', '.join(['mine.py:A'] * 9_000)}]\nvariants: {{a: []}}\n",
        "plugins: found 9000",
    ),
    "one big file ten times": (
        f"{HEAD}extends: [{', '.join(['big.yaml'] * 10)}]\n",
        "has more than 20000 keys and values",
    ),
    "one large file 99 times": (
        f"{HEAD}extends: [{', '.join(['large.yaml'] * 99)}]\n",
        "the extended recipes have too many values",
    ),
    "files that double": (f"{HEAD}extends: [d0.yaml]\n", "the extended recipes have too many values"),
}
LOAD = (
    "import sys\nfrom optcli.errors import RecipeError\nfrom optcli.recipe import load\n"
    "try:\n    load(sys.argv[1])\nexcept RecipeError as error:\n    print(error)\n"
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", HANGS)
def test_much_is_refused_before_anybody_waits(tmp_path, kind):
    text, says = HANGS[kind]
    assert len(text) < 256 * 1024
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    for name, count in (("big", 40_000), ("large", 9_000)):
        (tmp_path / f"{name}.yaml").write_text(f"version: 1\nname: x\nzz: {[1] * count}\n")
    for i in range(20):
        (tmp_path / f"d{i}.yaml").write_text(f"extends: [d{i + 1}.yaml, d{i + 1}.yaml]\n")
    (tmp_path / "d20.yaml").write_text(f"zz: {[1] * 6_000}\n")
    (tmp_path / "mine.py").write_text("class A:\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout, done.stdout[-2000:]
    assert ".yaml:" in done.stdout


def test_a_hundred_problems_and_that_there_are_more(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{HEAD}variants: {{a: []}}\n" + "".join(f"q{i}: 1\n" for i in range(300)))
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert len(caught.value.problems) == 101
    assert "more than these 100 problems" in caught.value.problems[-1].message
    path.write_text(f"{HEAD}variants: {{a: []}}\n" + "".join(f"q{i}: 1\n" for i in range(100)))
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert [problem.line for problem in caught.value.problems] == list(range(6, 106))


def test_a_file_that_two_extend_is_read_once_and_holds_for_both(tmp_path):
    (tmp_path / "base.yaml").write_text(f"{HEAD}variants: {{a: [], b: []}}\n")
    (tmp_path / "one.yaml").write_text("extends: base.yaml\nvariants: {b: null}\n")
    (tmp_path / "two.yaml").write_text("extends: base.yaml\nseed: 3\n")
    path = tmp_path / "recipe.yaml"
    path.write_text("extends: [one.yaml, two.yaml]\nname: y\n")
    recipe = load(path)
    assert (recipe.name, recipe.seed, list(recipe.variants)) == ("y", 3, ["a", "b"])
    assert [file.name for file in recipe.read_from] == [
        "recipe.yaml",
        "one.yaml",
        "base.yaml",
        "two.yaml",
    ]


def test_files_share_their_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("seed: 1\n" + "#" * 150_000)
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{HEAD}extends: [one.yaml, two.yaml]\nvariants: {{a: []}}\n")
    with pytest.raises(RecipeError, match=r"the recipe's files have more than 262144"):
        load(path)


@pytest.mark.slow
def test_values_that_are_set_count_as_well(tmp_path: Path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{HEAD}variants: {{a: []}}\n")
    with pytest.raises(RecipeError, match="more than 20000 keys and values"):
        load(path, [f"latency.batch_sizes={[1] * 9_000}"] * 3)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("a:\nb: # nothing\n\n# more\nc:\n", [(1, 2), (2, 2), (5, 2)]),
        ("a: [1, ,]\n", None),
        ("{a: , b: }", [(1, 3), (1, 8)]),
        ("- \n-   # x\n- 1\n", [(1, 1), (2, 1), (3, 3)]),
        ("a:\r\nb:\r\n", [(1, 2), (2, 2)]),
        ("a: 1\nb:", [(1, 4), (2, 2)]),
    ],
)
def test_where_an_empty_value_stands(text, places):
    problems = Problems()
    node = parse(text, "x.yaml", problems, ReadingBudget())
    if places is None:
        assert node is None
        return
    assert node is not None
    inner = [item for _, item in node.items()] or list(node.elements())
    assert [(item.place.line, item.place.column) for item in inner] == places
