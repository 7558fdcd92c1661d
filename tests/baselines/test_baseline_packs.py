"""Baselines in one file: whole, verified, and trusted only where they should be."""

import io
import json
import os
import tarfile
import zipfile

import pytest

from optcli.artifact import Artifact, Format
from optcli.errors import InputError, MissingError, StoreError, TrustError, UsageError
from optcli.files.digest import of_bytes, of_file, of_value
from optcli.gate import baselines
from optcli.gate.baselines import BaselineVariant, places
from optcli.results import RecipeSummary, Report
from optcli.runners import DEFAULTS
from optcli.settings import TensorSpec
from optcli.store import Store

INPUTS = (TensorSpec(name="image", shape=("batch", 3, 8, 8)),)


def kept(folder, format=Format.ONNX, **files):
    folder.mkdir(parents=True)
    for name, content in (files or {"model.onnx": b"weights" * 1000}).items():
        (folder / name).write_bytes(content)
    content = of_value(sorted((path.name, of_file(path)) for path in folder.iterdir()))
    artifact = Artifact("a" * 64, format, folder, "fp32", 7000, content, {"outputs": ["y"]})
    runner = DEFAULTS.get(format, "onnxruntime")
    return BaselineVariant(artifact, runner, {"threads": 1}, ({"step": "source", "key": "k"},))


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
        Format.ONNX, of_value([["model.onnx", of_file(artifact.path / "model.onnx")]]),
        {"outputs": ["y"]},
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


def test_a_pack_of_what_was_fetched_does_not_count_as_written_by_this_store(tmp_path, store):
    variants = {"eager": kept(tmp_path / "t", Format.TORCH, **{"model.json": b"{}"})}
    pack = baselines.save(tmp_path / "p.tar", variants, INPUTS, report(), store, own=False)
    with pytest.raises(TrustError, match="eager"):
        baselines.load(pack, "p", store)


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


# ---- packs that lie


def manifest_changed(pack, out, change):
    """The pack with its manifest changed."""

    def rewrite(members):
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        return {**members, "manifest.json": json.dumps(manifest).encode()}

    return rewritten(pack, out, rewrite)


def with_files(tmp_path, store, format, said, runner, options=None, **files):
    """A pack whose artifact holds `files` and calls itself `said`, with a runner of its choice."""
    packed = kept(tmp_path / "files", format, **files)
    pack = baselines.save(tmp_path / "true.tar", {"v": packed}, INPUTS, report(), store)

    def lie(manifest):
        variant = manifest["variants"]["v"]
        variant["artifact"]["format"], variant["runner"] = said, runner
        variant["options"] = options or {}

    return manifest_changed(pack, tmp_path / "lying.tar", lie)


NETWORK = {"model.json": b"{}", "code_net.py": b"open('marker', 'w')"}


@pytest.mark.parametrize("runner", ["torch", "tensorrt", "aoti", "os", "../torch", "_engine"])
def test_a_runner_that_does_not_run_the_format_is_refused(tmp_path, store, runner):
    pack = with_files(tmp_path, store, Format.TORCH, "onnx", runner, **NETWORK)
    with pytest.raises(InputError, match="no sound baseline"):
        baselines.load(pack, "p", Store(tmp_path / "other"), trust=True)


@pytest.mark.parametrize(
    ("said", "runner", "files"),
    [
        ("onnx", "onnxruntime", NETWORK),
        ("exported", "torch", NETWORK),
        ("onnx", "onnxruntime", {"model.onnx": b"PK\x03\x04"}),
        ("onnx", "onnxruntime", {"model.onnx": b"\x7fELF"}),
        ("onnx", "onnxruntime", {"model.onnx": b"\x08\x08", "net.py": b""}),
        ("onnx", "onnxruntime", {"model.onnx": b"\x08\x08", "model.json": b"{}"}),
        ("torchscript", "torchscript", {"model.pt": b"\x80\x02"}),
        ("openvino", "openvino", {"model.xml": b"\x7fELF", "model.bin": b""}),
    ],
)
def test_what_an_artifact_is_stands_in_its_files(tmp_path, store, said, runner, files):
    pack = with_files(tmp_path, store, Format.ONNX, said, runner, **files)
    other = Store(tmp_path / "other")
    with pytest.raises(InputError, match="says that it is"):
        baselines.load(pack, "p", other)
    assert other.keys("baseline") == []


def test_a_package_with_native_code_is_not_an_exported_program(tmp_path, store):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("model/DATA/aotinductor/model/net.so", b"code")
    files = {"model.pt2": stream.getvalue()}
    pack = with_files(tmp_path, store, Format.EXPORTED, "exported", "torch", **files)
    with pytest.raises(InputError, match="holds aoti"):
        baselines.load(pack, "p", Store(tmp_path / "other"))


