# ruff: noqa: SIM117  (an archive and what is in it)
"""Data whose files are none: links in a circle, pipes, bombs, pickles."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any

import numpy as np
import pytest
from generated import picture, spec

from optcli import data
from optcli.data import DataSettings, ingredients, problems
from optcli.data import open as open_data
from optcli.errors import InputError, TrustError
from optcli.files.digest import FileDigests


def opened(folder, *inputs, **settings: Any) -> Any:
    return open_data(DataSettings.model_validate(settings), folder, inputs)


def test_a_link_that_leads_back_up_adds_no_samples(classes):
    (classes / "ant" / "again").symlink_to("..")
    (classes / "bee" / "itself").symlink_to(".")
    (classes / "loop").symlink_to(classes)
    samples = opened(classes.parent, spec(3, 12, 20), source="imagefolder:photos")
    assert len(samples) == 12
    assert {sample.target for sample in samples} == {0, 1, 2}


def test_a_folder_that_is_reached_twice_is_refused(classes):
    (classes / "dog").symlink_to("ant")
    settings = DataSettings.model_validate({"source": "imagefolder:photos"})
    with pytest.raises(InputError, match="are the same folder"):
        ingredients(settings, classes.parent, FileDigests())


def test_a_class_folder_elsewhere_may_be_linked(classes, tmp_path):
    (classes / "ant").rename(tmp_path / "ants")
    (classes / "ant").symlink_to(tmp_path / "ants")
    assert len(opened(classes.parent, spec(3, 12, 20), source="imagefolder:photos")) == 12


def test_a_pipe_among_the_images_does_not_hang(classes):
    os.mkfifo(classes / "ant" / "pipe.png")
    settings = DataSettings.model_validate({"source": "imagefolder:photos"})
    with pytest.raises(InputError, match="found a pipe"):
        ingredients(settings, classes.parent, FileDigests())
    samples = open_data(settings, classes.parent, (spec(3, 12, 20),))
    with pytest.raises(InputError, match="found a pipe"):
        list(samples)


@pytest.mark.parametrize(
    "source", ["npz:pipe", "coco:pipe", "imagefolder:pipe", "npz:/dev/zero", "coco:/dev/zero", "npz:."]
)
def test_sources_that_are_no_files(tmp_path, source):
    os.mkfifo(tmp_path / "pipe")
    found = problems(DataSettings.model_validate({"source": source}), tmp_path)
    assert [field for field, *_ in found] == ["source"]


def test_a_list_of_ids_that_is_a_pipe(tmp_path, arrays):
    os.mkfifo(tmp_path / "ids.txt")
    split = {"file": "ids.txt"}
    found = problems(DataSettings.model_validate({"source": "npz:rows.npz", "split": split}), tmp_path)
    assert found[0][:2] == ("split.file", "ids.txt: found a pipe, wanted a regular file")


@pytest.mark.slow
def test_an_npz_that_unpacks_to_far_more_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("image.npy", b"")
        archive.infolist()[0].file_size = 1_100_000_000  # what the directory of the archive says
    found = problems(DataSettings.model_validate({"source": "npz:bomb.npz"}), tmp_path)
    assert "unpacks to 1100 MB" in found[0][1]


def test_an_npz_whose_header_lies_is_refused(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive,
        archive.open("image.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(
            member, {"descr": "<f8", "fortran_order": False, "shape": (2**50, 2**10)}
        )
    with pytest.raises(InputError, match="cannot be read"):
        opened(tmp_path, spec(4), source="npz:lies.npz")


def test_a_pickled_array_is_refused(tmp_path):
    np.savez(tmp_path / "pickled.npz", image=np.array([{"a": 1}], dtype=object))
    with pytest.raises(TrustError, match="pickled"):
        opened(tmp_path, spec(4), source="npz:pickled.npz")


def test_an_npz_with_two_arrays_of_one_name_is_refused(tmp_path):
    np.savez(tmp_path / "twice.npz", image=np.zeros((2, 4), "float32"))
    with zipfile.ZipFile(tmp_path / "twice.npz", "a") as archive:
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("image.npy", archive.read("image.npy"))
    found = problems(DataSettings.model_validate({"source": "npz:twice.npz"}), tmp_path)
    assert "two arrays 'image'" in found[0][1]


@pytest.mark.parametrize("member", ["image.npy", "image"])
def test_a_member_of_an_npz_that_is_no_array_is_refused(tmp_path, member):
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr(member, b"no array")
    with pytest.raises(InputError, match="'image' cannot be read"):
        opened(tmp_path, spec(4), source="npz:odd.npz")


def test_an_array_with_an_archive_behind_it_is_refused(tmp_path):
    """zipfile finds the archive at the end, NumPy the array at the beginning."""
    np.savez(tmp_path / "archive.npz", image=np.zeros((2, 4), "float32"))
    np.save(tmp_path / "array.npy", np.zeros((2, 4), "float32"))
    both = (tmp_path / "array.npy").read_bytes() + (tmp_path / "archive.npz").read_bytes()
    (tmp_path / "both.npz").write_bytes(both)
    with pytest.raises(InputError, match="'image' cannot be read"):
        opened(tmp_path, spec(4), source="npz:both.npz")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 12\n%%EndComments\nshowpage\n%%EOF\n"


def test_no_image_starts_a_program(classes, monkeypatch):
    from PIL import EpsImagePlugin

    from optcli.data.image_files import open_image
    from optcli.scaffold import known_layouts

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("it was started"))
    path = classes / "ant" / "evil.png"
    path.write_bytes(EPS)
    with pytest.raises(InputError, match="not a readable image"):
        open_image(str(path))
    with pytest.raises(InputError, match="not a readable image"):
        known_layouts.look(known_layouts.MasksRequest((path,), path.parent), None)


@pytest.mark.slow
def test_torchvision_starts_no_program_either(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    settings = DataSettings.model_validate({"source": "torchvision:CIFAR10", "split": "test"})
    with pytest.raises(InputError, match="torchvision cannot load it"):
        data.collection(settings, tmp_path)._load()  # type: ignore[attr-defined]
    assert not EpsImagePlugin.has_ghostscript()


def test_a_name_that_is_no_utf8_is_text_everywhere(tmp_path):
    """Archives of older systems leave such names behind; ids stand in splits, keys and reports."""
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    picture(0).save(folder / "a.png")
    os.rename(folder / "a.png", os.path.join(os.fsencode(folder), b"caf\xe9.png"))
    (tmp_path / "list.txt").write_bytes(b"cat/caf\xe9.png\r\n")
    for split in ({"seed": 0}, {"file": "list.txt"}):
        settings = DataSettings.model_validate({"source": "imagefolder:photos", "split": split})
        (sample,) = open_data(settings, tmp_path, [spec(3, 12, 20)])
        assert sample.id == r"cat/caf\udce9.png"
        key = ingredients(settings, tmp_path, FileDigests())
        assert json.dumps(key, ensure_ascii=False).encode()
