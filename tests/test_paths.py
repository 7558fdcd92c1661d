"""Paths in messages: one form for all verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcli.errors import InputError, Problem, shown_path, shown_place


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project" / "recipes").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "project" / "model.onnx").touch()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("model.onnx", "model.onnx"),
        ("recipes/../model.onnx", "model.onnx"),
        ("./recipes//x.yaml", "recipes/x.yaml"),
        ("gone/../model.onnx", "model.onnx"),
        ("../other/x.yaml", "{root}/other/x.yaml"),
        ("{root}/project/recipes/../model.onnx", "model.onnx"),
        ("{root}/other", "{root}/other"),
        ("..hidden/x", "..hidden/x"),
        (".", "."),
    ],
)
def test_a_path_without_detours(here, path, wanted):
    assert shown_path(path.format(root=here)) == wanted.format(root=here)


def test_a_detour_through_a_link_is_followed(here):
    (here / "other" / "deep").mkdir()
    (here / "other" / "x").touch()
    (here / "project" / "link").symlink_to(here / "other" / "deep")
    assert shown_path("link/../x") == f"{here}/other/x"


@pytest.mark.parametrize(
    "text", ["onnx › to_openvino", "--set a.b=1", "", "samples of x", "http://a/b"]
)
def test_a_place_that_is_no_path_stays(text):
    assert shown_place(text) == text


def test_errors_and_problems_print_it(here):
    error = InputError("it is empty", place=f"{here}/project/recipes/../model.onnx", hint="copy it")
    assert str(error) == "model.onnx: it is empty\n  hint: copy it"
    assert error.place.endswith("recipes/../model.onnx"), "what crosses a process is not changed"
    assert str(Problem("recipes/../c.yaml", 3, 4, "wrong")) == "c.yaml:3:4: wrong"
    assert str(Problem("../c.yaml", 3, 4, "wrong")) == f"{here}/c.yaml:3:4: wrong"


def test_a_folder_that_is_gone(here, monkeypatch):
    def gone():
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("os.getcwd", gone)
    assert shown_path("a/../b") == "b"
