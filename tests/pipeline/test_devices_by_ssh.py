"""Builds that measure on a host that a real server of OpenSSH reaches: this machine, without optcli."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ssh_host
from needs import needs
from tiny_project import DATA, HEAD, Heard, write_model

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.errors import ExitCode, MissingError, StepError
from optcli.files.digest import FileDigests
from optcli.measure.latency import Candidate, LatencyOrder
from optcli.pipeline.model_files import measuring
from optcli.pipeline.on_ssh import connection, hosts
from optcli.pipeline.on_ssh.devices import SshDevice
from optcli.pipeline.remote_devices.devices import looking
from optcli.runners import find
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings

pytestmark = [pytest.mark.slow, pytest.mark.long]

DEVICES = "devices: {pi: {ssh: true}}\n"
VARIANTS = '  plain: []\n  copied: ["./fakes.py:Copy"]\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    ssh_host.installed()
    needs("sshd")
    folder = tmp_path_factory.mktemp("ssh")
    python = ssh_host.without_optcli(folder / "python")
    # It is this machine: without a difference it would have what was measured here.
    about = next(python.parents[1].glob("lib/python*/site-packages")) / "onnxruntime_gpu-9.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 9.1\n")
    started = ssh_host.SshHost(folder / "server", python)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def pi(server, monkeypatch, tmp_path):
    """The host as the user's configuration names it."""
    host = server.host()
    file = tmp_path / "configuration" / "optcli" / "config.toml"
    file.parent.mkdir(parents=True)
    about = {"ssh": host.target, "options": list(host.options), "python": host.python}
    lines = (f"{key} = {json.dumps(value)}" for key, value in about.items())
    file.write_text("[devices.pi]\n" + "\n".join(lines))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(file.parents[1]))
    return server


def device(host):
    needs_of = {"model": find("onnxruntime")().requires()}
    return SshDevice("pi", host, looking(needs_of, ["onnxruntime"]), FileDigests())


def left_there():
    """Folders that a device has made and not removed."""
    return sorted(Path(os.environ["TMPDIR"]).glob("optcli-device-*"))


