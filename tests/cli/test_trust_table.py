"""What each verb does with each format: every row of the table of docs/decisions/trust.md is tried."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_bundles import described_alone

from optcli import runners, workers
from optcli.artifact import Artifact, Format
from optcli.errors import OptcliError, StepError, TrustError
from optcli.files import digest
from optcli.gate import baselines
from optcli.gate.baselines import BaselineVariant
from optcli.models.engines.sidecar import FILE as SIDECAR
from optcli.pipeline import local_maker, trusting
from optcli.pipeline.admission import ArtifactAdmission
from optcli.pipeline.making import planned
from optcli.results import RecipeSummary, Report
from optcli.serving import bundle
from optcli.serving.deploy import plans
from optcli.serving.inference import confined_model
from optcli.serving.inference.shard_worker import ShardWork, ShardWorker, packed
from optcli.settings import TensorSpec
from optcli.store import Entry, Store
from optcli.workers import ForkServer, parent

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "trust.md"
KEY = "a" * 64
INPUTS = ({"name": "image", "dtype": "float32", "shape": [1, 4]},)
SPEC = TensorSpec.model_validate(INPUTS[0])
FORMATS = {
    ".pt2": Format.EXPORTED,
    "TorchScript": Format.TORCHSCRIPT,
    "ONNX": Format.ONNX,
    "OpenVINO": Format.OPENVINO,
    "ORT": Format.ORT,
    "ExecuTorch": Format.EXECUTORCH,
    "LiteRT": Format.LITERT,
    "AOTInductor": Format.AOTI,
    "TensorRT": Format.TENSORRT,
    "network in Python": Format.TORCH,
}
FILES = {
    Format.EXPORTED: "model.pt2", Format.TORCHSCRIPT: "model.pt", Format.ONNX: "model.onnx",
    Format.OPENVINO: "model.xml", Format.ORT: "model.ort", Format.AOTI: "model.pt2",
    Format.TENSORRT: "model.plan", Format.TORCH: "model.json", Format.EXECUTORCH: "model.pte",
    Format.LITERT: "model.tflite",
}  # fmt: skip
MEMBERS = {
    Format.AOTI: ("data/aotinductor/model/x.so",),
    Format.TORCHSCRIPT: ("constants.pkl", "code/a.py"),
    Format.EXPORTED: ("models/model.json",),
}
SOURCES = {
    Format.EXPORTED: "exported", Format.TORCHSCRIPT: "torchscript", Format.ONNX: "onnx",
    Format.EXECUTORCH: "executorch", Format.LITERT: "litert",
}  # fmt: skip
HEAD = """\
version: 1
name: x
model: {{source: "{source}"}}
inputs: [{{name: image, dtype: float32, shape: [1, 4]}}]
"""


def rows() -> list[tuple[str, str, str, str]]:
    """The table, a row for each verb, format and origin."""
    text = PAGE.read_text(encoding="utf-8")
    table = re.findall(r"^\| (.+) \|$", text[text.index("| Verb |") :], re.MULTILINE)[2:]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in table if line.count(" | ") == 3]
    found = []
    for verbs, formats, origins, said in cells:
        about = formats.partition(", made of")
        names = about[0].split(", ") if set(about[0].split(", ")) <= set(FORMATS) else [formats]
        if "that a step compiles" in formats:
            names = formats.split(", ")
        more = ", made of a file" if about[2] and names != [formats] else ""
        for verb, name, origin in product(verbs.split(", "), names, origins.split(", ")):
            found.append((verb, name + more, origin, said))
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Of each worker that would be started, whether it is confined; none is started."""
    asked: list[bool] = []

    def refuse(*_: Any, confined: Any = None, **__: Any) -> None:
        asked.append(confined is not None)
        raise StepError("far enough")

    for place in (parent, workers, local_maker, confined_model):
        monkeypatch.setattr(place, "spawn", refuse)
    monkeypatch.setattr(ForkServer, "start", refuse)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(ObjectRef=type))
    plan = SimpleNamespace(recommended=None, sentence="", priorities=())
    for name, gives in {"of_recipe": plan, "require_usable": None, "doubts": ()}.items():
        monkeypatch.setattr(plans, name, lambda *_, gives=gives, **__: gives)
    for kind in (runners.find(name) for name in set(runners.DEFAULTS.values())):
        monkeypatch.setattr(kind, "requires", lambda self: type(self).needs.__class__())
    return asked