def test_nothing_from_a_pack_names_a_program_or_a_file(tmp_path, store):
    engine = {"model.plan": b"plan", "engine.json": b"{}"}
    options = {"python": "/tmp/evil", "device": 0}
    pack = with_files(tmp_path, store, Format.TENSORRT, "tensorrt", "tensorrt", options, **engine)
    other = Store(tmp_path / "other")
    with pytest.raises(TrustError):
        baselines.load(pack, "p", other)
    assert baselines.load(pack, "p", other, trust=True).variants["v"].options == {"device": 0}


def test_libraries_among_the_options_of_a_provider_are_left_out(tmp_path, store):
    plugins = {"trt_extra_plugin_lib_paths": "/tmp/evil.so", "device_id": "0"}
    options = {"provider": "cuda", "provider_options": plugins}
    files = {"model.onnx": b"\x08\x08"}
    pack = with_files(tmp_path, store, Format.ONNX, "onnx", "onnxruntime", options, **files)
    try:
        found = baselines.load(pack, "p", Store(tmp_path / "other")).variants["v"]
    except InputError:  # the runner knows better which options its provider has
        return
    assert found.options["provider_options"] == {"device_id": "0"}


def test_artifacts_of_a_pack_from_elsewhere_are_opened_in_workers_that_can_only_read(pack, tmp_path):
    other = Store(tmp_path / "other")
    assert all(one.artifact.foreign for one in baselines.load(pack, "p", other).variants.values())
    trusted = baselines.load(pack, "p", other, trust=True).variants.values()
    assert all(one.artifact.foreign and one.artifact.trusted for one in trusted)


def test_a_pack_of_what_was_made_under_trust_wants_it_again(pack, tmp_path):
    def mark(manifest):
        facts = manifest["variants"]["onnx"]["artifact"]["facts"]
        facts["unproven"] = ["its graph calls 'torch.ops.mine.f'"]

    marked, store = manifest_changed(pack, tmp_path / "marked.tar", mark), Store(tmp_path / "other")
    with pytest.raises(TrustError, match=r"torch\.ops\.mine\.f") as failure:
        baselines.load(marked, "p", store)
    assert "--trust" in failure.value.hint
    assert baselines.load(marked, "p", store, trust=True).variants


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["variants"]["onnx"]["artifact"].update(key="../../x"),
        lambda m: m["variants"]["onnx"]["artifact"].update(digest="0" * 64),
        lambda m: m["variants"]["onnx"]["artifact"].update(facts=[]),
        lambda m: m["variants"]["onnx"]["artifact"].update(format="exe"),
        lambda m: m["variants"]["onnx"]["options"].update(unknown=1),
        lambda m: m["variants"].update({"../up": m["variants"].pop("onnx")}),
        lambda m: m["variants"].update(ONNX=m["variants"]["onnx"]),
        lambda m: m["variants"]["onnx"]["files"].update({"MODEL.ONNX": "0" * 64}),
        lambda m: m.update(environment={"cpu": []}),
        lambda m: m.update(environment={"cpu": {"flags": [[]]}}),
        lambda m: m.update(environment={"versions": 3}),
        lambda m: m.update(schema=None),
        lambda m: m.update(schema=float("inf")),
    ],
)
def test_an_odd_manifest_is_refused(pack, tmp_path, change):
    bad = manifest_changed(pack, tmp_path / "bad.tar", change)
    with pytest.raises(InputError, match="no sound baseline"):
        baselines.load(bad, "p", Store(tmp_path / "other"))


@pytest.mark.parametrize("member", ["manifest.json", "report.json"])
def test_json_that_is_nested_too_deeply_is_refused(pack, tmp_path, member):
    deep = b'{"a":' * 50_000 + b"1" + b"}" * 50_000

    def change(members):
        if member == "report.json":
            manifest = json.loads(members["manifest.json"])
            manifest["report"] = of_bytes(deep)
            members["manifest.json"] = json.dumps(manifest).encode()
        return {**members, member: deep}

    with pytest.raises(InputError, match="no sound baseline"):
        baselines.load(rewritten(pack, tmp_path / "deep.tar", change), "p", Store(tmp_path / "other"))


def sparse(pack, out, size):
    """The pack with its first artifact as a file with a hole of `size` bytes, as GNU tar writes it."""
    with tarfile.open(pack) as archive:
        members = [(m, archive.extractfile(m).read()) for m in archive]
    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as archive:
        for about, data in members:
            about.pax_headers = {}
            if about.name.endswith("onnx/model.onnx"):
                about.type = tarfile.GNUTYPE_SPARSE
                header = bytearray(about.tobuf(tarfile.GNU_FORMAT))
                header[386:398] = b"%011o\0" % 0  # where its only piece is
                header[398:410] = b"%011o\0" % len(data)
                header[483:495] = b"%011o\0" % size
                header[148:156] = b" " * 8
                header[148:156] = b"%06o\0 " % sum(header)
                archive.fileobj.write(bytes(header) + data + b"\0" * (-len(data) % 512))
                archive.offset += 512 + len(data) + (-len(data) % 512)
            else:
                archive.addfile(about, io.BytesIO(data))
    return out


