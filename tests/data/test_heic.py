"""HEIC images are read where pillow-heif is there, and counted with a way out where it is not."""

import io
import sys
from types import SimpleNamespace

import pytest
from generated import picture, spec
from PIL import Image, ImageFile

from optcli.data import DataSettings, image_files, remarks
from optcli.data import open as open_data


@pytest.fixture(autouse=True)
def folder(tmp_path):
    """A folder with a PNG, and with another one that is called a HEIC image."""
    picture(0).save(tmp_path / "a.png")
    written = io.BytesIO()
    picture(1).save(written, "PNG")
    (tmp_path / "b.HEIC").write_bytes(b"heic" + written.getvalue())
    yield tmp_path
    image_files._formats.cache_clear()


class Heif(ImageFile.ImageFile):
    format = "HEIF"

    def _open(self):
        self.fp.seek(4)
        with Image.open(io.BytesIO(self.fp.read()), formats=["PNG"]) as image:
            image.load()
        self._mode, self._size, self.tile = image.mode, image.size, []
        self.im = image.im


def test_without_the_library_they_are_counted(folder, monkeypatch):
    monkeypatch.setattr(image_files, "_reads_heic", lambda: False)
    settings = DataSettings(source=f"imagefolder:{folder}")
    assert len(open_data(settings, folder, [spec(3, 12, 20)])) == 1
    (said,) = remarks(settings, folder)
    assert said.endswith("1 .heic (pip install pillow-heif reads .heic)")


def test_with_the_library_they_are_images(folder, monkeypatch):
    def register_heif_opener():
        Image.register_open("HEIF", Heif, lambda prefix: prefix[:4] == b"heic")

    monkeypatch.setattr(image_files, "_reads_heic", lambda: True)
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    fake = SimpleNamespace(register_heif_opener=register_heif_opener)
    monkeypatch.setitem(sys.modules, "pillow_heif", fake)
    settings = DataSettings(source=f"imagefolder:{folder}")
    samples = open_data(settings, folder, [spec(3, 12, 20)])
    assert [samples[n].id for n in range(len(samples))] == ["a.png", "b.HEIC"]
    assert samples[1].inputs["image"].std() > 0
    assert remarks(settings, folder) == []