class Bench:
    """A folder with files from elsewhere, and what a verb did with them."""

    def __init__(self, folder: Path, optcli: Callable[..., Any], opened: list[bool]) -> None:
        self.folder, self.optcli, self.opened = folder, optcli, opened

    def said(self, *line: object) -> str:
        """What happened, in the table's words."""
        ended = self.optcli(*line)
        if ended.code == 2 and "--trust" in ended.err:
            assert not self.opened
            return "asks"
        return self.seen(ended.err)

    def seen(self, err: str = "") -> str:
        assert self.opened, err
        return "confined" if self.opened[0] else "free"

    def file(self, format: Format) -> Path:
        path = self.folder / FILES[format]
        if format in MEMBERS:
            with zipfile.ZipFile(path, "w") as archive:
                for name in MEMBERS[format]:
                    archive.writestr(f"model/{name}", b"")
        else:
            path.write_bytes(b"x")
        if format == Format.OPENVINO:
            path.with_suffix(".bin").write_bytes(b"x")
        return path

    def built(self, format: Format, *, compiles: bool = False, kind: str = "exported") -> Path:
        """A report beside an artifact, as a build lays them out."""
        folder = self.folder / "artifacts" / "x" / "v"
        folder.mkdir(parents=True)
        (folder / FILES[format]).write_bytes(b"<?xml" if format == Format.OPENVINO else b"x")
        if format == Format.OPENVINO:
            (folder / "model.bin").write_bytes(b"x")
        if format == Format.TENSORRT:
            (folder / SIDECAR).write_text("{}")
        content = sorted((p.name, digest.of_file(p)) for p in folder.iterdir())
        step = {"key": KEY, "step": "source", "kind": kind, "inputs": INPUTS}
        about = {"key": KEY, "format": format, "precision": "fp32", "size_bytes": 1}
        facts = {"outputs": ["y"]}
        record = {**about, "digest": digest.of_value(content), "made_by": [step], "facts": facts}
        (folder / "artifact.json").write_text(json.dumps(record))
        options = {"compile": True} if compiles else {}
        variant = {
            "status": "built", "artifact": {**about, "path": "v"},
            "runner": {"name": runners.DEFAULTS[format], "requested": options},
        }  # fmt: skip
        report = {
            "schema": 2, "recipe": {"name": "x", "path": "x.yaml", "digest": "b" * 64},
            "environment": {}, "baseline": "w", "recommended": None, "recommendation": "",
            "exit_code": 0, "started": "2026-01-01T00:00:00+00:00",
            "finished": "2026-01-01T00:00:00+00:00", "variants": {"v": variant},
        }  # fmt: skip
        (folder.parent / "report.json").write_text(json.dumps(report))
        return folder

    def kept(self, folder: Path, kind: str, **facts: Any) -> None:
        """Put an artifact into the own store, as a build of a source of that kind does."""
        store = Store(self.folder / "artifacts" / ".store")
        about = json.loads((folder / "artifact.json").read_text())
        record = {name: about[name] for name in ("format", "precision", "size_bytes", "facts")}
        record["facts"] |= facts
        with store.work("artifact", KEY) as work:
            for path in folder.iterdir():
                if path.name != "artifact.json":
                    (work / path.name).write_bytes(path.read_bytes())
            store.put("artifact", KEY, work, record, {"step": "source", "kind": kind, "inputs": INPUTS})

    def recipe(self, source: str, variants: str = "  v: []\n", data: str = "") -> Path:
        path = self.folder / "x.yaml"
        path.write_text(f"{HEAD.format(source=source)}{data}variants:\n{variants}")
        return path