def test_a_file_with_a_hole_does_not_fill_the_disk(pack, tmp_path):
    other = Store(tmp_path / "other")
    bad = sparse(pack, tmp_path / "sparse.tar", 8 * 1024**3)
    with tarfile.open(bad) as archive:
        assert any(member.issparse() and member.size == 8 * 1024**3 for member in archive)
    with pytest.raises(InputError, match="no plain file"):
        baselines.load(bad, "p", other)
    assert other.keys("baseline") == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(pack, tmp_path, kind):
    out = tmp_path / "bad.tar"
    with tarfile.open(pack) as old, tarfile.open(out, "w") as new:
        for member in old:
            data = old.extractfile(member).read()
            if member.name.endswith("onnx/model.onnx"):
                member.type, member.linkname, member.size, data = kind, "/etc/passwd", 0, b""
            new.addfile(member, io.BytesIO(data))
    with pytest.raises(InputError, match="no plain file"):
        baselines.load(out, "p", Store(tmp_path / "other"))


def test_a_full_disk_is_seen_before_anything_is_written(pack, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr("optcli.gate.baselines.pack.shutil.disk_usage", lambda place: usage)
    with pytest.raises(StoreError, match="are free"):
        baselines.load(pack, "p", Store(tmp_path / "other"))


def test_a_pipe_is_no_pack(tmp_path, store):
    pipe = tmp_path / "pipe.tar"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="wanted a regular file"):
        baselines.load(pipe, "p", store)


@pytest.mark.parametrize("name", ["main", "v1.2", "v2.0.onnx"])
def test_a_name_is_never_a_file_of_the_current_folder(tmp_path, monkeypatch, name):
    """A pull request could add a file called as the baseline is."""
    monkeypatch.chdir(tmp_path)
    named = baselines.place_of(name, tmp_path / "artifacts")
    named.parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(b"of the pull request")
    with (
        pytest.raises(InputError, match="there is no baseline") as caught,
        baselines.fetch(name, tmp_path / "artifacts"),
    ):
        pass
    assert caught.value.hint == f"write ./{name} for the file of that name"
    named.write_bytes(b"saved")
    with baselines.fetch(name, tmp_path / "artifacts") as found:
        assert found.read_bytes() == b"saved"
    with baselines.fetch(f"./{name}", tmp_path / "artifacts") as found:
        assert found.read_bytes() == b"of the pull request"


@pytest.mark.parametrize(
    "headers",
    [{"GNU.sparse.map": "abc"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "x"},
     {"GNU.sparse.size": "many"}, {"size": "-"}],
)  # fmt: skip
def test_headers_that_tarfile_stumbles_over_are_no_baseline(pack, tmp_path, headers):
    with tarfile.open(pack) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}
    with tarfile.open(tmp_path / "odd.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size, about.pax_headers = len(data), headers if name == "report.json" else {}
            archive.addfile(about, io.BytesIO(data))
    with pytest.raises(InputError, match="no sound baseline"):
        baselines.load(tmp_path / "odd.tar", "main", Store(tmp_path / "elsewhere"))


@pytest.mark.parametrize("steps", [[{}], [{"step": "source"}], [{"step": 5, "key": "k"}]])
def test_a_step_without_a_name_or_key_is_refused(pack, tmp_path, steps):
    def change(manifest):
        manifest["variants"]["onnx"]["made_by"] = steps

    with pytest.raises(InputError, match="a step has no name or no key"):
        baselines.load(manifest_changed(pack, tmp_path / "odd.tar", change), "main", Store(tmp_path))


def test_a_machine_that_is_none_is_refused(pack, tmp_path):
    def change(manifest):
        manifest["environment"]["machine"] = 5

    with pytest.raises(InputError, match="its machine is odd"):
        baselines.load(manifest_changed(pack, tmp_path / "odd.tar", change), "main", Store(tmp_path))


def test_what_a_url_gives_is_held_to_the_disk(pack, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": places.SPARE_BYTES})()
    monkeypatch.setattr(places.shutil, "disk_usage", lambda place: usage)
    with (
        pytest.raises(StoreError, match="no room to fetch"),
        baselines.fetch(f"file://{pack}", tmp_path),
    ):
        pass


def test_what_a_url_gives_has_an_end(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_MOST_BYTES", 1000)
    with pytest.raises(InputError, match="is larger than"), baselines.fetch(f"file://{pack}", tmp_path):
        pass
