"""What a worker process does: load one function, call it, answer (`python -m optcli.workers.child`)."""

from __future__ import annotations

import faulthandler
import importlib
import os
import re
import sys
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from optcli.errors import NO_ROOM, NoModuleError, OptcliError, StepError, first_line
from optcli.workers import confinement, libraries, messages
from optcli.workers.channel import Channel, receive, send
from optcli.workers.lifetime import APART, bind_to_parent

# What torch, ONNX Runtime, C++ and the system say where an allocation fails.
_NO_MEMORY = re.compile(
    r"(fail(ed)? to|can(no|')t) allocate memory|not enough memory|bad_alloc", re.IGNORECASE
)


def serve(connection: Connection, parent: int, *, apart: bool) -> None:
    """Take one call from the connection, carry it out and end the process.

    `apart`: out of reach of other processes, before it learns how it is confined.
    """
    os.set_inheritable(connection.fileno(), False)  # what it starts does not hold the channel open
    bind_to_parent(parent, apart=apart)
    faulthandler.enable()
    libraries.spare_the_compiler()
    call = receive(connection)
    if call is None:
        os._exit(0)
    status = 0
    try:
        if "writable" in call:
            _confine(call["scratch"], call["writable"])
        module, _, name = call["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        kind, gives = messages.types_of(function)
        result = function(messages.read(kind, call["message"]), Channel(connection))
        with suppress(BrokenPipeError):  # a parent that only had questions waits for no result
            send(connection, {"result": messages.to_record(result, gives)})
    except BaseException as error:  # whatever it is, the parent must hear of it
        status = 1
        with suppress(OSError):  # the log may be what the disk has no room for
            traceback.print_exc()
        with suppress(OSError):  # the parent may be gone
            send(connection, {"error": _record(error)})
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # Skip the exit handlers of libraries: they can hang, and some ask the network.
    os._exit(status)


def _confine(scratch: str, writable: list[str]) -> None:
    """Before any library is imported: what starts threads would leave some of them outside."""
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    confinement.enter([Path(scratch), *map(Path, writable)])


def _record(error: BaseException) -> dict[str, Any]:
    if isinstance(error, OptcliError):
        return error.to_record()
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        return StepError("it ran out of memory", hint="use smaller batches or inputs").to_record()
    if isinstance(error, SystemExit):
        return StepError(
            f"the code ended its process with sys.exit({error.code!r})",
            hint="raise an error that says what is wrong instead",
        ).to_record()
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return StepError(
            f"it could not write: {os.strerror(error.errno)}",
            place=str(error.filename or ""),
            hint="make room (`optcli cache gc`), raise the limit, or choose another place with --store",
        ).to_record()
    text = first_line(error) if str(error).strip() else "no message"
    kind = NoModuleError if isinstance(error, ModuleNotFoundError) else StepError
    return kind(f"{type(error).__name__}: {text}").to_record()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]), apart=APART in sys.argv[3:])