@pytest.fixture
def bench(tmp_path, optcli, opened, monkeypatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "1.png").write_bytes(b"x")
    (tmp_path / "own.py").write_text("def all(): return []\ndef metric(s): return 1.0\n")
    return Bench(tmp_path, optcli, opened)


IMAGES = "data: {evaluation: {source: 'imagefolder:images'}}\naccuracy: {metric: top1, max_drop: 1}\n"
PYTHONS = "data: {evaluation: {source: 'python:own.py:all'}}\n"


def of_recipe(bench: Bench, name: str) -> str:
    format = next((each for key, each in FORMATS.items() if name.startswith(key)), Format.EXPORTED)
    if format == Format.TORCH:
        return bench.said("build", bench.recipe("python:own.py:all"))
    source = f"{SOURCES[format]}:{bench.file(format).name}"
    if "compiled by" in name:
        first = bench.said("build", bench.recipe(source, "  v: [aot_inductor]\n"))
        runner = "  v: {passes: [], runner: {name: torch, compile: true}}\n"
        assert first == bench.said("build", bench.recipe(source, runner))
        return first
    if "python:" in name:
        return bench.said("build", bench.recipe(source, data=PYTHONS))
    return bench.said("build", bench.recipe(source))


def of_file(bench: Bench, verb: str, format: Format) -> str:
    path = bench.file(format)
    if format == Format.TENSORRT:
        return bench.said(verb, path)
    line: tuple[object, ...] = (path,)
    if verb == "verify-accuracy":
        bench.file(Format.ONNX)
        line = (path, path, "--recipe", bench.recipe("onnx:model.onnx", data=IMAGES))
    elif verb == "init":
        line = (path, "--out", "r.yaml")
    return bench.said(verb, *line)


def of_folder(bench: Bench, verb: str, name: str) -> str:
    compiles = "compile: true" in name
    folder = bench.built(Format.EXPORTED if compiles else FORMATS[name], compiles=compiles)
    return on_variant(bench, verb, folder)


def on_variant(bench: Bench, verb: str, folder: Path) -> str:
    if verb in ("bench", "inspect"):
        return bench.said(verb, folder)
    if verb == "infer":
        return bench.said("infer", "v", "--input", "images", "--output", "answers")
    if verb == "deploy":
        return bench.said("deploy", "v", "--target", "triton", "--out", "deployed")
    return bench.said(verb, "v")


def of_own_store(bench: Bench, verb: str, name: str) -> str:
    compiles, of_file = "compile: true" in name, "of a file" in name
    first = next(key for key in FORMATS if name.startswith(key))
    kind = "exported" if of_file else "python"
    folder = bench.built(FORMATS[first], compiles=compiles, kind=kind)
    bench.kept(folder, kind, **({"unproven": ["compiled"]} if "compiled of" in name else {}))
    return on_variant(bench, verb, folder)


def of_ray(bench: Bench, format: Format) -> str:
    artifact = Artifact(KEY, format, bench.folder, "fp32", 1, "d", {}, foreign=True)
    spec: Any = None
    about = {"images": {}, "postprocess": None, "input_uri": "", "output": spec, "batch_size": 1}
    about |= {"readers": 1, "preparers": 1, "in_turns": False, "versions": {}, "run": ""}
    work = ShardWork(artifact, runners.DEFAULTS[format], {}, (SPEC,), **about)
    with pytest.raises(StepError, match="far enough"):
        ShardWorker(work, packed(artifact))
    return bench.seen()


