"""Archives of exported programs with members that torch does not write."""

import struct
import zipfile
from pathlib import Path

import pytest
import torch
from hostile_archives import members, written

from optcli.errors import InputError
from optcli.models.formats import exported as exported_format

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    network = torch.nn.Sequential(torch.nn.Linear(8, 2)).eval()
    exported_format.save(torch.export.export(network, (torch.ones(3, 8),)), folder)
    return members(folder / exported_format.FILE)


@pytest.fixture
def plain(files, tmp_path):
    return written(tmp_path / exported_format.FILE, files)


def test_an_encrypted_member_and_a_link_are_refused(plain, tmp_path, files):
    data = bytearray(plain.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    data[place + 8] |= 1
    plain.write_bytes(data)
    with pytest.raises(InputError, match="encrypted"):
        exported_format.open(tmp_path)
    written(plain, files)
    data = bytearray(plain.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    struct.pack_into("<L", data, place + 38, 0o120777 << 16)
    plain.write_bytes(data)
    with pytest.raises(InputError, match="link"):
        exported_format.open(tmp_path)


def test_a_folders_flag_and_a_member_out_of_nothing_are_refused(plain, tmp_path, files):
    data = bytearray(plain.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 38] |= 0x10
    plain.write_bytes(data)
    with pytest.raises(InputError, match="entry of a folder"):
        exported_format.open(tmp_path)
    written(plain, {**files, "extra/x": b""})
    data = bytearray(plain.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    for place, size in ((struct.unpack_from("<L", data, entry + 42)[0], 8), (entry, 10)):
        struct.pack_into("<H", data, place + size, zipfile.ZIP_DEFLATED)
        struct.pack_into("<L", data, place + size + 14, 100)
    plain.write_bytes(data)
    with pytest.raises(InputError, match="two sizes"):
        exported_format.open(tmp_path)


def test_what_unpacks_to_more_than_it_may_is_refused_at_once(files, tmp_path):
    path = tmp_path / exported_format.FILE
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            archive.writestr(f"model/{name}", data)
        with archive.open("model/extra/zeros", "w", force_zip64=True) as stream:
            for _ in range(300):
                stream.write(b"\0" * 1024**2)
    with pytest.raises(InputError, match="unpack to"):
        exported_format.open(tmp_path)


def test_two_folders_at_the_top_are_refused(files, tmp_path):
    path: Path = tmp_path / exported_format.FILE
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"model/{name}", data)
        archive.writestr("other/version", b"1")
    with pytest.raises(InputError, match="2 folders"):
        exported_format.open(tmp_path)


def test_a_graph_nested_too_deeply_is_an_input_error(files, tmp_path):
    deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    written(tmp_path / exported_format.FILE, {**files, "models/model.json": deep})
    with pytest.raises(InputError):
        exported_format.open(tmp_path)
