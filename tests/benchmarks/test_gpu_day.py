"""`benchmarks/gpu_day.sh` and what it packs, as far as they go without a GPU and without a network."""

from __future__ import annotations

import importlib
import os
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def pack(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_pack")


def module_of(*codes: tuple[int, bytes]) -> bytes:
    """A fat binary as CUDA writes it, with code for kinds of GPU."""
    entries = b"".join(
        struct.pack("<HHIQIIHHI", 2, 0, 64, len(code), 0, 0, 0, 0, arch).ljust(64, b"\0") + code
        for arch, code in codes
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


LIBRARY = b"host" + module_of((80, b"old!"), (90, b"hopper")) + b"more" + module_of((90, b"also"))


def test_code_for_other_gpus_becomes_zeros_and_nothing_moves(pack):
    pruned = pack.pruned(LIBRARY, 90)
    assert pruned == LIBRARY.replace(b"old!", b"\0\0\0\0")
    assert [(arch, pruned[start:end]) for arch, start, end in pack.codes(pruned)] == [
        (80, b"\0\0\0\0"),
        (90, b"hopper"),
        (90, b"also"),
    ]
    with pytest.raises(ValueError, match="no code for compute capability 75"):
        pack.pruned(LIBRARY, 75)
    broken = bytearray(module_of((90, b"hopper")))
    struct.pack_into("<Q", broken, 24, 10**6)  # the size of its first code
    with pytest.raises(ValueError, match="not as CUDA writes it"):
        pack.pruned(bytes(broken), 90)


def test_a_wheel_travels_in_pieces_and_comes_together(pack, tmp_path, monkeypatch):
    folder, installed = tmp_path / "packed", []

    def run(command, check):
        if "download" in command:
            name = folder / "2" / "onnxruntime_gpu-1.0-py3-none-any.whl"
            with zipfile.ZipFile(name, "w") as wheel:
                wheel.writestr("onnxruntime/capi/libonnxruntime_providers_cuda.so", LIBRARY)
                wheel.writestr("onnxruntime/noise", os.urandom(5000))
        else:
            installed.append(command)

    monkeypatch.setattr(pack.subprocess, "run", run)
    monkeypatch.setattr(pack, "PIECE_BYTES", 2000)
    pack.pack(2, folder / "2", "3.12", 90)
    sizes = pack.transfers(folder)
    assert list(sizes) == ["2/a", "2/b", "2/c"]
    assert max(sizes.values()) <= 2000
    pack.unpack(folder, tmp_path / "site")
    (wheel,) = folder.glob("*.whl")
    assert str(wheel) in installed[0]
    with zipfile.ZipFile(wheel) as archive:
        assert b"old!" not in archive.read("onnxruntime/capi/libonnxruntime_providers_cuda.so")
    (next((folder / "2" / "b").iterdir())).unlink()
    with pytest.raises(SystemExit, match="bring the others"):
        pack.unpack(folder, tmp_path / "site")


def dry_run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = str(BENCHMARKS / "gpu_day.sh")
    return subprocess.run(
        ["bash", script, "--dry-run", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_dry_run_adds_the_times_up_and_fails_where_they_are_too_long():
    done = dry_run(PYTHON="true")
    assert done.returncode == 0, done.stdout
    steps = [line.partition(":")[0] for line in done.stdout.splitlines()[:-1]]
    assert steps == ["tests-torch", "torch", "halves", "tests-onnx", "onnx", "tensorrt", "sweep",
                     "copies", "slower"]  # fmt: skip
    assert done.stdout.splitlines()[-1].endswith(" s of 780")
    late = dry_run(PYTHON="true", START_S="600")
    assert late.returncode == 1
    assert late.stdout.splitlines()[-1] == "that is too long"
    broken = dry_run(PYTHON="false")
    assert (broken.returncode, "torch: exit 1" in broken.stdout) == (1, True)
