"""Baselines in one file: whole, verified, and trusted only where they should be."""

import io
import json
import tarfile

import pytest

from optcli import baselines
from optcli.artifact import Artifact, Format
from optcli.baselines import Kept
from optcli.digest import of_file
from optcli.errors import InputError, MissingError, StoreError, TrustError, UsageError
from optcli.results import RecipeSummary, Report
from optcli.settings import TensorSpec
from optcli.store import Store

INPUTS = (TensorSpec(name="image", shape=("batch", 3, 8, 8)),)


def kept(folder, format=Format.ONNX, **files):
    folder.mkdir(parents=True)
    for name, content in (files or {"model.onnx": b"weights" * 1000}).items():
        (folder / name).write_bytes(content)
    artifact = Artifact("key", format, folder, "fp32", 7000, "digest", {"outputs": ["y"]})
    return Kept(artifact, "onnxruntime", {"threads": 1}, ({"step": "source", "key": "k"},))


def report():
    return Report(
        recipe=RecipeSummary(name="flowers", path="flowers.yaml", digest="d"),
        environment={"cpu": {"name": "one"}},
        baseline="onnx",
        recommended="onnx",
        recommendation="Serve onnx.",
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:01:00+00:00",
        exit_code=0,
        variants={},
    )


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def pack(tmp_path, store):
    variants = {"onnx": kept(tmp_path / "a"), "int8": kept(tmp_path / "b", **{"model.onnx": b"8" * 99})}
    return baselines.save(tmp_path / "packs" / "main.optcli.tar", variants, INPUTS, report(), store)


def rewritten(pack, out, change):
    """A pack with members changed: `change` gets and gives a dict of contents by name."""
    with tarfile.open(pack) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}
    with tarfile.open(out, "w") as archive:
        for name, data in change(members).items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return out


def test_what_was_saved_is_loaded_in_another_store(pack, tmp_path):
    other = Store(tmp_path / "elsewhere")
    found = baselines.load(pack, "main", other)
    assert (found.origin, found.inputs, found.environment) == ("main", INPUTS, {"cpu": {"name": "one"}})
    assert found.report == report()
    assert set(found.variants) == {"onnx", "int8"}
    artifact = found.variants["onnx"].artifact
    assert (artifact.path / "model.onnx").read_bytes() == b"weights" * 1000
    assert artifact.path.is_relative_to(other.root)
    assert (artifact.format, artifact.digest, artifact.facts) == (
        Format.ONNX, "digest", {"outputs": ["y"]},
    )  # fmt: skip
    assert (found.variants["int8"].runner, found.variants["int8"].options) == (
        "onnxruntime",
        {"threads": 1},
    )
    assert baselines.load(pack, "again", other).variants == found.variants


def test_the_same_artifacts_make_the_same_file(pack, tmp_path, store):
    variants = {"onnx": kept(tmp_path / "c"), "int8": kept(tmp_path / "d", **{"model.onnx": b"8" * 99})}
    again = baselines.save(tmp_path / "again.optcli.tar", variants, INPUTS, report(), store)
    assert of_file(again) == of_file(pack)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5])
def test_a_truncated_file_is_refused_and_leaves_nothing(pack, store, share):
    data = pack.read_bytes()
    pack.write_bytes(data[: int(len(data) * share)])  # a tar ends in zeros that nobody misses
    with pytest.raises(InputError, match="no sound baseline") as failure:
        baselines.load(pack, "main", store)
    assert failure.value.hint
    assert store.keys("baseline") == []


def test_every_changed_byte_of_an_artifact_is_noticed(pack, tmp_path, store):
    def change(members):
        members["artifacts/onnx/model.onnx"] = members["artifacts/onnx/model.onnx"][:-1] + b"!"
        return members

    with pytest.raises(InputError, match=r"artifacts/onnx/model\.onnx is not as it was packed"):
        baselines.load(rewritten(pack, tmp_path / "bad.tar", change), "main", store)


@pytest.mark.parametrize("name", ["../../escaped", "artifacts/onnx/more.bin", "/absolute"])
def test_files_that_the_manifest_does_not_name_are_refused(pack, tmp_path, store, name):
    with pytest.raises(InputError, match="does not name"):
        baselines.load(
            rewritten(pack, tmp_path / "bad.tar", lambda m: {**m, name: b"x"}), "main", store
        )
    assert not (tmp_path / "escaped").exists()


