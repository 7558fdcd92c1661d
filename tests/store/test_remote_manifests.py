"""A remote store whose writer lies: names that lead outside, absurd sizes, wrong types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from faulty_remote import Machine, files_of

from optcli.files import digest
from optcli.store import key_of
from optcli.store.remote import RefusedError, manifest

STEP = {"step": "export_onnx"}
KEY = key_of(STEP)
CONTENT = digest.of_bytes(b"graph")


def body(contents=None, **changes):
    """What a manifest holds, with everything that follows from its files made to fit them."""
    contents = {"model": [5, CONTENT]} if contents is None else contents
    pairs = sorted((name, value[1]) for name, value in contents.items() if isinstance(value, list))
    sizes = [value[0] for value in contents.values() if isinstance(value, list)]
    return {
        "schema": 1,
        "kind": "artifact",
        "key": KEY,
        "created": "2026-01-01T00:00:00+00:00",
        "digest": digest.of_value(pairs),
        "size_bytes": sum(size for size in sizes if isinstance(size, int)),
        "contents": contents,
        "record": {},
        "ingredients": STEP,
    } | changes


def sealed(of) -> bytes:
    return json.dumps({"seal": digest.of_value(of), "entry": of}).encode()


def read(data: bytes):
    return manifest.read(data, "artifact", KEY, Path("/nonexistent"), "file:///remote")


def test_a_sound_one_is_read_and_written_again():
    entry = read(sealed(body()))
    assert entry.contents == {"model": (5, CONTENT)}
    assert (entry.origin, entry.size_bytes) == ("file:///remote", 5)
    assert read(json.dumps(manifest.sealed(entry)).encode()) == entry


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../../locks/commit.lock",
        "a/../../b",
        "..",
        ".",
        "",
        "a//b",
        "a/",
        "./a",
        "a\\..\\b",
        "c:evil",
        "a\nb",
        "a\0b",
        "\u202eexe",
        "__pycache__/net.pyc",
        "code/__pycache__/net.pyc",
        "x" * 300,
        "/".join(["x" * 100] * 20),
    ],
)
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(RefusedError, match="cannot be the name of a file"):
        read(sealed(body({name: [5, CONTENT]})))


def test_a_name_with_half_a_character_is_refused():
    with pytest.raises(RefusedError, match="half a character"):
        read(sealed(body({"\ud800": [5, CONTENT]})))


@pytest.mark.parametrize("names", [("Model", "model"), ("a", "a/b"), ("A", "a/b/c")])
def test_names_that_are_in_each_others_way_are_refused(names):
    with pytest.raises(RefusedError, match=r"one name|lies in a file"):
        read(sealed(body({name: [5, CONTENT] for name in names})))


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({"model": [-1, CONTENT]}, "the size of 'model' is '-1'"),
        ({"model": [10**30, CONTENT]}, "allowed"),
        ({"model": [5.0, CONTENT]}, "the size of 'model'"),
        ({"model": [True, CONTENT]}, "the size of 'model'"),
        ({"model": ["5", CONTENT]}, "the size of 'model'"),
        ({"model": [5, "../" + CONTENT[3:]]}, "no digest"),
        ({"model": [5, CONTENT.upper()]}, "no digest"),
        ({"model": [5, CONTENT + "\n"]}, "no digest"),
        ({"model": [5, None]}, "no digest"),
        ({"model": [5]}, "no size and digest"),
        ({"model": "5"}, "no size and digest"),
    ],
)
def test_sizes_and_digests_that_are_none_are_refused(contents, words):
    made = body() | {"contents": contents}
    with pytest.raises(RefusedError, match=words):
        read(sealed(made))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "another schema"),
        ({"schema": True}, "another schema"),
        ({"kind": "comparison"}, "of another entry"),
        ({"key": "0" * 64}, "of another entry"),
        ({"ingredients": {"step": "other"}}, "do not make its key"),
        ({"ingredients": []}, "ingredients is no mapping"),
        ({"record": None}, "record is no mapping"),
        ({"contents": ["model"]}, "contents is no mapping"),
        ({"size_bytes": 6}, "its size is not that of its files"),
        ({"digest": "0" * 64}, "its digest does not fit"),
        ({"created": 5}, "created is no time"),
        ({"created": "x" * 1000}, "created is no time"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, words):
    with pytest.raises(RefusedError, match=words):
        read(sealed(body() | changes))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"seal": "x", "entry": []}',
        b'{"seal": "x", "entry": {}}',
        b"[" * 200_000,
        b'{"entry":' * 100_000,
        b"9" * 100_000,
        sealed(body())[:-1],
        sealed(body()).replace(b'"model"', b'"other"'),
    ],
)
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(RefusedError, match="its manifest"):
        read(data)


@pytest.mark.parametrize("missing", sorted(body()))
def test_one_that_lacks_something_is_refused(missing):
    less = {name: value for name, value in body().items() if name != missing}
    with pytest.raises(RefusedError, match="cannot be read"):
        read(sealed(less))


@pytest.mark.slow
def test_too_many_files_are_refused():
    with pytest.raises(RefusedError, match="more than 100000 files"):
        read(sealed(body({f"f{number}": [0, CONTENT] for number in range(100_001)})))


class TestAWholeRemoteStore:
    """The same through a store: what is refused is named, and nothing is written outside."""

    @pytest.fixture
    def remote(self, tmp_path):
        (tmp_path / "remote/v1/entries/artifact").mkdir(parents=True)
        place = tmp_path / "remote" / manifest.object_of(CONTENT)
        place.parent.mkdir(parents=True)
        place.write_bytes(b"graph")
        return tmp_path / "remote"

    def found(self, tmp_path, data: bytes):
        (tmp_path / "remote" / manifest.path_of("artifact", KEY)).write_bytes(data)
        machine = Machine(tmp_path / "store", f"file://{tmp_path}/remote", read_only=True)
        return machine.find(STEP), machine.heard

    def test_a_sound_one_is_taken(self, tmp_path, remote):
        entry, heard = self.found(tmp_path, sealed(body()))
        assert files_of(entry) == {"model": b"graph"}
        assert heard == []

    def test_a_name_that_leads_outside_writes_nothing_there(self, tmp_path, remote):
        before = {path for path in tmp_path.rglob("*") if "store" not in path.parts}
        entry, heard = self.found(tmp_path, sealed(body({"../../../../outside": [5, CONTENT]})))
        assert entry is None
        assert f"artifact {KEY[:12]} is refused" in heard[0]
        assert "'../../../../outside'" in heard[0]
        after = {path for path in tmp_path.rglob("*") if "store" not in path.parts}
        assert {path.name for path in after - before} == {f"{KEY}.json"}

    def test_one_without_an_end_is_not_read_whole(self, tmp_path, remote):
        entry, heard = self.found(tmp_path, b" " * (manifest.MOST_BYTES + 2))
        assert entry is None
        assert "has more than" in heard[0]

    def test_a_size_that_is_a_lie_is_found(self, tmp_path, remote):
        entry, heard = self.found(tmp_path, sealed(body({"model": [10**9, CONTENT]})))
        assert entry is None
        assert "has not the content of its digest" in heard[0]
        entry, heard = self.found(tmp_path, sealed(body({"model": [0, CONTENT]})))
        assert entry is None
        assert "its digest is not that of nothing" in heard[0]

    def test_a_mark_of_origin_cannot_be_brought_along(self, tmp_path, remote):
        """The files of an entry lie in a folder of their own."""
        entry, _ = self.found(tmp_path, sealed(body({"fetched-from.txt": [5, CONTENT]})))
        assert entry.origin == f"file://{tmp_path}/remote"


@pytest.mark.parametrize("name", ["a/{long}/b", "{long}", "a/{long}"])
def test_one_part_of_a_name_that_no_file_system_takes_is_enough(name):
    assert manifest._is_plain(name.format(long="x" * 100))
    assert not manifest._is_plain(name.format(long="x" * 300))
