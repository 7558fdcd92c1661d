"""What every test may use: real data and models where they are, and an empty store."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import cached_compiler
import pytest
import quiet
from needs import REPOSITORY, needs, shared_folder

if TYPE_CHECKING:
    from edge_device import Edge
    from s3_server import Bucket, Server
    from tiny_project import Project

    from optcli.store import Store

pytest_plugins = ["suite", "pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Compile each C++ source once a run, in the processes of pytest-xdist and all that they start.

    Before anything imports torch, which reads CXX then. OpenVINO is kept from reporting home, as optcli
    does, before a module of tests imports it: it would start a process for each step of a conversion.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # for what tests start, see below
    is_worker = hasattr(config, "workerinput")
    owner = os.getppid() if is_worker else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"optcli-compiled-{owner}"
    if not is_worker:
        # The process that started the others ends last: one of them may still compile.
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        if getattr(config.option, "numprocesses", None):
            return  # this process hands out tests and runs none
    folder.mkdir(exist_ok=True)
    if program := cached_compiler.installed(folder):
        os.environ["CXX"] = str(program)


def pytest_sessionstart() -> None:
    """Collecting makes a million objects that stay: to look for garbage among them costs seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Tests write no byte code, whatever the environment says.

    A module that a test writes twice within a second, as long as before, would be taken for the first.
    """
    gc.enable()
    gc.freeze()
    sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data sets and models: OPTCLI_SHARED, else `shared` beside the repository.

    Tests that ask for it are skipped, with the reason, where there is none.
    """
    needs("shared data")
    return shared_folder()


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_files() -> Iterator[None]:
    """Temporary files of their own: the lock for measuring is one, and a real build may hold it."""
    folder = Path(tempfile.mkdtemp(prefix="optcli-tests-"))
    folder.chmod(0o1777)  # some tests go on as another user
    os.environ["TMPDIR"] = str(folder)
    os.environ["XDG_CONFIG_HOME"] = str(folder / "configurations")  # not what the user says of optcli
    tempfile.tempdir = None
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine() -> Iterator[None]:
    quiet.lift()
    yield
    quiet.restore()


@pytest.fixture(autouse=True)
def _usual_logging() -> None:
    """Warnings are heard: libraries that an earlier test called may have silenced all loggers."""
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture(scope="session", autouse=True)
def _warm_workers() -> Iterator[None]:
    import warm_workers

    with warm_workers.instead_of_cold():
        yield


@pytest.fixture
def cold_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started as a user's are: as fresh interpreters."""
    import warm_workers

    from optcli.workers import parent

    monkeypatch.setattr(parent, "_started", warm_workers.COLD)


@pytest.fixture(scope="session")
def _ready_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    import ready_data

    return ready_data.write(tmp_path_factory.mktemp("ready"))


@pytest.fixture
def ready(_ready_data: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ready recipes find data and models."""
    for name, place in _ready_data.items():
        monkeypatch.setenv(name, place)


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver that computes on the processor: the path of its `libcuda.so.1`."""
    import fake_driver

    return fake_driver.compiled(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(fake_cuda: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """That driver in the place of the real one; gives the library itself, for its counters."""
    from optcli.models.engines import driver

    for name in ("FAKE_CUDA_INIT", "FAKE_CUDA_DEVICES", "FAKE_CUDA_FAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(driver, "LIBRARY", str(fake_cuda))
    monkeypatch.setenv("FAKE_CUDA", str(fake_cuda))
    driver._open.cache_clear()
    yield ctypes.CDLL(str(fake_cuda))
    driver._open.cache_clear()


@pytest.fixture(scope="module")
def hurried_plans() -> Iterator[list[tuple[ModuleType, str, object]]]:
    """Plans simulate a fifth of the requests: the same choices, on figures that scatter more.

    It holds for a whole module, for plans that its fixtures share as well; gives what it replaced.
    """
    from functools import partial

    from optcli.measure.queueing import demand
    from optcli.serving.planning import configuring

    few = [
        (configuring, "Demand", partial(demand.Demand, requests=6_000)),
        (demand, "_MOST_REQUESTS", 24_000),
        (demand, "_BURSTS", 12),
        (demand, "_OF_A_REPLICA", 400),
    ]
    replaced = [(module, name, getattr(module, name)) for module, name, _ in few]
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in few:
            patch.setattr(module, name, value)
        yield replaced


@pytest.fixture
def exact_plans(
    hurried_plans: list[tuple[ModuleType, str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans simulate as many requests as a user's, in a module of hurried ones."""
    for module, name, value in hurried_plans:
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def hurried_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load tests predict by a tenth of the requests, calibrations send few, and limits are coarse."""
    from functools import partial

    from optcli.measure.queueing.demand import Demand
    from optcli.serving.loadtest import calibrating, predicting, workflow

    monkeypatch.setattr(predicting, "Demand", partial(Demand, requests=1500))
    for module, name, few in (
        (workflow, "STEP", 2.0),
        (workflow, "PRECISION", 0.5),
        (workflow, "_ATTEMPTS", 1),
        (workflow, "_CONFIRMATIONS", 1),
        (calibrating, "_LONE", 6),
        (calibrating, "_OF_SIZE", 5),
        (calibrating, "_LOAD_S", 1.0),
    ):
        monkeypatch.setattr(module, name, few)


@pytest.fixture
def tmp_store(tmp_path: Path) -> Store:
    """An empty store."""
    from optcli.store import Store

    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, images and misbehaving passes, to be copied."""
    from tiny_project import write_images, write_model

    folder = tmp_path_factory.mktemp("template")
    write_model(folder / "model.onnx")
    write_images(folder / "images")
    shutil.copyfile(REPOSITORY / "tests" / "fakes.py", folder / "fakes.py")
    return folder


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    """A fresh project, with a store and artifacts of its own."""
    from tiny_project import project_in

    return project_in(tmp_path, template)


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch) -> Edge:
    """A device of this name in the place of a cluster's."""
    from edge_device import Edge, opened

    from optcli.pipeline.on_ray import devices

    device = Edge()
    monkeypatch.setattr(devices, "opened", lambda *_: opened(device))
    return device


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[Server]:
    import s3_server

    with s3_server.started() as server:
        yield server


def _used(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    import s3_server

    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    s3_server.forget()
    yield server.bucket()
    s3_server.forget()


@pytest.fixture
def s3(_s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket on a real S3 server, whose address and credentials are in the environment."""
    yield from _used(_s3_server, monkeypatch)


@pytest.fixture
def own_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The same on a server of the test's own, to be killed or to refuse."""
    import s3_server

    with s3_server.started() as server:
        yield from _used(server, monkeypatch)
