"""The fake driver, compiled once per test run, and plans for the fake TensorRT."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_libcuda.c"
SHORT = [1, 3], [4, 3], [8, 3]
LONG = [8, 3], [32, 3], [64, 3]


def compiled(folder):
    """`libcuda.so.1` in a folder; skips where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here, and the fake driver is C")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
    return library


def plan(*, dtype="FLOAT", profiles=(SHORT,), output=None, image=None, **options):
    """A plan of one input `image` [batch, 3] and one output `logits`, twice as large."""
    tensors = [
        {"name": "image", "mode": "INPUT", "shape": [-1, 3], "dtype": dtype, **(image or {})},
        {"name": "logits", "mode": "OUTPUT", "shape": [-1, 3], "dtype": dtype, **(output or {})},
    ]
    found = {"tensors": tensors, "profiles": [{"image": each} for each in profiles], **options}
    return json.dumps(found).encode()
