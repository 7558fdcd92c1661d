"""Packages for `gpu_day.sh`, packed where there is a network for a machine that has none.

    python benchmarks/gpu_pack.py FOLDER [--part 1]      # fetch and pack
    python benchmarks/gpu_pack.py FOLDER --list          # bytes of each transfer, of what was packed
    python benchmarks/gpu_pack.py FOLDER --unpack SITE   # there: pieces together, wheels into SITE

`FOLDER/1` holds the wheels that optcli lacks beside torch, torchvision and onnx. `FOLDER/2` holds
ONNX Runtime for CUDA in pieces that each fit into a transfer, in `FOLDER/2/a`, `FOLDER/2/b` and so on:
of its CUDA provider (284 MB) only the machine code for one kind of GPU is left (`--arch`, 90 for
Hopper), in the same places of the file, with zeros for all others.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

WHEELS = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "ruamel.yaml")
RUNTIME = "onnxruntime-gpu"
_PROVIDER = "libonnxruntime_providers_cuda.so"
# What travels at once, less the repository of at most 20 MiB.
PIECE_BYTES = 43 << 20
# The headers of CUDA's fat binaries: of all of one module, and of the code for one kind of GPU.
_MAGIC = struct.pack("<I", 0xBA55ED50)
_MODULE, _CODE = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")


def main() -> int:
    """Pack, list or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", type=int, choices=(1, 2), help="default: both")
    parser.add_argument("--python", default="3.12", help="the Python of that machine")
    parser.add_argument("--arch", type=int, default=90, help="compute capability without its dot")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--unpack", type=Path, metavar="SITE")
    chosen = parser.parse_args()
    if chosen.unpack:
        unpack(chosen.folder, chosen.unpack)
        return 0
    if not chosen.list:
        for part in (chosen.part,) if chosen.part else (1, 2):
            pack(part, chosen.folder / str(part), chosen.python, chosen.arch)
    sizes = transfers(chosen.folder)
    for name, size in sizes.items():
        print(f"transfer {name}: {size} bytes")
    return 0 if sizes and max(sizes.values()) <= PIECE_BYTES else 1


def transfers(folder: Path) -> dict[str, int]:
    """Bytes of each transfer by its folder: `1`, `2/a`, `2/b`."""
    places = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sizes: dict[str, int] = {}
    for path in places:
        name = path.parent.relative_to(folder).as_posix()
        sizes[name] = sizes.get(name, 0) + path.stat().st_size
    return sizes


def pack(part: int, folder: Path, python: str, arch: int) -> None:
    """Fetch and pack one part into an empty folder."""
    folder.mkdir(parents=True)
    names = WHEELS if part == 1 else (RUNTIME,)
    platforms = [f"--platform=manylinux{each}_x86_64" for each in ("_2_28", "_2_17", "2014", "_2_27")]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
         f"--python-version={python}", "--implementation=cp", *platforms, "-d", str(folder), *names],
        check=True,
    )  # fmt: skip
    for wheel in folder.glob(f"{RUNTIME.replace('-', '_')}-*.whl"):
        content = lzma.compress(pruned_wheel(wheel, arch), preset=6)
        digest = hashlib.sha256(content).hexdigest()
        for number, at in enumerate(range(0, len(content), PIECE_BYTES)):
            place = folder / "abcdefgh"[number]
            place.mkdir()
            piece = place / f"{wheel.name}.{digest[:16]}.xz.{number}"
            piece.write_bytes(content[at : at + PIECE_BYTES])
        wheel.unlink()


def pruned_wheel(wheel: Path, arch: int) -> bytes:
    """A wheel without compression, whose CUDA provider has code for one kind of GPU alone."""
    smaller = wheel.with_suffix(".zip")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(smaller, "w", zipfile.ZIP_STORED) as out:
        for member in source.infolist():
            content = source.read(member)
            if member.filename.endswith(_PROVIDER):
                content = pruned(content, arch)
            out.writestr(member.filename, content)
    content = smaller.read_bytes()
    smaller.unlink()
    return content


def pruned(library: bytes, arch: int) -> bytes:
    """A library with zeros for the code of other GPUs. Raises `ValueError` where none is left."""
    content, left = bytearray(library), 0
    for kind, start, end in codes(library):
        if kind == arch:
            left += 1
        else:
            content[start:end] = bytes(end - start)
    if not left:
        raise ValueError(f"the library has no code for compute capability {arch}")
    return bytes(content)


def codes(library: bytes) -> Iterator[tuple[int, int, int]]:
    """Compute capability, start and end of all code for GPUs in a library."""
    at = library.find(_MAGIC)
    while at >= 0:
        _, _, header, size = _MODULE.unpack_from(library, at)
        place, end = at + header, at + header + size
        if header != _MODULE.size or end > len(library):
            at = library.find(_MAGIC, at + 4)
            continue
        while place < end:
            _, _, header, size, *_, arch = _CODE.unpack_from(library, place)
            if not header or place + header + size > end:
                raise ValueError(f"the code for GPUs at {place} is not as CUDA writes it")
            yield arch, place + header, place + header + size
            place += header + size
        at = library.find(_MAGIC, end)


def unpack(folder: Path, site: Path) -> None:
    """Put pieces together where all are there, and install the wheels into `site`."""
    pieces = sorted(folder.rglob("*.xz.[0-9]"), key=lambda path: path.suffix)
    if pieces:
        name, digest = pieces[0].name.split(".whl.")[0] + ".whl", pieces[0].name.split(".")[-3]
        content = b"".join(piece.read_bytes() for piece in pieces)
        if hashlib.sha256(content).hexdigest()[:16] != digest:
            raise SystemExit(f"{len(pieces)} pieces of {name} do not make the whole: bring the others")
        (folder / name).write_bytes(lzma.decompress(content))
    wheels = [str(path) for path in sorted(folder.rglob("*.whl"))]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile",
         "--upgrade", "--target", str(site), *wheels],
        check=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
