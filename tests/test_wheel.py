"""The wheel as somebody installs it: it holds everything, and builds a model far from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tiny_project import write_model

import optcli

PACKAGE = Path(optcli.__file__).parent


@pytest.mark.slow
@pytest.mark.long
def test_a_wheel_builds_a_model_from_outside_of_the_checkout(tmp_path):
    source, place = tmp_path / "source", tmp_path / "elsewhere"
    shutil.copytree(PACKAGE, source / "optcli", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PACKAGE.parent / name, source)
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"OPTCLI_STORE": str(tmp_path / "store"), "PYTHONDONTWRITEBYTECODE": "1"}
    place.mkdir()

    def run(*command: object) -> str:
        done = subprocess.run(
            [*map(str, command)], cwd=place, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    # Without a network: what a build needs is what torch needs as well.
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    said = run(*pip, "wheel", source, *offline, "--no-build-isolation", "-w", tmp_path)
    assert "Warning" not in said
    (wheel,) = tmp_path.glob("*.whl")
    # The libraries are those of this environment; optcli is not: what .pth files there add is left out.
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    programs = tmp_path / "venv" / "bin"
    run(*pip, "--python", programs / "python", "install", *offline, "--no-compile", wheel)
    files = {
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    installed = {p.relative_to(site / "optcli") for p in (site / "optcli").rglob("*") if p.is_file()}
    assert files == installed
    write_model(place / "model.onnx")
    run(programs / "optcli", "init", "model.onnx", "--out", "recipe.yaml")
    run(programs / "optcli", "build", "recipe.yaml", "--no-latency", "--only", "onnx")
    (report,) = place.glob("artifacts/*/report.json")
    assert json.loads(report.read_text())["variants"]["onnx"]["status"] == "built"
