"""What forks the workers of tests: one process for each kind, those that were used last."""

from __future__ import annotations

import os

import psutil
import pytest
import warm_workers
from warm_workers import Forkers

pytestmark = pytest.mark.slow


@pytest.fixture
def forkers(monkeypatch):
    monkeypatch.setattr(warm_workers, "_MOST", 2)
    made = Forkers()
    yield made
    made.close()


def test_the_kinds_that_were_used_last_stay(forkers):
    def of(name, *modules):
        return forkers._of(("json", "csv", *modules), {**os.environ, "KIND": name})

    one, other = of("one"), of("other")
    assert of("one") is one
    third = of("third")
    assert not psutil.pid_exists(other.pid)
    assert of("one") is one
    assert of("third") is third
    one.starting = 1  # a worker of each, so that neither may end
    third.starting = 1
    assert of("fourth") is forkers._plain


def test_a_kind_is_forked_from_one_that_has_a_part_of_it(forkers):
    def of(*modules, **variables):
        return forkers._of(modules, {**os.environ, **variables})

    one = of("json", "csv")
    more = of("json", "csv", "wave", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert psutil.Process(more.pid).ppid() == one.pid
    assert not one.is_idle()
    assert of("wave", "csv", "json", OPTCLI_STORE="elsewhere") is more
