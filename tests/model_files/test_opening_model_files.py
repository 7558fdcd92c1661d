"""Model files that no recipe built: their kind, whether they are trusted, what they take together."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from tiny_project import write_model

from optcli.artifact import Artifact, Format
from optcli.errors import InputError, TrustError, UsageError
from optcli.files import digest
from optcli.pipeline.model_files import laying_out
from optcli.pipeline.model_files.opening import (
    Opened,
    find,
    merged,
    open_all,
    open_each,
    require_trusted_code,
    trusting,
)
from optcli.scaffold.inspection import resolve
from optcli.settings import TensorSpec
from optcli.store import Entry, Store
from optcli.workers import confinement


def spec(name="image", shape=("batch", 3, 4, 4), dtype="float32", **ranges) -> TensorSpec:
    return TensorSpec.model_validate({"name": name, "dtype": dtype, "shape": shape, **ranges})


def opened(name: str, format: Format, *inputs: TensorSpec) -> Opened:
    return Opened(name, Path(name), Artifact("k", format, Path(name), "fp32", 1, "d"), inputs)


def folder(place: Path, format: str, kind: str = "torchvision") -> Path:
    """An artifact's folder as a build lays it out."""
    place.mkdir()
    (place / "model.pt2").write_bytes(b"code")
    content = digest.of_value([["model.pt2", digest.of_file(place / "model.pt2")]])
    about = {
        "key": "1234",
        "digest": content,
        "format": format,
        "precision": "fp32",
        "size_bytes": 4,
        "made_by": [
            {"key": "12", "step": "source", "kind": kind, "inputs": [spec().model_dump(mode="json")]}
        ],
        "facts": {"outputs": ["output"]},
    }
    (place / "artifact.json").write_text(json.dumps(about))
    return place


def keep(store: Store, record: dict[str, object] | None = None) -> Entry:
    """The artifact of `folder` in a store."""
    with store.work("artifact", "1234") as work:
        (work / "model.pt2").write_bytes(b"code")
        return store.put("artifact", "1234", work, record or {}, {})


class TestMerged:
    def test_names_are_those_of_a_file_where_names_count(self):
        both = merged(
            [opened("a.pt2", Format.EXPORTED, spec("x")), opened("b.onnx", Format.ONNX, spec("image"))]
        )
        assert [each.name for each in both] == ["image"]

    def test_sizes_are_those_that_every_file_takes(self):
        wide = spec(batch={"min": 1, "opt": 8, "max": 64})
        narrow = spec("x", ("n", 3, 4, 4), n={"min": 2, "opt": 4, "max": 16})
        (both,) = merged([opened("a", Format.ONNX, wide), opened("b", Format.EXPORTED, narrow)])
        assert (both.shape, both.ranges["batch"].min, both.ranges["batch"].max) == (
            ("batch", 3, 4, 4), 2, 16,
        )  # fmt: skip

    def test_one_file_of_a_fixed_size_fixes_it_for_all(self):
        fixed = spec("x", (1, 3, 4, 4))
        (both,) = merged([opened("a", Format.ONNX, spec()), opened("b", Format.EXPORTED, fixed)])
        assert both.shape == (1, 3, 4, 4)

    def test_the_only_input_may_have_another_name(self):
        files = [
            opened("a.onnx", Format.ONNX, spec()),
            opened("b.onnx", Format.ONNX, spec("pixels")),
            opened("c.pt2", Format.EXPORTED, spec("x")),
        ]
        both = merged(files)
        assert [each.name for each in both] == ["image"]
        assert [each.own_names(both) for each in files] == [(), ("pixels",), ()]

    def test_of_several_inputs_names_tell_which_is_which(self):
        mask = spec("mask", ("batch", 1))
        files = [
            opened("a.onnx", Format.ONNX, spec(), mask),
            opened("b.onnx", Format.ONNX, spec("pixels"), mask),
        ]
        with pytest.raises(InputError, match="pixels"):
            merged(files)

    def test_inputs_by_name_in_another_order(self):
        mask = spec("mask", ("batch", 1))
        both = merged(
            [opened("a", Format.ONNX, spec(), mask), opened("b", Format.OPENVINO, mask, spec())]
        )
        assert [each.name for each in both] == ["image", "mask"]

    @pytest.mark.parametrize(
        "other",
        [
            spec("image", ("batch", 3, 8, 8)),
            spec("image", ("batch", 3, 4)),
            spec("image", dtype="uint8"),
            spec("picture", ("batch", 3, 4, 4), "uint8"),
            spec(batch={"min": 200, "max": 300}),
        ],
    )
    def test_what_does_not_agree_is_named_with_both(self, other):
        with pytest.raises(InputError) as failure:
            merged([opened("a.onnx", Format.ONNX, spec()), opened("b.onnx", Format.ONNX, other)])
        assert failure.value.place == "b.onnx"
        assert "but a.onnx takes image:float32[batch, 3, 4, 4]" in failure.value.message


