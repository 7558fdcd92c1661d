"""`python = "venv"`: an environment that optcli makes on a device from wheels, here without ssh."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from optcli.errors import MissingError
from optcli.pipeline.on_ssh import connection, wheels
from optcli.pipeline.on_ssh.hosts import Host

pytestmark = [pytest.mark.slow, pytest.mark.long]

# Runs what ssh would run there.
_SSH = '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n'


def wheel(folder, name, tag="py3-none-any"):
    about = f"{name}-1.0.dist-info"
    written = {
        f"{name}/__init__.py": "",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as archive:
        for file, text in written.items():
            archive.writestr(file, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in written))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Wheels that pip finds here, and no others; the home of the user there is a folder."""
    bundled = Path(pytest.importorskip("ensurepip").__file__).parent / "_bundled"
    folder = tmp_path / "index"
    folder.mkdir()
    for name in connection.NEEDED:
        wheel(folder, name)
    (folder / "ssh").write_text(_SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{folder} {bundled}")
    monkeypatch.setattr(wheels.environment, "versions", lambda names: dict.fromkeys(sorted(names)))
    return folder


def connected(said, packages=()):
    """The Python that measures there."""
    host = Host("pi", python=connection.VENV)
    reached = connection.SshConnection("pi", host, packages, said.append)
    try:
        return reached.python
    finally:
        reached.close()


# Of what is installed, only this may be imported where a device has no more.
_PROMISED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {needed} | sys.stdlib_module_names and top[:1] != "_":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import optcli.pipeline.on_ssh.host_program
"""


def test_what_measures_there_imports_no_more_than_is_asked_for():
    theirs = {"pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
    needed = {"optcli", *connection.NEEDED, *theirs}
    program = _PROMISED.format(needed=needed)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.stderr


def test_it_is_made_once_and_measures(index, tmp_path):
    said: list[str] = []
    made = Path(connected(said))
    assert made.is_relative_to(tmp_path / "home" / ".cache" / "optcli")
    assert len(said) == 1
    assert "makes an environment there" in said[0]
    assert [each.name for each in (tmp_path / "home/.cache/optcli").iterdir()] == [made.parts[-3]]
    assert Path(connected(said)) == made
    assert len(said) == 1, "it is there already"


def test_a_wheel_that_no_index_has_for_the_device_is_named(index):
    wheel(index, "runtime", "cp311-cp311-manylinux_2_17_riscv64")
    with pytest.raises(
        MissingError, match=r"there is no wheel of runtime, for \w+ and Python 3\."
    ) as caught:
        connected([], ["runtime"])
    assert caught.value.place == "devices.pi"
    assert "by hand" in caught.value.hint


def test_wheels_are_asked_for_the_device_and_not_for_this_machine(index):
    wheel(index, "runtime", "cp311-cp311-manylinux_2_17_armv7l")
    there = {"machine": "aarch64", "libc": ["glibc", "2.31"], "system": "linux"}
    about = {"wants": there, "version": [3, 11], "is_64_bit": False}
    assert wheels.fetched(["runtime"], about, "pi")
    with pytest.raises(MissingError, match="no wheel of runtime, for aarch64 and Python 3"):
        wheels.fetched(["runtime"], {**about, "is_64_bit": True}, "pi")
    older = {**there, "libc": ["glibc", "2.12"]}
    with pytest.raises(MissingError, match="no wheel of runtime"):
        wheels.fetched(["runtime"], {**about, "wants": older}, "pi")
    with pytest.raises(MissingError, match="`python: venv` is for Linux, the device has darwin"):
        wheels.fetched(["runtime"], {**about, "wants": {**there, "system": "darwin"}}, "pi")
    # What compiles C++ in this process asks setuptools, which steps back where pip was looked for.
    found = importlib.util.find_spec("distutils")
    assert found is None or "setuptools" in str(found.origin)


def test_wheels_that_cannot_be_installed_leave_nothing_behind(index, tmp_path):
    (index / "broken-1.0-py3-none-any.whl").write_bytes(b"no archive")
    with pytest.raises(MissingError, match="pip"):
        connected([], ["broken"])
    assert not list((tmp_path / "home").rglob("environment-*"))
