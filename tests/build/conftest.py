"""A fresh project for every test of the build."""

import shutil
from pathlib import Path

import pytest
from tiny_project import Project, write_images, write_model

FAKES = Path(__file__).with_name("fakes.py")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    write_model(folder / "model.onnx")
    write_images(folder / "images")
    shutil.copyfile(FAKES, folder / "fakes.py")
    return folder


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    shutil.copytree(template, tmp_path / "project")
    return Project(tmp_path / "project", tmp_path / "store", tmp_path / "artifacts")