def test_there_is_no_optcli_there(server):
    done = subprocess.run(
        [server.python, "-I", "-c", "import onnxruntime, optcli"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'optcli'" in done.stderr


def test_a_build_measures_there_and_here(pi, project):
    measured_on = HEAD.replace("threads: 1}", "threads: 1, devices: [here, pi]}") + DEVICES
    project.recipe(VARIANTS, head=measured_on, data=DATA)
    report = project.build()
    assert report.exit_code == ExitCode.DONE
    assert (report.device, list(report.devices)) == ("here", ["pi"])
    there = report.on("pi")
    for name in ("plain", "copied"):
        (mine,), (theirs,) = report.variants[name].latency, there.variants[name].latency
        assert (mine.device, theirs.device) == ("here", "pi")
        assert mine.p50_ms != theirs.p50_ms
    assert there.environment["machine"] == environment.machine()
    assert there.environment["versions"]["onnxruntime"] == "9.1"
    assert (project.artifacts / "tiny" / "devices" / "pi" / "samples.npz").is_file()
    again = project.build()
    assert again.on("pi").variants["plain"].latency == there.variants["plain"].latency, "it was reused"


def quick(**about):
    few = {"launches": 1, "rounds": 2, "calls": 2, "threads": 1}
    return LatencySettings.model_validate(few | about)


def test_files_without_a_recipe_are_measured_there(pi, tmp_path, monkeypatch):
    short = SimpleNamespace(model_validate=lambda _: quick(max_seconds=0.05))
    monkeypatch.setattr(measuring, "LatencySettings", short)
    for name in ("before", "after"):
        write_model(tmp_path / f"{name}.onnx")
    report = measuring.bench(
        [tmp_path / "before.onnx", tmp_path / "after.onnx"],
        inputs=(TensorSpec(name="image", shape=("batch", 3, 4, 4)),),
        threads=1,
        on="pi",
        store=tmp_path / "store",
    )
    assert report.device == "pi"
    assert {row.device for each in report.variants.values() for row in each.latency} == {"pi"}
    assert report.environment["machine"] == environment.machine()


def test_a_host_whose_key_is_not_known_is_not_trusted(server):
    key = (server.folder / "host.pub").read_text()
    server.know((server.folder / "user.pub").read_text())
    try:
        with pytest.raises(MissingError, match="Host key verification failed") as caught:
            device(server.host()).connect(Heard())
    finally:
        server.know(key)
    assert "compare the host's key" in caught.value.hint


def test_who_has_no_key_is_asked_for_no_password(server, tmp_path):
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    host = server.host()
    options = [str(other) if each == str(server.folder / "user") else each for each in host.options]
    with pytest.raises(MissingError, match="Permission denied") as caught:
        device(hosts.Host(host.target, tuple(options), host.python)).connect(Heard())
    assert "ssh-copy-id 127.0.0.1" in caught.value.hint


def test_a_host_that_is_not_there_and_a_python_that_is_not_there_are_named(server, tmp_path):
    with pytest.raises(MissingError, match="refused") as caught:
        device(hosts.Host("127.0.0.1", ("-F", "none", "-p", "1"))).connect(Heard())
    assert caught.value.place == "devices.pi"
    (tmp_path / "python").write_text("no program")
    for python in ("/no/such/python", str(tmp_path / "python")):
        with pytest.raises(MissingError, match=python) as caught:
            device(server.host(python=python)).connect(Heard())
        assert "config.toml" in caught.value.hint


def wrapped(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_what_python_lacks_there_is_named_with_the_command_that_installs_it(server, tmp_path):
    bare = wrapped(tmp_path / "bare", f'exec {sys.executable} -I -S "$@"')
    with pytest.raises(MissingError, match="has no pydantic, filelock, numpy there") as caught:
        device(server.host(python=bare)).connect(Heard())
    assert re.search(r"ssh 127.0.0.1 \S+ -m pip install pydantic filelock numpy", caught.value.hint)


def measured(of, artifact_folder, seconds=0.05):
    artifact = Artifact("k" * 64, Format.ONNX, artifact_folder, "fp32", 1, "", {})
    order = LatencyOrder(
        candidates=(Candidate("tiny", artifact, "onnxruntime", {"threads": 1}),),
        baseline="tiny",
        inputs=(TensorSpec(name="image", shape=("batch", 3, 4, 4)),),
        feeds=None,
        settings=quick(
            max_seconds=seconds, **({"rounds": 400, "calls": 50_000} if seconds > 1 else {})
        ),
        seed=0,
    )
    return of.measure("latency on pi", order, artifact_folder.parent / "logs", Heard())


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "artifact"
    folder.mkdir()
    write_model(folder / "model.onnx")
    return folder


@pytest.mark.parametrize("ended", ["connection", "program"])
def test_what_is_lost_while_it_measures_is_named_and_can_be_measured_again(server, model, ended):
    """Another order on the same device connects again."""
    reached = device(server.host())
    reached.connect(Heard())
    before = left_there()
    assert len(before) == 1

    def end():
        time.sleep(1.5)
        if ended == "connection":
            server.cut()
        else:
            for pid in server.programs():
                os.kill(pid, signal.SIGKILL)

    ending = threading.Thread(target=end)
    ending.start()
    began = time.monotonic()
    try:
        with pytest.raises(StepError, match="the device pi was lost while it measured") as caught:
            measured(reached, model, seconds=60)
        ending.join()
        assert time.monotonic() - began < 15
        assert "build again" in caught.value.hint
        assert measured(reached, model).names == ("tiny",)
    finally:
        reached.close()
    assert left_there() == [], "what a killed program left is removed by the next one"


def test_a_disk_that_is_full_there_is_named(server, model, tmp_path):
    tiny = wrapped(tmp_path / "tiny", f'ulimit -f 8\nexec {server.python} "$@"')
    with pytest.raises(MissingError, match=r"cannot measure: .*File too large") as caught:
        device(server.host(python=tiny)).connect(Heard())
    assert "make room there" in caught.value.hint
    (model / "weights.bin").write_bytes(os.urandom(5 << 20))
    small = wrapped(tmp_path / "small", f'ulimit -f 4000\nexec {server.python} "$@"')
    reached = device(server.host(python=small))
    reached.connect(Heard())
    try:
        with pytest.raises(StepError, match=r"files do not reach the device pi: .*File too large"):
            measured(reached, model)
    finally:
        reached.close()


def test_options_of_a_user_cannot_take_the_check_of_the_host_away(server):
    host = server.host()
    words = connection._ours()
    assert words.index("StrictHostKeyChecking=yes") < len(words)
    key = (server.folder / "host.pub").read_text()
    server.know((server.folder / "user.pub").read_text())
    lax = hosts.Host(host.target, (*host.options, "-o", "StrictHostKeyChecking=no"), host.python)
    try:
        with pytest.raises(MissingError, match="Host key verification failed"):
            device(lax).connect(Heard())
    finally:
        server.know(key)