def of_pack(bench: Bench, format: Format) -> str:
    folder = bench.built(format)
    (folder / "artifact.json").unlink()
    if format == Format.TORCH:
        (folder / "code").mkdir()
        (folder / "code" / "net.py").write_text("")
    if format in MEMBERS:
        bench.file(format).rename(folder / FILES[format])
    below = digest.files_below(folder)
    names = sorted((path.relative_to(folder).as_posix(), digest.of_file(path)) for path in below)
    artifact = Artifact(KEY, format, folder, "fp32", 1, digest.of_value(names), {"outputs": ["y"]})
    report = Report(
        recipe=RecipeSummary(name="x", path="x.yaml", digest="d"), environment={}, baseline="v",
        recommended=None, recommendation="", started="", finished="", exit_code=0, variants={},
    )  # fmt: skip
    one = BaselineVariant(artifact, runners.DEFAULTS[format], {}, ({"step": "source", "key": "k"},))
    theirs = Store(bench.folder / "theirs")
    pack = baselines.save(bench.folder / "x.optcli.tar", {"v": one}, (SPEC,), report, theirs)
    try:
        held = baselines.load(pack, "x", Store(bench.folder / "own"))
    except TrustError:
        return "asks"
    return "confined" if held.variants["v"].artifact.foreign else "free"


def of_remote(bench: Bench, name: str) -> str:
    compiled = "compiles" in name
    format = Format.EXPORTED if compiled else FORMATS[name]
    passes = {Format.EXPORTED: "export", Format.TORCHSCRIPT: "torchscript", Format.ONNX: "export_onnx",
              Format.AOTI: "aot_inductor", Format.TORCH: ""}[format]  # fmt: skip
    line = f"  v: [{'export, aot_inductor' if compiled else passes}]\n"
    to_do = planned(bench.recipe("python:own.py:all", line), Store(bench.folder / "s"), (), ())
    (step,) = [each for each in to_do.variants[0].steps if each.format == format][:1]
    record = {"format": format, "precision": "fp32", "facts": {}}
    entry = Entry("artifact", KEY, bench.folder, record, {}, "d", 1, "", {}, origin="s3://theirs")
    try:
        ArtifactAdmission.of(step, to_do, trust=False).of_record(entry)
    except OptcliError:
        return "makes it here"
    artifact = Artifact(KEY, format, bench.folder, "fp32", 1, "d")
    taken = trusting.measured_as(artifact, to_do.variants[0], to_do, trust=False, fetched=True)
    return "confined" if taken.foreign else "free"


def of_bundle(bench: Bench, verb: str, origin: str) -> str:
    (bench.folder / "deployed").mkdir()
    described_alone(bench.folder / "deployed")
    store = Store(bench.folder / "artifacts" / ".store")
    if origin == "own store":
        bundle.remember(bench.folder / "deployed", store)
    ended = bench.optcli(verb, "deployed")
    return "asks" if "--trust" in ended.err else "free"


@pytest.mark.parametrize(("verb", "name", "origin", "said"), rows())
def test_a_verb_does_what_the_table_says(bench, verb, name, origin, said):
    if "no file is opened" in name:
        ended = bench.optcli(verb, "--help")
        assert (ended.code, "--trust" in ended.out, bench.opened) == (0, False, [])
    elif origin in ("file of the recipe", "code of the recipe"):
        assert of_recipe(bench, name) == said
    elif verb == "workers of Ray":
        assert of_ray(bench, FORMATS[name]) == said
    elif name == "bundle":
        assert of_bundle(bench, verb, origin) == said
    elif verb == "gate":
        assert of_pack(bench, FORMATS[name]) == said
    elif origin == "remote store":
        assert of_remote(bench, name) == said
    elif verb == "tune":
        bench.folder = bench.folder / "theirs"
        bench.built(Format.ONNX)
        bench.file(Format.ONNX)
        bench.recipe("onnx:model.onnx")
        theirs = bench.folder / "artifacts" / "x" / "report.json"
        assert bench.said("tune", theirs, "--from", "v") == said
    elif origin == "own store":
        assert of_own_store(bench, verb, name) == said
    elif origin == "folder":
        assert of_folder(bench, verb, name) == said
    else:
        assert of_file(bench, verb, FORMATS[name]) == said


def test_the_table_has_rows():
    assert len(rows()) > 80
