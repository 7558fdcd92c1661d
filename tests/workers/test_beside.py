"""A copy of a worker answers beside it, and goes with it."""

import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from optcli import workers
from optcli.errors import StepError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is copied")
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _calls(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.mark.slow
@pytest.mark.parametrize("confined", [(), None])
def test_it_answers_and_is_gone_once_it_is_closed(confined):
    found = workers.run("calls:copied", {"number": 21}, dict[str, Any], timeout_s=60, confined=confined)
    assert found == {"doubled": 42, "same process": False, "waited": False, "left": 0}


@pytest.mark.slow
@pytest.mark.needs("seccomp filters")
def test_a_worker_that_may_not_end_it_does_not_wait_for_it():
    payload = {"number": 21, "on": "old kernel"}
    found = workers.run("calls:copied", payload, dict[str, Any], timeout_s=60)
    assert (found["doubled"], found["waited"]) == (42, False)
    assert found["left"] >= 1  # one that sleeps is ended with the worker


@pytest.mark.slow
def test_it_dies_with_the_worker(tmp_path):
    with workers.spawn("calls:copied_and_killed", {}, log=tmp_path / "log") as child:
        copy = child.receive(dict[str, int], 60)["copy"]
        with pytest.raises(StepError):
            child.result(dict[str, int], 60)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(copy) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not psutil.pid_exists(copy)


@pytest.mark.slow
def test_one_that_fails_says_so_in_the_log_and_is_heard_no_more(tmp_path):
    log = tmp_path / "log"
    assert workers.run("calls:copied_in_vain", {}, type(None), timeout_s=60, log=log) is None
    assert "ValueError: it is tired" in log.read_text()
