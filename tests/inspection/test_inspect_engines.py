"""Into engines, without a GPU: what the sidecar says of a sound plan."""

import json

import pytest

from optcli.errors import InputError, UsageError
from optcli.models.engines import sidecar
from optcli.models.engines.sidecar import Sidecar
from optcli.models.formats import exporter_metadata
from optcli.outputs import exported
from optcli.pipeline.model_files.opening import find
from optcli.report import terminal
from optcli.scaffold import inspection
from optcli.scaffold.inspection import resolve, tensorrt, tensorrt_rtx
from optcli.scaffold.inspection.looking import look
from optcli.store import Store

LAYERS = (
    {"name": "r", "type": "Reformat", "precision": "fp32", "tactic": "0x1", "reformat": True},
    {"name": "conv1", "type": "Conv", "precision": "int8", "tactic": "xmma", "reformat": False},
    {"name": "conv2", "type": "Conv", "precision": "int8", "tactic": "xmma", "reformat": False},
)
NETWORK = ({"type": "CONVOLUTION", "precision": "fp16"}, {"type": "ACTIVATION", "precision": "fp16"})


def engine(folder, **changes):
    plan = folder / sidecar.PLAN
    plan.write_bytes(b"plan")
    values = {
        "product": "tensorrt",
        "version": "10.16.1.11",
        "plan_sha256": sidecar.sha256_of(plan),
        "plan_bytes": 4,
        "onnx_sha256": "0" * 64,
        "precision": "int8",
        "gpu": "NVIDIA H200",
        "compute_capability": "9.0",
        "driver": "580.1",
        "profiles": ({"image": {"min": [1, 3], "opt": [4, 3], "max": [8, 3]}},),
        "inputs": ({"name": "image", "dtype": "fp32", "shape": [-1, 3]},),
        "flags": ("FP16", "INT8"),
        "layers": LAYERS,
        "network": NETWORK,
    }
    sidecar.write(folder, Sidecar(**{**values, **changes}))
    return folder


def test_an_engine_that_was_inspected_where_it_was_built(tmp_path):
    found = tensorrt.look(engine(tmp_path), [])
    assert found["precision"] == "int8"
    assert found["operators_are"] == "layers of the engine"
    assert found["operators"][0] == {"type": "Conv", "precision": "int8", "count": 2}
    assert found["notes"] == [
        "built by TensorRT 10.16.1.11 on NVIDIA H200 (compute capability 9.0, driver 580.1)",
        "builder flags: FP16, INT8",
        "1 of 3 layers only change how a tensor lies in memory",
        "optimization profile 0: image 1x3 to 8x3, best at 4x3",
    ]


def test_one_built_without_a_gpu_tells_of_the_parsed_network_and_says_so(tmp_path):
    about = {
        "product": "tensorrt_rtx",
        "version": "1.7",
        "gpu": None,
        "layers": (),
        "targets": ("SM86",),
    }
    found = tensorrt_rtx.look(engine(tmp_path, **about), [])
    assert "parsed network" in found["operators_are"]
    assert {"type": "CONVOLUTION", "precision": "fp16", "count": 1} in found["operators"]
    assert found["notes"][0] == "built by TensorRT-RTX 1.7 without a GPU for SM86"


def test_another_products_or_a_damaged_one_is_refused(tmp_path):
    folder = engine(tmp_path)
    with pytest.raises(InputError, match="TensorRT built this engine, wanted one of TensorRT-RTX"):
        tensorrt_rtx.look(folder, [])
    (folder / sidecar.PLAN).write_bytes(b"pla")
    with pytest.raises(InputError, match="truncated"):
        tensorrt.look(folder, [])


SAID = {"task": "detect", "names": {"0": "cat", "1": "dog"}, "imgsz": [64, 64], "author": "somebody"}


def written(path, entries, plan=b"ftrt"):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(4, "little") + text + plan)
    return path


def test_a_plan_alone_says_what_its_exporter_wrote_in_front_of_it(tmp_path):
    path = written(tmp_path / "yolo.engine", SAID)
    target = resolve(str(path), tmp_path)
    assert (target.kind, target.format) == ("file", "tensorrt")
    found = look(target, None)
    assert found.metadata == {
        "task": "detect",
        "names": "{0: 'cat', 1: 'dog'}",
        "imgsz": "[64, 64]",
    }
    assert exported(found.metadata).names == ("cat", "dog")
    shown = terminal.text(inspection.document(found)).splitlines()
    assert "metadata  detect, 2 classes (cat, dog), images of [64, 64]" in shown
    assert any("neither its version nor its GPU is known" in line for line in shown)
    with pytest.raises(UsageError, match=r"an engine without engine\.json beside it"):
        find([path], Store(tmp_path / "store"), trust=True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"ft",
        b"ftrt" + bytes(100),  # a plan: the length would be 1.9 GB
        (50).to_bytes(4, "little") + b"{}",  # cut short
        (2).to_bytes(4, "little") + b"[]plan",
        (2).to_bytes(4, "little") + b"\xff\xfeplan",
        (4000).to_bytes(4, "little") + b"[" * 4000,
        (0).to_bytes(4, "little") + b"plan",
        (1_000_001).to_bytes(4, "little") + b'{"task": "detect"}'.ljust(1_000_001),
        (30).to_bytes(4, "little") + b'{"task": ["detect"], "x": 1}  plan',
    ],
)
def test_other_beginnings_say_nothing(tmp_path, content):
    path = tmp_path / "model.engine"
    path.write_bytes(content)
    found = exporter_metadata.of_engine(path)
    assert "names" not in found
    assert exported(found) is None


def test_a_plan_stands_for_its_folder(tmp_path):
    made_by = [{"step": "source", "key": "k", "inputs": []}]
    about = {"format": "tensorrt", "key": "k", "digest": "d", "made_by": made_by, "facts": {}}
    about |= {"precision": "fp16", "size_bytes": 4}
    (tmp_path / "artifact.json").write_text(json.dumps(about))
    (tmp_path / "model.plan").write_bytes(b"plan")
    found = resolve(str(tmp_path / "model.plan"), tmp_path)
    assert (found.kind, found.format, found.path) == ("artifact", "tensorrt", tmp_path)
