"""The fake driver, compiled once per test run; plans, engines, interpreters for the fake TensorRT."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from needs import compiler, needs

from optcli.models.engines import sidecar

SOURCE = Path(__file__).parent / "fake_libcuda.c"
SHORT = [1, 3], [4, 3], [8, 3]
LONG = [8, 3], [32, 3], [64, 3]


def compiled(folder):
    """`libcuda.so.1` in a folder; skips where there is no compiler."""
    needs("c compiler")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler(), "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
    return library


def plan(*, dtype="FLOAT", profiles=(SHORT,), output=None, image=None, **options):
    """A plan of one input `image` [batch, 3] and one output `logits`, twice as large."""
    tensors = [
        {"name": "image", "mode": "INPUT", "shape": [-1, 3], "dtype": dtype, **(image or {})},
        {"name": "logits", "mode": "OUTPUT", "shape": [-1, 3], "dtype": dtype, **(output or {})},
    ]
    found = {"tensors": tensors, "profiles": [{"image": each} for each in profiles], **options}
    return json.dumps(found).encode()


def engine(folder, content=None, *, product="tensorrt", version="10.16.1.11", **about):
    """An engine's folder as a build leaves it: the plan and its sidecar."""
    content = plan() if content is None else content
    folder.mkdir(parents=True, exist_ok=True)
    (folder / sidecar.PLAN).write_bytes(content)
    built = {"gpu": "Fake GPU 0", "compute_capability": "9.0", "onnx_sha256": "0" * 64}
    sidecar.write(
        folder,
        sidecar.Sidecar(
            product=product,
            version=version,
            plan_sha256=hashlib.sha256(content).hexdigest(),
            plan_bytes=len(content),
            precision=about.pop("precision", "fp16"),
            **{**built, **about},
        ),
    )
    return folder


def interpreter(folder, library, **variables):
    """Another Python, as a packed one is started: by a script that sets its own environment."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "tensorrt.py").write_text(
        "import fake_tensorrt\nfrom fake_tensorrt import *\n__version__ = fake_tensorrt.__version__\n"
    )
    script = folder / "python3.10"
    lines = [
        "#!/bin/sh",
        f"export PYTHONPATH='{packages}:{Path(__file__).parent}'",
        f"export LD_LIBRARY_PATH='{library.parent}'",
        *(f"export {name}='{value}'" for name, value in variables.items()),
        f'exec "{sys.executable}" "$@"',
    ]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    return str(script)
