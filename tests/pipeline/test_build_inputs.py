"""Passes that spoil what they read or write what is no file: their variant fails, and no other."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from optcli.errors import ExitCode
from optcli.store import Store

SAYS = {
    "removes": "it removed or replaced model.onnx of its input",
    "changes": "it changed model.onnx of its input",
    "replaces": "it changed model.onnx of its input",
    "adds": "it wrote more.txt into the folder of its input",
    "store": "it changed files of its input in the store",
    "pipe": "found pipe, which is a pipe",
    "pipe for a model": "found model.onnx, which is a pipe",
    "socket": "found socket, which is a socket",
    "link": "found link, which is a link",
    "folders in folders": "deeper folders than the store takes",
    "many files": "more files than the store takes",
    **({"device": "found device, which is a device"} if os.geteuid() == 0 else {}),
}


@pytest.mark.long
def test_a_pass_that_meddles_costs_its_own_variant(project):
    meddling = "".join(
        f'  {way.replace(" ", "-")}: [{{"./fakes.py:Meddle": {{way: {way}}}}}]\n' for way in SAYS
    )
    touching = '  touches: [{"./fakes.py:Meddle": {way: touches}}]\n'
    project.recipe(f'  plain: []\n{meddling}{touching}  good: ["./fakes.py:Copy"]\n')
    report = project.build(timeout_s=60)
    assert report.exit_code == ExitCode.FAILED
    for way, says in SAYS.items():
        assert says in str(report.variants[way.replace(" ", "-")].reason), way
    for name in ("plain", "touches", "good"):
        assert report.variants[name].latency, "reading and touching an input is no harm"
    assert Store(project.store).verify() == []
    assert not list((project.store / "work").iterdir())


@pytest.mark.slow
def test_an_artifact_that_is_spoiled_after_it_was_made_is_not_measured(project):
    project.recipe(
        '  plain: []\n  first: [{"./fakes.py:Copy": {note: a}}]\n'
        '  bad: [{"./fakes.py:Meddle": {way: all}}]\n'
    )
    report = project.build()
    assert report.exit_code == ExitCode.FAILED
    assert "changed while the build ran" in str(report.variants["first"].reason)
    assert not report.variants["first"].latency
    assert report.variants["plain"].latency
    assert Store(project.store).verify() == []


CODE = """
import sys
from optcli.cli import main
sys.argv = ["optcli", "build", sys.argv[1], "--store", sys.argv[2], "--artifacts", sys.argv[3]]
main()
"""


@pytest.mark.long
@pytest.mark.slow
def test_the_first_signal_ends_a_build_whose_pass_hangs(project):
    number = signal.SIGTERM
    recipe = project.recipe('  plain: []\n  bad: [{"./fakes.py:Misbehave": {way: hang}}]\n')
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", CODE, recipe, project.store, project.artifacts],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as build:
        deadline = time.monotonic() + 120
        while not any('"hang"' in call.read_text() for call in project.store.glob("logs/*/call.json")):
            assert time.monotonic() < deadline
            assert build.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
        family = psutil.Process(build.pid).children(recursive=True)
        build.send_signal(number)
        try:
            assert build.wait(30) == 128 + number
        finally:
            build.kill()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
