"""Ray, started or joined for as long as something here needs it: `auto`, an address, or `local`."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.environment import Needs
from optcli.errors import MissingError, StepError, UsageError, first_line
from optcli.models.formats.torch_devices import variables as set_variables

LOCAL = "local"
AUTO = "auto"
_ANSWER_S = 10.0
_NO_CLUSTER = "`ray start --head` starts one; without --ray this machine works alone"
# What Ray itself takes of this machine's memory for what travels: results do not travel by it.
_OBJECTS_BYTES = 256 * 1024**2
# Names of Ray's sockets lie below its folder, and may have 107 characters: TMPDIR may be too deep.
_SHORT = Path("/tmp")  # noqa: S108
_PREFIX = "optcli-ray-"
# For Ray of this machine alone. Ray collects figures of its own every few seconds, which keeps a core
# busy for a quarter of a second, gives its workers the niceness 15, and starts one for each core before
# anything is asked of them: ours have an environment of their own.
_OWN = {
    "RAY_enable_metrics_collection": "0",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
}


def require(address: str, place: str, packages: tuple[str, ...] = ("ray",)) -> None:
    """Raise `MissingError` where Ray is not installed, `UsageError` for an address of Ray's client."""
    absent = environment.missing(Needs(packages))
    if absent:
        raise MissingError(absent[0].what, place=place, hint=environment.pip_install("ray"))
    if "://" in address:
        raise UsageError(
            f"found {address!r}, wanted auto, local or HOST:PORT of the cluster's head",
            place=place,
            hint="run optcli on a machine of the cluster: Ray's client keeps no connection to workers",
        )


@contextmanager
def started(address: str, cores: int, variables: dict[str, str] | None = None) -> Iterator[None]:
    """Ray for as long as the context lasts: of this machine alone (`local`), or of a cluster.

    What this process has started or joined already is used and left as it is. `cores` are those that
    `local` gives to tasks, `variables` are set in the environment of what `local` starts. Raises
    `StepError` where it does not start, `MissingError` where no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Else a task that asks for no GPU hides them from what it starts.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    _require_answer(address)
    given: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    short = _SHORT if _SHORT.is_dir() else Path(tempfile.gettempdir())
    _clear(short)
    with tempfile.TemporaryDirectory(
        prefix=f"{_PREFIX}{os.getpid()}-", dir=short, ignore_cleanup_errors=True
    ) as own:
        if address == LOCAL:
            given |= {"num_cpus": cores, "include_dashboard": False, "_temp_dir": own}
            given |= {"object_store_memory": _OBJECTS_BYTES}
        else:
            given |= {"address": address}
        try:
            # Ray puts the current folder first among those from which its workers import: a `numpy.py`
            # that lies there would run in place of the library.
            with (
                chdir(own),
                _quiet(),
                set_variables(**{**(_OWN if address == LOCAL else {}), **(variables or {})}),
            ):
                ray.init(**given)
        except ConnectionError as error:
            raise MissingError(
                f"no Ray cluster answers: {first_line(error)}",
                place=address,
                hint=_NO_CLUSTER,
            ) from error
        except Exception as error:  # of a busy machine Ray raises no class of its own
            raise StepError(
                f"Ray does not start: {first_line(error)}",
                place=address,
                hint="see whether cores and memory are free, also in /dev/shm, and run it again",
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _require_answer(address: str) -> None:
    """Raise `MissingError` where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise MissingError(
            f"no Ray cluster answers: {first_line(error)}", place=address, hint=_NO_CLUSTER
        ) from error


def _clear(folder: Path) -> None:
    """Remove what runs that were killed left: Ray's logs and sockets."""
    for path in folder.glob(f"{_PREFIX}*-*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdecimal() and not Path(f"/proc/{number}").exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on stderr: Ray's core writes a line there to say which level of messages it writes."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
