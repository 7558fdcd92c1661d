"""Builds of two machines that share a remote store."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import faulty_remote
import numpy as np
import pytest
from faulty_remote import HASTY, QUICK
from tiny_project import DATA, Heard, Project, build_options, project_in

from optcli.artifact import CODE, Format
from optcli.errors import ExitCode, InputError
from optcli.models.formats import torch as torch_format
from optcli.pipeline import admission
from optcli.pipeline.building import build
from optcli.pipeline.preview import preview
from optcli.store import Entry, Store
from optcli.store.remote import RemotePlace, manifest
from optcli.workers import ForkServer

VARIANTS = """\
  plain: []
  int8: [quantize_onnxruntime]
  copied: ["./fakes.py:Copy"]
"""


@dataclass
class Machine:
    """A machine that builds the project with a store of its own."""

    project: Project
    root: Path
    url: str
    read_only: bool = False

    def __post_init__(self) -> None:
        self.heard = Heard()

    @property
    def store(self) -> Store:
        return Store(self.root / "store", RemotePlace(self.url, self.read_only))

    def build(self, **options):
        self.heard = Heard()
        return build(
            self.project.folder / "recipe.yaml",
            store=self.store,
            artifacts=self.root / "artifacts",
            observer=self.heard,
            **build_options(options),
        )

    @property
    def notes(self) -> list[str]:
        """What it was told of the remote store."""
        return [note for note in self.heard.notes if "//" in note]

    @property
    def made(self) -> list[str]:
        """What was done here, besides measuring."""
        return sorted(step for step in self.heard.built if step != "latency")


@pytest.fixture
def faults(monkeypatch):
    faults = faulty_remote.register()
    monkeypatch.setattr("optcli.store.remote.Limits", lambda: QUICK)
    yield faults
    faults.never.set()


@pytest.fixture(scope="module")
def built(template, tmp_path_factory):
    """What a machine leaves that has built the recipe and uploaded what it made."""
    folder = tmp_path_factory.mktemp("shared")
    project = project_in(folder, template)
    project.recipe(VARIANTS, data=DATA)
    machine = Machine(project, folder / "first", f"file://{folder}/remote")
    assert machine.build().exit_code == 0
    assert machine.notes == []
    return folder


@pytest.fixture
def first(built, project, tmp_path, faults):
    """A machine that has built the recipe and uploaded what it made."""
    project.recipe(VARIANTS, data=DATA)
    for name in ("first", "remote"):
        shutil.copytree(built / name, tmp_path / name)
    return Machine(project, tmp_path / "first", f"faulty://{tmp_path}/remote")


@pytest.fixture
def second(first, tmp_path, unmeasured):
    return Machine(first.project, tmp_path / "second", first.url)


def of_kind(tmp_path: Path, kind: str) -> list[Path]:
    return sorted((tmp_path / "remote/v1/entries" / kind).glob("*.json"))


def entry_in(path: Path) -> dict:
    return json.loads(path.read_text())["entry"]


@pytest.mark.long
@pytest.mark.slow
def test_a_second_machine_makes_nothing(first, tmp_path):
    second = Machine(first.project, tmp_path / "second", first.url)
    shutil.rmtree(first.root)
    report = second.build()
    assert second.made == []
    assert second.notes == []
    assert {variant.status for variant in report.variants.values()} == {"cached"}
    assert report.variants["int8"].accuracy.value is not None
    assert report.variants["int8"].latency


@pytest.mark.slow
def test_the_second_build_has_the_same_keys_and_digests(first, second):
    def artifacts(report):
        return {name: (v.artifact.key, v.artifact.digest) for name, v in report.variants.items()}

    assert artifacts(second.build()) == artifacts(first.build())


@pytest.mark.slow
def test_nothing_that_belongs_to_a_machine_or_says_what_to_trust_is_there(first, tmp_path):
    kinds = {path.name for path in (tmp_path / "remote/v1/entries").iterdir()}
    assert kinds == {"artifact", "comparison", "data", "evaluation", "remarks", "samples"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_what_descends_from_it_is_opened_in_workers_that_can_only_read(
    project, tmp_path, faults, monkeypatch
):
    """Of a network that is the recipe's own, too: what was fetched is somebody else's."""
    from optcli.models.sources.onnx import OnnxSource

    monkeypatch.setattr(OnnxSource, "foreign", False)
    project.recipe("  plain: []\n  clean: [optimize_onnx]\n", data=DATA)
    first = Machine(project, tmp_path / "first", f"faulty://{tmp_path}/remote")
    asked: list[tuple[str, bool]] = []
    start = ForkServer.start

    def noting(self, function, *arguments, **options):
        asked.append((function.partition(":")[2], options.get("confined") is not None))
        return start(self, function, *arguments, **options)

    monkeypatch.setattr(ForkServer, "start", noting)
    first.build()
    assert ("make_artifact", False) in asked
    for path in of_kind(tmp_path, "artifact"):
        if entry_in(path)["ingredients"]["step"] != "source":
            path.unlink()
    asked.clear()
    second = Machine(project, tmp_path / "second", first.url)
    assert second.build().exit_code == 0
    assert second.made == ["clean › optimize_onnx"]
    assert ("make_artifact", True) in asked


@pytest.mark.long
@pytest.mark.slow
def test_a_corrupted_object_is_refused_named_made_again_and_replaced(first, second, tmp_path):
    (path,) = (
        each
        for each in of_kind(tmp_path, "artifact")
        if entry_in(each)["ingredients"]["step"] == "quantize_onnxruntime"
    )
    ((_, content),) = entry_in(path)["contents"].values()
    damaged = tmp_path / "remote" / manifest.object_of(content)
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert second.build().exit_code == 0
    assert second.made == ["int8 › quantize_onnxruntime"]
    assert len(second.notes) == 1
    assert f"artifact {path.stem[:12]} is refused: its object {content[:12]}" in second.notes[0]
    third = Machine(first.project, tmp_path / "third", first.url)
    third.build()
    assert (third.made, third.notes) == ([], [])


@pytest.mark.long
@pytest.mark.parametrize(("way", "requests"), [("fails", 0), ("fails", 3), ("hangs", 3), ("hangs", 8)])
def test_one_that_vanishes_in_the_middle_costs_nothing_but_time(
    first, second, faults, monkeypatch, way, requests
):
    if way == "hangs":
        monkeypatch.setattr("optcli.store.remote.Limits", lambda: HASTY)
    faults.asked.clear()

    def vanish(name, path):
        if len(faults.asked) > requests:
            if way == "hangs":
                faults.hang(name, path)
            raise OSError("network unreachable")

    faults.before = vanish
    report = second.build()
    assert report.exit_code == 0
    assert all(variant.artifact is not None for variant in report.variants.values())
    assert len(second.notes) == 1
    assert "going on without the remote store" in second.notes[0]


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_a_machine_that_may_only_read_writes_nothing(first, project, tmp_path):
    before = sorted(path for path in (tmp_path / "remote").rglob("*"))
    project.recipe(VARIANTS + "  another: [{quantize_onnxruntime: {per_channel: false}}]\n", data=DATA)
    stranger = Machine(project, tmp_path / "stranger", first.url, read_only=True)
    assert stranger.build().exit_code == 0
    assert any("another" in step for step in stranger.made)
    assert sorted(path for path in (tmp_path / "remote").rglob("*")) == before


def rewritten(path: Path, **changes) -> None:
    """A manifest as its writer could change it: with a seal that fits."""
    from optcli.files.digest import of_value

    body = entry_in(path) | changes
    path.write_text(json.dumps({"seal": of_value(body), "entry": body}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "records"),
    [
        (
            "artifact",
            {
                "wanted onnx": {"format": "openvino", "precision": "fp32", "facts": {}},
                "precision": {"format": "onnx", "precision": 5, "facts": {}},
                "facts": {"format": "onnx", "precision": "fp32", "facts": []},
            },
        ),
        (
            "artifact",
            {
                "seconds": {"format": "onnx", "precision": "fp32", "facts": {}, "seconds": "x"},
                "format": {},
            },
        ),
        ("comparison", {"its record": {"value": "high"}}),
        ("data", {"samples": {"samples": {"evaluation": "all"}}}),
    ],
)
def test_a_record_of_another_form_is_refused_and_made_again(first, second, tmp_path, kind, records):
    """`records` by the words that tell of them; each entry has one of them."""
    for path, record in zip(of_kind(tmp_path, kind), cycle(records.values())):
        rewritten(path, record=record)
    assert second.build().exit_code == 0
    for words in records:
        assert any(words in note for note in second.notes), second.notes
    for note in second.notes:
        assert f"{kind} " in note
        assert "is refused" in note
        assert any(words in note for words in records)


def refilled(remote: Path, path: Path, files: dict[str, bytes]) -> None:
    """An entry with other files, as who may write there could have made it: everything fits."""
    from optcli.files.digest import of_bytes, of_value

    for content in files.values():
        place = remote / manifest.object_of(of_bytes(content))
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
    digests = {name: of_bytes(content) for name, content in files.items()}
    contents = {name: [len(content), digests[name]] for name, content in files.items()}
    size_bytes = sum(map(len, files.values()))
    digest = of_value(sorted(digests.items()))
    rewritten(path, contents=contents, size_bytes=size_bytes, digest=digest)


def onnx_with(change) -> dict[str, bytes]:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", value[:1], value[1:], [weight]))
    change(model)
    return {"model.onnx": onnx.ModelProto.SerializeToString(model)}


def elsewhere(location):
    def change(model):
        import onnx

        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(key="length", value="64")

    return change


def unknown_input(model):
    model.graph.node[0].input[1] = "nobody"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((elsewhere("../../x"), elsewhere("/etc/passwd"), elsewhere("lost")), "outside|missing"),
        ((unknown_input, lambda model: model.ClearField("graph"), None), "sound|not|truncated"),
    ],
)
@pytest.mark.usefixtures("unmeasured")
def test_a_model_that_is_none_is_not_adopted_but_made_here_and_named(
    first, second, tmp_path, changes, words
):
    sound = onnx_with(lambda model: None)["model.onnx"]
    for path, change in zip(of_kind(tmp_path, "artifact"), cycle(changes)):
        cut = {"model.onnx": sound[: len(sound) // 2]}
        refilled(tmp_path / "remote", path, onnx_with(change) if change else cut)
    shutil.rmtree(tmp_path / "remote/v1/entries/evaluation")
    shutil.rmtree(tmp_path / "remote/v1/entries/comparison")
    report = second.build()
    assert report.exit_code == 0
    refused = [note for note in second.notes if "artifact" in note]
    assert len(refused) == len(of_kind(tmp_path, "artifact"))
    assert all("is refused: it is no sound onnx model" in note for note in refused), refused
    assert all(re.search(words, note) for note in refused)
    assert {"int8 › quantize_onnxruntime"} <= set(second.made)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "files"),
    [
        (Format.OPENVINO, {"model.xml": b"<?xml version='1.0'?><net/>"}),
        (Format.OPENVINO, {"model.xml": b"<net", "model.bin": b""}),
        (Format.ORT, {"model.ort": b"ORTM and nothing"}),
        (Format.TORCH, {torch_format.DESCRIPTION: b"[]"}),
        (Format.TORCH, {torch_format.DESCRIPTION: b'{"transforms": 7}'}),
    ],
)
def test_files_of_any_format_are_opened_before_they_are_adopted(tmp_path, format, files):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    entry = Entry("artifact", "0" * 64, tmp_path, {}, {}, "", 0, "", {}, "file:///there")
    with pytest.raises(InputError, match=f"it is no sound {format} model"):
        admission.ArtifactAdmission(format=format, trust=True).of_model(entry)


@pytest.mark.slow
def test_an_evaluation_of_another_form_is_made_again(first, second, tmp_path):
    for path in of_kind(tmp_path, "comparison"):
        path.unlink()
    for path in of_kind(tmp_path, "evaluation"):
        name, (size, content) = next(iter(entry_in(path)["contents"].items()))
        files = {f"more/{name}": [size, content]}
        from optcli.files.digest import of_value

        rewritten(
            path,
            contents=files,
            size_bytes=size,
            digest=of_value([(each, of[1]) for each, of in files.items()]),
        )
    report = second.build()
    assert report.exit_code == 0
    assert report.variants["int8"].accuracy is not None
    assert all("evaluation" in note and "cannot be read" in note for note in second.notes)
    assert len(second.notes) == 3 - 1  # of the same artifact in the same runner there is one


@pytest.mark.slow
def test_an_evaluation_whose_arrays_lie_is_made_again(first, second, tmp_path):
    from optcli.files.digest import of_bytes, of_value

    for path in of_kind(tmp_path, "comparison"):
        path.unlink()
    garbage = b"no array at all"
    place = tmp_path / "remote" / manifest.object_of(of_bytes(garbage))
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(garbage)
    for path in of_kind(tmp_path, "evaluation"):
        contents = entry_in(path)["contents"] | {"samples.npz": [len(garbage), of_bytes(garbage)]}
        pairs = sorted((name, of[1]) for name, of in contents.items())
        total = sum(of[0] for of in contents.values())
        rewritten(path, contents=contents, size_bytes=total, digest=of_value(pairs))
    report = second.build()
    assert report.exit_code == 0
    assert report.variants["int8"].accuracy is not None
    assert "int8 › accuracy" in second.made


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_code_is_made_here_unless_it_is_trusted(first, tmp_path, monkeypatch):
    """As if ONNX were code, so that no network in Python is needed."""
    from optcli.artifact import Format

    monkeypatch.setattr(admission, "CODE", CODE | {Format.ONNX})
    careful = Machine(first.project, tmp_path / "careful", first.url)
    assert careful.build().exit_code == 0
    assert "int8 › quantize_onnxruntime" in careful.made
    assert len(careful.notes) == 1
    assert "--trust" in careful.notes[0]
    trusting = Machine(first.project, tmp_path / "trusting", first.url)
    trusting.build(trust=True)
    assert (trusting.made, trusting.notes) == ([], [])
    # What was fetched with trust is not used without it, also where no remote store is named any more.
    again = Heard()
    build(
        first.project.folder / "recipe.yaml",
        store=trusting.root / "store",
        artifacts=trusting.root / "artifacts",
        observer=again,
    )
    assert "int8 › quantize_onnxruntime" in again.built


@pytest.mark.slow
def test_a_preview_tells_what_the_remote_store_has_and_why_it_lacks_the_rest(first, second, project):
    text = VARIANTS.replace("quantize_onnxruntime", "{quantize_onnxruntime: {per_channel: false}}")
    project.recipe(text, data=DATA)
    _, record = preview(project.folder / "recipe.yaml", store=second.store, explain=True)
    steps = {name: variant["steps"] for name, variant in record["variants"].items()}
    assert [(s["cached"], s["remote"]) for s in steps["plain"]] == [(False, True)]
    assert [(s["cached"], s["remote"]) for s in steps["int8"]] == [(False, True), (False, False)]
    assert any("options.per_channel: True -> False" in line for line in steps["int8"][1]["why"])
    assert not list(second.store.entries("artifact"))


@pytest.mark.slow
def test_a_preview_for_an_empty_store_leaves_the_own_one_out(first, project):
    _, record = preview(project.folder / "recipe.yaml", store=first.store, remote_only=True)
    states = [s["remote"] for variant in record["variants"].values() for s in variant["steps"]]
    assert all(states)


@pytest.mark.slow
def test_a_preview_without_an_answer_says_so_and_goes_on(first, second, faults, project):
    def fail(name, path):
        raise OSError("unreachable")

    faults.before = fail
    told: list[str] = []
    document, _ = preview(
        project.folder / "recipe.yaml",
        store=second.store,
        explain=True,
        tell=lambda _, message: told.append(message),
    )
    assert "to do" in document.answer
    assert len(told) == 1


def test_a_failing_library_fails_before_anything_is_built(project, tmp_path, monkeypatch):
    faulty_remote.without_s3fs(monkeypatch)
    project.recipe(VARIANTS, data=DATA)
    from optcli.errors import MissingError

    with pytest.raises(MissingError) as caught:
        Machine(project, tmp_path / "first", "s3://bucket/prefix").build()
    assert caught.value.exit_code == ExitCode.MISSING
    assert not (tmp_path / "first").exists()
