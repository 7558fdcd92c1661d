"""Wheels for a host of another architecture: pip here fetches them, and the host needs no index."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.errors import MissingError

# What a 32-bit Python is on the kernel of a 64-bit machine.
_NARROW = {"aarch64": "armv7l", "x86_64": "i686"}
_FIRST_GLIBC, _MUSL = 5, ("musllinux_1_2", "musllinux_1_1")


def requirements(packages: Collection[str]) -> list[str]:
    """What pip is asked for, by the names to import packages by: the versions of this machine."""
    versions = environment.versions(packages)
    return [
        name if have is None else f"{name}=={have.split('+')[0]}" for name, have in versions.items()
    ]


def fetched(wanted: Collection[str], about: Mapping[str, Any], device: str) -> bytes:
    """The wheels of requirements and of all that they need, for a host that says this `about` itself.

    They come as a zip file. Raises `MissingError` where one is not to be had.
    """
    place = f"devices.{device}"
    hint = "make an environment there by hand, and name it: `python` of the device"
    host, (major, minor) = about["wants"], about["version"]
    if host["system"] != "linux":
        raise MissingError(
            f"`python: venv` is for Linux, the device has {host['system']}", place=place, hint=hint
        )
    # By metadata: setuptools no longer stands in for distutils where a process has looked for pip, and
    # no C++ compiler of torch is to be had in it then.
    if environment.version("pip") is None:
        raise MissingError("pip is not installed here", place=place, hint="python -m ensurepip")
    machine = host["machine"] if about["is_64_bit"] else _NARROW.get(host["machine"], host["machine"])
    with tempfile.TemporaryDirectory(prefix="optcli-wheels-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--dest", folder]
        command += ["--quiet", "--no-input", "--disable-pip-version-check"]
        command += ["--implementation", "cp", "--python-version", f"{major}.{minor}"]
        for tag in _tags(*host["libc"]):
            command += ["--platform", f"{tag}_{machine}"]
        done = subprocess.run([*command, *wanted, "pip"], capture_output=True, text=True, check=False)
        if done.returncode:
            unmet = re.search(r"No matching distribution found for (\S+)", done.stderr)
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it says nothing"]
            why = f"there is no wheel of {unmet[1]}" if unmet else f"pip says: {lines[-1]}"
            raise MissingError(
                f"{why}, for {machine} and Python {major}.{minor}", place=place, hint=hint
            )
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for wheel in sorted(Path(folder).iterdir()):
                archive.write(wheel, wheel.name)
    return packed.getvalue()


def _tags(libc: str, version: str) -> list[str]:
    """The systems that wheels may be for, the newest first, without the machine."""
    if libc != "glibc":
        return [*_MUSL, "linux"]
    newest = int(version.split(".")[1])
    every = [f"manylinux_2_{minor}" for minor in range(newest, _FIRST_GLIBC - 1, -1)]
    return [*every, "manylinux2014", "linux"]