class TestTrust:
    @pytest.mark.parametrize("format", ["aoti", "torch", "torchscript", "exported"])
    def test_programs_from_elsewhere_are_refused(self, tmp_path, tmp_store, format, monkeypatch):
        walls = confinement.Walls(files=False, network=True)
        monkeypatch.setattr(confinement, "available", lambda: walls)
        place = folder(tmp_path / "made", format)
        with pytest.raises(TrustError, match=r"to run it is to trust it|cannot confine") as failure:
            find([place], tmp_store, trust=False)
        assert "--trust" in failure.value.hint
        assert find([place], tmp_store, trust=True)[0].format == format

    def test_torchscript_needs_no_trust_where_its_worker_can_only_read(
        self, tmp_path, tmp_store, monkeypatch
    ):
        walls = confinement.Walls(files=True, network=True)
        monkeypatch.setattr(confinement, "available", lambda: walls)
        assert not find([folder(tmp_path / "made", "torchscript")], tmp_store, trust=False)[0].trusted
        with pytest.raises(TrustError):
            find([folder(tmp_path / "native", "aoti")], tmp_store, trust=False)

    def test_what_is_from_elsewhere_is_opened_in_a_worker_that_can_only_read(self, tmp_path, tmp_store):
        place = folder(tmp_path / "made", "exported")
        for trust in (True, False):
            target = find([place], tmp_store, trust=trust)[0]
            artifact = open_each([target], tmp_path, (), 1)[0].artifact
            assert (artifact.foreign, artifact.trusted) == (True, trust)

    @pytest.mark.parametrize(("kind", "foreign"), [("exported", True), ("torchvision", False)])
    def test_of_the_own_store_what_was_made_of_a_file_is_confined(
        self, tmp_path, tmp_store, kind, foreign
    ):
        place = folder(tmp_path / "made", "exported", kind)
        keep(tmp_store)
        target = find([place], tmp_store, trust=False)[0]
        assert open_each([target], tmp_path, (), 1)[0].artifact.foreign is foreign

    @pytest.mark.parametrize("format", ["exported", "onnx", "aoti"])
    def test_what_was_made_under_trust_wants_it_again(self, tmp_path, tmp_store, format):
        place = folder(tmp_path / "made", format)
        keep(tmp_store, {"facts": {"unproven": ["its graph calls 'torch.ops.mine.f'"]}})
        with pytest.raises(TrustError, match=r"made with --trust.*torch.ops.mine.f") as failure:
            find([place], tmp_store, trust=False)
        assert "--trust" in failure.value.hint
        assert find([place], tmp_store, trust=True)[0].trusted

    def test_looking_into_a_network_in_python_from_elsewhere_is_refused(self, tmp_path, tmp_store):
        target = resolve(str(folder(tmp_path / "made", "torch")), tmp_path)
        with pytest.raises(TrustError, match="runs its code") as failure:
            require_trusted_code(trusting(target, tmp_store, trust=False))
        assert "--trust" in failure.value.hint
        require_trusted_code(trusting(target, tmp_store, trust=True))
        other = resolve(str(folder(tmp_path / "a", "exported")), tmp_path)
        require_trusted_code(trusting(other, tmp_store, trust=False))

    def test_what_the_own_store_holds_is_trusted_until_it_is_touched(self, tmp_path, tmp_store):
        place = folder(tmp_path / "made", "aoti")
        keep(tmp_store)
        assert find([place], tmp_store, trust=False)
        (place / "model.pt2").write_bytes(b"evil")
        with pytest.raises(TrustError):
            find([place], tmp_store, trust=False)

    def test_a_folder_whose_files_were_changed_is_refused_though_trusted(self, tmp_path, tmp_store):
        place = folder(tmp_path / "made", "aoti")
        (place / "model.pt2").write_bytes(b"other")
        with pytest.raises(InputError, match="do not match its artifact"):
            open_all(find([place], tmp_store, trust=True), tmp_path / "scratch", (), 1)

    def test_what_the_own_store_fetched_from_a_remote_one_is_from_elsewhere(self, tmp_path, tmp_store):
        for format, trusted in (("aoti", False), ("onnx", True)):
            place = folder(tmp_path / format, format, "torchvision")
            entry = keep(tmp_store, {"format": format})
            (entry.path.parent / "fetched-from.txt").write_text("s3://bucket/prefix")
            if not trusted:
                with pytest.raises(TrustError, match="not from this store"):
                    find([place], tmp_store, trust=False)
            target = find([place], tmp_store, trust=True)[0]
            assert target.own is trusted
            artifact = open_each([target], tmp_path, (), 1)[0].artifact
            assert artifact.foreign is (format == "onnx")
            tmp_store.discard(entry.kind, entry.key)

    def test_data_alone_need_no_trust(self, tmp_path, tmp_store):
        write_model(tmp_path / "model.onnx")
        assert find([tmp_path / "model.onnx"], tmp_store, trust=False)


