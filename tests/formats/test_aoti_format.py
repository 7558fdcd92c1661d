"""AOTInductor packages are checked without loading anything in them."""

import zipfile

import pytest

from optcli.errors import InputError, TrustError
from optcli.models.formats import aoti as aoti_format


def package(folder, members):
    with zipfile.ZipFile(folder / aoti_format.FILE, "w") as archive:
        for name in members:
            archive.writestr(name, b"x" * 100)
    return folder


def test_a_package_with_a_library_is_sound(tmp_path):
    aoti_format.check(package(tmp_path, ["model/data/aotinductor/model/a.so", "model/byteorder"]))


def test_the_models_of_a_package_are_told_with_their_sizes(tmp_path):
    folder = "model/data/aotinductor"
    members = [
        f"{folder}/model/a.so",
        f"{folder}/model/a.cpp",
        f"{folder}/batch_8/b.so",
        "model/version",
    ]
    assert aoti_format.models(package(tmp_path, members)) == {"model": 200, "batch_8": 100}


def test_a_package_without_a_library_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no compiled model"):
        aoti_format.check(package(tmp_path, ["model/data/aotinductor/model/a.cpp"]))


@pytest.mark.parametrize(
    "name", ["../a.so", "/a/data/aotinductor/a.so", "m/../../data/aotinductor/a.so"]
)
def test_a_member_outside_the_folder_is_refused(tmp_path, name):
    with pytest.raises(TrustError, match="outside"):
        aoti_format.check(package(tmp_path, ["model/data/aotinductor/model/a.so", name]))


def test_a_truncated_damaged_or_missing_package_is_an_input_error(tmp_path):
    with pytest.raises(InputError):
        aoti_format.check(tmp_path)
    path = package(tmp_path, ["model/data/aotinductor/model/a.so"]) / aoti_format.FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(InputError):
        aoti_format.check(tmp_path)
    path.write_bytes(whole.replace(b"xxxxx", b"yyyyy", 1))
    with pytest.raises(InputError, match="damaged"):
        aoti_format.check(tmp_path)
