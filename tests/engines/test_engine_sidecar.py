"""What stands beside a plan: nothing is loaded that is not what it says, or was not made for here."""

import dataclasses
import json

import pytest

from optcli.artifact import Format
from optcli.errors import InputError
from optcli.models.engines import EngineError, sidecar
from optcli.models.engines.sidecar import LoadingEnvironment, Sidecar
from optcli.models.formats import check as check_format

PLAN = b"a plan" * 100
HERE = LoadingEnvironment("tensorrt", "10.16.1.11", "NVIDIA H200", "9.0", "580.1")


@pytest.fixture
def engine(tmp_path):
    (tmp_path / sidecar.PLAN).write_bytes(PLAN)
    sidecar.write(tmp_path, about(tmp_path))
    return tmp_path


def about(folder, **changes):
    plan = folder / sidecar.PLAN if folder else None
    values = {
        "product": "tensorrt",
        "version": "10.16.1.11",
        "plan_sha256": sidecar.sha256_of(plan) if plan else "",
        "plan_bytes": len(PLAN),
        "onnx_sha256": "0" * 64,
        "precision": "fp16",
        "cuda": "13.0",
        "driver": "580.1",
        "gpu": "NVIDIA H200",
        "compute_capability": "9.0",
        "profiles": ({"image": {"min": [1], "opt": [1], "max": [8]}},),
        "flags": ("TF32",),
    }
    return Sidecar(**{**values, **changes})


def test_what_was_written_is_read(engine):
    assert sidecar.check_plan(engine) == about(engine)
    assert sidecar.read(engine).os
    check_format(Format.TENSORRT, engine)


def edited(folder, **changes):
    path = folder / sidecar.FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "another"},
        {"version": "11.4.0.106"},
        {"plan_bytes": 1},
        {"precision": "fp32"},
        {"flags": []},
    ],
)
def test_a_changed_sidecar_is_noticed(engine, changes):
    edited(engine, **changes)
    with pytest.raises(EngineError, match="was changed after it was written"):
        sidecar.check_plan(engine)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / sidecar.FILE).unlink(), "there is no engine.json"),
        (lambda folder: (folder / sidecar.FILE).write_text("{"), "cannot be read"),
        (lambda folder: (folder / sidecar.FILE).write_text("[]"), "cannot be read"),
        (lambda folder: edited(folder, schema=2), "has schema 2, wanted 1"),
        (lambda folder: (folder / sidecar.PLAN).unlink(), "there is no model.plan"),
        (
            lambda folder: (folder / sidecar.PLAN).write_bytes(PLAN[:-1]),
            "is truncated: 599 bytes, .* 600",
        ),
        (lambda folder: (folder / sidecar.PLAN).write_bytes(PLAN + b"x"), "is another file: 601 bytes"),
        (lambda folder: (folder / sidecar.PLAN).write_bytes(PLAN[::-1]), "its content was changed"),
    ],
)
def test_damage_is_named_with_what_to_do(engine, damage, message):
    damage(engine)
    with pytest.raises(EngineError, match=message) as raised:
        sidecar.check_plan(engine)
    assert "build it again" in raised.value.hint
    assert raised.value.place.startswith(str(engine))
    with pytest.raises(InputError, match=message):
        check_format(Format.TENSORRT, engine)


def test_an_engine_of_one_product_is_not_passed_off_as_the_others(engine):
    with pytest.raises(InputError, match="TensorRT built this engine, wanted one of TensorRT-RTX"):
        check_format(Format.TENSORRT_RTX, engine)


def test_what_fits_is_loaded_without_a_word():
    assert sidecar.check_here(about(None), HERE) is None
    assert sidecar.check_here(about(None), dataclasses.replace(HERE, gpu=None)) is None


def test_another_model_of_the_same_architecture_is_named():
    here = dataclasses.replace(HERE, gpu="NVIDIA H100")
    assert sidecar.check_here(about(None), here) == "NVIDIA H200"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "8.6.0"}, "TensorRT 8.6.0 built this engine, and TensorRT 10.16.1.11 is here"),
        (
            {"version": "11.0", "compatible": ("version",)},
            "TensorRT 11.0 .* and TensorRT 10.16.1.11 is older",
        ),
        (
            {"product": "tensorrt_rtx"},
            "TensorRT-RTX 10.16.1.11 built this engine, and TensorRT 10.16.1.11 would",
        ),
        (
            {"gpu": "NVIDIA T4", "compute_capability": "7.5"},
            r"built on NVIDIA T4 \(compute capability 7.5\), and here is NVIDIA H200 "
            r"\(compute capability 9.0\)",
        ),
        ({"targets": ("SM86", "SM89")}, r"built for SM86, SM89, and here is NVIDIA H200"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(changes, message):
    with pytest.raises(EngineError, match=message) as raised:
        sidecar.check_here(about(None, **changes), HERE, "place")
    assert raised.value.place == "place"
    assert "build it again" in raised.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "8.6.0", "compatible": ("version",)},
        {"gpu": "A100", "compute_capability": "8.0", "compatible": ("ampere_plus",)},
        {"gpu": None, "compute_capability": None, "targets": ("SM86", "SM90")},
    ],
)
def test_what_was_made_compatible_is_loaded(changes):
    sidecar.check_here(about(None, **changes), HERE)


def test_a_sidecar_that_has_no_end_is_not_read(tmp_path):
    (tmp_path / sidecar.FILE).symlink_to("/dev/zero")
    with pytest.raises(EngineError, match="wanted a regular file"):
        sidecar.read(tmp_path)
    (tmp_path / sidecar.FILE).unlink()
    (tmp_path / sidecar.FILE).write_text("[" * 200_000)
    with pytest.raises(EngineError, match="cannot be read"):
        sidecar.read(tmp_path)
