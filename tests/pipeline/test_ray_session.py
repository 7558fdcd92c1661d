"""Ray as it is started and joined, without Ray."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from optcli.errors import MissingError, StepError
from optcli.pipeline import ray_session


@pytest.mark.parametrize(
    ("raised", "error", "says", "hint"),
    [
        # What Ray raises on a machine that is too busy for it: no class of its own.
        (Exception("The node timed out during startup."), StepError, "timed out", "/dev/shm"),
        (AssertionError(), StepError, "AssertionError", "cores and memory"),
        (ConnectionError("nobody"), MissingError, "no Ray cluster answers: nobody", "ray start"),
    ],
)
def test_a_ray_that_does_not_start_says_what_to_do(monkeypatch, raised, error, says, hint):
    def init(**_):
        raise raised

    fake = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(error) as caught, ray_session.started(ray_session.LOCAL, 1):
        pass
    assert says in caught.value.message
    assert hint in caught.value.hint
