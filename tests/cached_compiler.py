"""A C++ compiler that remembers: many tests have Inductor compile the same network again.

`installed(folder)` writes `folder/g++`, a program for the variable CXX. Where the compiler, the
arguments and the source are the same but for temporary folders, it copies what an earlier call made;
else it compiles, and has torch's headers read once for all sources. Kernels are optimized as usual, the
code that calls them is not. All that Inductor itself does (tracing, choice of kernels, generated code)
happens in every test. Headers are taken to stay the same
during a run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_TEMPORARY = re.compile(rb"/tmp/[\w./+-]+")
_OWN_HEADER = re.compile(rb'^\s*#include\s+"/tmp/', re.MULTILINE)


def installed(folder: Path) -> Path | None:
    """The program; None where there is no g++. Processes of one run may share the folder."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        return None
    program = folder / "g++"  # torch tells the kind of compiler by the name
    lines = (
        f"#!{sys.executable} -IS",
        "import runpy",
        f"runpy.run_path({__file__!r})['main']({compiler!r}, {str(folder)!r})\n",
    )
    handle, made = tempfile.mkstemp(dir=folder)
    os.write(handle, "\n".join(lines).encode())
    os.close(handle)
    os.chmod(made, 0o755)
    os.replace(made, program)
    return program


def main(compiler: str, folder: str) -> None:
    """Compile, or copy what was compiled; ends the process."""
    arguments = sys.argv[1:]
    key = _key(compiler, arguments)
    if key is None:
        os.execv(compiler, [compiler, *arguments])
    target, known = arguments[arguments.index("-o") + 1], os.path.join(folder, key)
    if os.path.exists(known):
        _copy(known, target)
        sys.exit(0)
    arguments = _quick(arguments)
    command = [compiler, *_headers(compiler, folder, arguments), *arguments]
    code = subprocess.run(command, check=False).returncode
    if code == 0 and os.path.isfile(target):
        with suppress(OSError):  # a confined process may not write here
            _copy(target, known)
    sys.exit(code)


def _key(compiler: str, arguments: Sequence[str]) -> str | None:
    """Of all that the result depends on; None where that cannot be told, or nothing is compiled."""
    sources = [each for each in arguments if each.endswith(".cpp") and os.path.isfile(each)]
    objects = [each for each in arguments if each.endswith((".o", ".a", ".h", ".hpp"))]
    if len(sources) != 1 or "-o" not in arguments[:-1] or "-E" in arguments:
        return None
    target = arguments[arguments.index("-o") + 1]
    text = Path(sources[0]).read_bytes()
    if [each for each in objects if each != target] or _OWN_HEADER.search(text):
        return None
    parts = [compiler, *(each for each in arguments if each not in (target, sources[0]))]
    digest = hashlib.sha256("\0".join(parts).encode())
    digest.update(b"\0" + _TEMPORARY.sub(b"", text))
    return digest.hexdigest()


def _quick(arguments: Sequence[str]) -> list[str]:
    """Without debugging information, and without optimizing code that only calls the kernels."""
    quick = {"-g1": "-g0"}
    if any(each.endswith(".wrapper.cpp") for each in arguments):
        quick["-O1"] = "-O0"
    return [quick.get(each, each) for each in arguments]


def _headers(compiler: str, folder: str, arguments: Sequence[str]) -> list[str]:
    """Options that name a precompiled header: what a source includes of torch before all else."""
    (source,) = (each for each in arguments if each.endswith(".cpp"))
    lines = []
    for line in Path(source).read_text().splitlines():
        if line.startswith("#include <torch/"):
            lines.append(line)
        elif line and not line.startswith("//"):
            break
    if not lines:
        return []
    others = ("-c", "-o", "-shared", source, arguments[arguments.index("-o") + 1])
    options = [each for each in arguments if each not in others and not each.startswith(("-l", "-L"))]
    key = hashlib.sha256("\0".join((compiler, *options, *lines)).encode()).hexdigest()
    header, own = f"{folder}/{key}.h", f"{folder}/{key}-{os.getpid()}"
    if not os.path.exists(f"{header}.gch"):
        command = [compiler, "-x", "c++-header", f"{own}.h", *options, "-o", f"{own}.gch"]
        try:
            Path(f"{own}.h").write_text("\n".join([*lines, ""]))
            subprocess.run(command, check=True, capture_output=True)
            os.replace(f"{own}.h", header)
            os.replace(f"{own}.gch", f"{header}.gch")
        except (OSError, subprocess.CalledProcessError):  # a confined process may not write here
            return []
    return ["-include", header]


def _copy(source: str, target: str) -> None:
    """Others may read the target meanwhile: it is there whole or not at all."""
    handle, made = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(target)))
    os.close(handle)
    shutil.copyfile(source, made)
    shutil.copymode(source, made)
    os.replace(made, target)