def test_a_manifest_cannot_lead_outside(pack, tmp_path, store):
    def change(members):
        manifest = json.loads(members["manifest.json"])
        files = manifest["variants"]["onnx"]["files"]
        files["../../../../escaped"] = files["model.onnx"]
        name = "artifacts/onnx/../../../../escaped"
        return {
            "manifest.json": json.dumps(manifest).encode(),
            name: members["artifacts/onnx/model.onnx"],
            **{key: value for key, value in members.items() if key != "manifest.json"},
        }

    with pytest.raises(InputError, match="no sound baseline"):
        baselines.load(rewritten(pack, tmp_path / "bad.tar", change), "main", store)
    assert not list(tmp_path.rglob("escaped"))


def test_a_newer_schema_says_so(pack, tmp_path, store):
    def change(members):
        manifest = json.loads(members.pop("manifest.json")) | {"schema": 99, "unknown": 1}
        return {"manifest.json": json.dumps(manifest).encode(), **members}

    with pytest.raises(InputError, match="schema 99, this optcli reads 1"):
        baselines.load(rewritten(pack, tmp_path / "new.tar", change), "main", store)


@pytest.mark.parametrize("text", [b"{}", b"[]", b"not json", b'{"schema": 1, "variants": 3}'])
def test_a_foreign_manifest_is_no_baseline(pack, tmp_path, store, text):
    bad = rewritten(pack, tmp_path / "bad.tar", lambda m: {**m, "manifest.json": text})
    with pytest.raises(InputError, match="no sound baseline"):
        baselines.load(bad, "main", store)


def test_code_runs_only_where_this_store_wrote_it_or_the_person_trusts_it(tmp_path, store):
    variants = {"eager": kept(tmp_path / "t", Format.TORCH, **{"model.json": b"{}"})}
    pack = baselines.save(tmp_path / "p.tar", variants, INPUTS, report(), store)
    assert baselines.load(pack, "p", store).variants["eager"].artifact.format is Format.TORCH
    stranger = Store(tmp_path / "stranger")
    with pytest.raises(TrustError, match="eager") as failure:
        baselines.load(pack, "p", stranger)
    assert "--trust" in failure.value.hint
    assert baselines.load(pack, "p", stranger, trust=True).variants


def test_names_files_and_urls_are_found(pack, tmp_path):
    artifacts = tmp_path / "artifacts"
    named = baselines.place_of("main", artifacts)
    named.parent.mkdir(parents=True)
    named.write_bytes(pack.read_bytes())
    for reference in ("main", str(pack), pack.as_uri()):
        with baselines.fetch(reference, artifacts) as path:
            assert path.read_bytes() == pack.read_bytes()
    assert baselines.names(artifacts) == ["main"]


def test_what_is_not_there_says_what_to_do(tmp_path):
    def fails(reference, match, kind=InputError):
        with pytest.raises(kind, match=match) as failure, baselines.fetch(reference, tmp_path):
            pass
        return failure.value.hint

    baselines.place_of("main", tmp_path).parent.mkdir()
    baselines.place_of("main", tmp_path).touch()
    assert "'main'" in fails("mian", "no baseline 'mian'")
    assert fails("nothing-like-it", "no baseline") == "one of: main"
    fails("gone/main.tar", "no such file")
    fails((tmp_path / "none.tar").as_uri(), "cannot be fetched")
    fails("nosuchprotocol://x/y", "cannot be fetched")
    with pytest.raises(UsageError, match="cannot name"):
        baselines.place_of("../up", tmp_path)


def test_a_library_that_a_url_needs_is_named(tmp_path, monkeypatch):
    import fsspec

    def missing(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "open", missing)
    for url, extra in (("s3://bucket/key", "[s3]"), ("https://host/x", "[http]")):
        with (
            pytest.raises(MissingError, match="s3fs") as failure,
            baselines.fetch(url, tmp_path),
        ):
            pass
        assert extra in failure.value.hint


def test_a_full_disk_leaves_the_old_pack(pack, tmp_path, store, monkeypatch):
    before = pack.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(StoreError, match="disk is full"):
        baselines.save(pack, {"onnx": kept(tmp_path / "c")}, INPUTS, report(), store)
    assert pack.read_bytes() == before
    assert [path.name for path in pack.parent.iterdir()] == [pack.name]
