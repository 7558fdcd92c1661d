"""The README's recipe and commands, carried out."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib

import pytest
from commands import hurried, optcli_here
from pages import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def flowers(tmp_path):
    """What the recipe names: weights for five classes, and a folder of photos for each."""
    import numpy as np
    import torch
    from PIL import Image
    from torchvision.models import mobilenet_v3_small

    torch.manual_seed(0)
    torch.save(mobilenet_v3_small(num_classes=5).state_dict(), tmp_path / "flowers.pth")
    generator = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("daisy", "iris", "lily", "rose", "tulip"):
            folder = tmp_path / "photos" / part / kind
            folder.mkdir(parents=True)
            for number in range(4 if part == "train" else 3):
                pixels = generator.integers(0, 256, (240, 260, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path


@pytest.mark.slow
@pytest.mark.long
def test_the_recipe_of_the_readme_builds(flowers):
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (flowers / "recipe.yaml").write_text(block)
    asked = hurried(["build", "recipe.yaml", "--set", "data.calibration.samples=20"])
    built = optcli_here(*asked, folder=flowers, OPTCLI_STORE="")
    # Fifteen random photos accept nothing; everything must be built, measured and judged.
    assert built.code in (0, 1, 5), built.err
    for variant in ("eager", "onnx-int8", "openvino-int8"):
        assert (flowers / "artifacts" / "flowers" / variant / "artifact.json").is_file()
    commands = re.findall(r"^    (optcli init [^#\n]*)", README, re.MULTILINE)
    assert len(commands) == 1
    exported = flowers / "artifacts" / "flowers" / "onnx-int8" / "model.onnx"
    (flowers / "model.onnx").write_bytes(exported.read_bytes())
    (flowers / "recipe.yaml").unlink()
    written = optcli_here(*shlex.split(commands[0])[1:], folder=flowers)
    assert written.code == 0, written.err
    assert optcli_here("build", "recipe.yaml", "--dry-run", folder=flowers).code == 0


@pytest.mark.slow
@pytest.mark.long
def test_make_demo_builds_what_the_table_of_the_readme_shows(tmp_path, quickstart_store):
    (demo,) = re.findall(r"^demo:.*\n\t(.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    program, *arguments = demo.split()
    assert program == "$(BIN)/optcli"
    for part in ("recipes", "calibration_data"):
        shutil.copytree(REPOSITORY / part, tmp_path / part)
    built = optcli_here(*hurried(arguments), folder=tmp_path, OPTCLI_STORE=quickstart_store)
    assert built.code in (0, 5), built.err
    (block,) = re.findall(r"^    Batch size 1\n(?:(?:    .*)?\n)*?(?=\S)", README, re.MULTILINE)
    shown = [line[4:] for line in block.splitlines() if line.strip(" ─")]
    assert len(shown) == 3 + 3 * 7 + 1
    rows = [line.split()[0].rstrip(",") for line in shown[4:]]
    report = json.loads((tmp_path / "artifacts" / "quickstart" / "report.json").read_text())
    # Figures and verdicts on speed depend on the machine.
    assert rows == [
        word
        for name, variant in report["variants"].items()
        for word in (name, variant["runner"]["name"], variant["artifact"]["precision"])
    ]


def test_extras_that_the_readme_installs_are_there():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = re.findall(r"pip install '\.\[([\w,-]+)\]'", README)
    named = [each for names in lists for each in names.split(",")]
    assert len(named) > 4
    assert set(named) <= project["optional-dependencies"].keys()