def test_what_cannot_be_measured_is_named(tmp_path, tmp_store):
    (tmp_path / "recipe.yaml").write_text("version: 1")
    write_model(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="no such file") as failure:
        find([tmp_path / "modle.onnx"], tmp_store, trust=False)
    assert "model.onnx" in failure.value.hint
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError, match="cannot tell what kind"):
        find([tmp_path / "notes.txt"], tmp_store, trust=False)


@pytest.mark.slow
def test_files_of_one_name_keep_apart_and_batches_reach_as_far_as_asked(tmp_path, tmp_store):
    paths = [tmp_path / name / "model.onnx" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        write_model(path)
    found, inputs = open_all(
        find([*paths, paths[0]], tmp_store, trust=False), tmp_path / "scratch", (), 100
    )
    assert [each.name for each in found] == ["a:model.onnx", "b:model.onnx", "a:model.onnx#2"]
    assert inputs[0].ranges["batch"].max == 100
    assert found[0].artifact.facts["outputs"] == ["logits"]
    assert (found[0].artifact.path / "model.onnx").is_file()


def test_a_package_alone_does_not_say_what_it_takes(tmp_path, tmp_store):
    import zipfile

    with zipfile.ZipFile(tmp_path / "made.pt2", "w") as archive:
        archive.writestr("made/data/aotinductor/model/model.so", b"")
    with pytest.raises(InputError, match="does not say what it takes") as failure:
        open_all(find([tmp_path / "made.pt2"], tmp_store, trust=True), tmp_path / "scratch", (), 1)
    assert "--input" in failure.value.hint


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"precision": None}, "precision"),
        ({"size_bytes": "many"}, "size_bytes"),
        ({"made_by": [{"key": "k", "step": "source", "inputs": [{"name": 5}]}]}, "made_by.0.inputs"),
        ({"made_by": [{}]}, "made_by.0"),
    ],
)
def test_a_folder_that_says_odd_things_of_itself_is_refused(tmp_path, tmp_store, change, place):
    made = folder(tmp_path / "made", "onnx")
    about = {**json.loads((made / "artifact.json").read_text()), **change}
    (made / "artifact.json").write_text(json.dumps({k: v for k, v in about.items() if v is not None}))
    with pytest.raises(InputError, match=f"does not describe an artifact: {place}"):
        find([made], tmp_store, trust=False)


def test_a_folder_that_does_not_say_what_it_takes(tmp_path, tmp_store):
    made = folder(tmp_path / "made", "onnx")
    about = json.loads((made / "artifact.json").read_text())
    about["made_by"][0]["inputs"] = []
    (made / "artifact.json").write_text(json.dumps(about))
    targets = find([made], tmp_store, trust=False)
    with pytest.raises(InputError, match="names no inputs") as failure:
        open_all(targets, tmp_path, (), 1)
    assert "--input" in failure.value.hint
    assert open_all(targets, tmp_path, (spec(),), 1)[1] == (spec(),)


def test_what_the_own_store_says_of_an_artifact_comes_before_what_its_folder_says(tmp_path, tmp_store):
    made = folder(tmp_path / "made", "onnx", "torchvision")
    record = {"format": "exported", "precision": "int8", "facts": {"outputs": ["ours"]}}
    with tmp_store.work("artifact", "1234") as work:
        (work / "model.pt2").write_bytes(b"code")
        tmp_store.put("artifact", "1234", work, record, {"step": "source", "kind": "exported"})
    (target,) = find([made], tmp_store, trust=False)
    assert target.format == "exported"
    artifact = open_each([target], tmp_path, (spec(),), 1)[0].artifact
    assert (artifact.precision, artifact.facts) == ("int8", {"outputs": ["ours"]})
    assert artifact.foreign, "its source was a file, whatever the folder says"


def test_samples_that_are_no_arrays_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr("image", b"no array")
    request = laying_out.SamplesRequest(tmp_path / "odd.npz", (spec(),))
    with pytest.raises(InputError, match="of arrays"):
        laying_out.check_samples(request, None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_package_that_torch_cannot_load_is_not_blamed_on_its_inputs(tmp_path):
    with zipfile.ZipFile(tmp_path / "odd.pt2", "w") as package:
        package.writestr("model/data/aotinductor/model/a.wrapper.so", b"no library")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="torch cannot load the package") as caught:
        laying_out._package(tmp_path / "odd.pt2", tmp_path / "out", (spec(),))
    assert "compile it again here" in str(caught.value.hint)
