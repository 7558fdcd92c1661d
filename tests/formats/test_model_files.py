"""One table says what a model file is, for every verb that takes one."""

from __future__ import annotations

import zipfile

import pytest

from optcli.artifact import Format
from optcli.models.formats import model_files


def archive(path, *names):
    with zipfile.ZipFile(path, "w") as written:
        for name in names:
            written.writestr(name, b"")
    return path


@pytest.mark.parametrize(
    ("members", "format"),
    [
        (("net/constants.pkl", "net/code/__torch__.py"), "torchscript"),
        (("net/archive_format", "net/models/model.json"), "exported"),
        (("serialized_exported_program.json",), "exported"),
        (("net/data/aotinductor/model/x.so",), "aoti"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".pt", ".pth", ".pt2", ".ptl", ".bin", ".torchscript"])
def test_what_torch_writes_is_told_by_its_content(tmp_path, members, format, suffix):
    assert model_files.format_of(archive(tmp_path / f"net{suffix}", *members)) == format


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.onnx", "onnx"),
        ("a.ONNX", "onnx"),
        ("a.ort", "ort"),
        ("a.xml", "openvino"),
        ("a.pt2", "exported"),
        ("a.ptl", "torchscript"),
        ("a.engine", "tensorrt"),
        ("a.plan", "tensorrt"),
        ("a.mlpackage", "coreml"),
        ("a.mlmodel", "coreml"),
        ("a.pth", "weights"),
        ("a.safetensors", "weights"),
        ("a.txt", None),
        ("a", None),
    ],
)
def test_the_rest_is_told_by_its_suffix(tmp_path, name, format):
    (tmp_path / name).write_bytes(b"no archive")
    assert model_files.format_of(tmp_path / name) == format


def test_weights_in_an_archive_are_weights(tmp_path):
    path = archive(tmp_path / "net.pth", "net/data.pkl", "net/data/0")
    assert model_files.format_of(path) == model_files.WEIGHTS


def test_each_format_has_suffixes():
    assert ".ptl" in model_files.suffixes(Format.TORCHSCRIPT)
    assert model_files.suffixes(Format.ONNX) == (".onnx",)
