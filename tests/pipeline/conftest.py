"""What tests of builds share: a Ray cluster for those that need one; builds that measure nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from ray_cluster import RayCluster, ray_cluster

from optcli.pipeline import latency

_running: list[tuple[ExitStack, RayCluster]] = []


@pytest.fixture
def shared_cluster(request: pytest.FixtureRequest) -> RayCluster:
    """Starting a head takes seconds. A test gives it the nodes that it needs: `settle`."""
    if not _running:
        stack = ExitStack()
        _running.append((stack, stack.enter_context(ray_cluster())))
        request.config.add_cleanup(stack.close)
    return _running[0][1]


@contextmanager
def _unmeasured() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "measure", lambda *_, **__: latency.LatencyResults())
        yield


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """Builds measure no latency, for tests of what comes before it."""
    with _unmeasured():
        yield


@pytest.fixture(scope="module")
def all_unmeasured() -> Iterator[None]:
    """The same for a whole file."""
    with _unmeasured():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """An idle cluster costs a few hundredths of a core: it ends with the last test that may use it."""
    yield
    if _running and not (nextitem and nextitem.path.match("pipeline/*_on_ray.py")):
        _running.pop()[0].close()
