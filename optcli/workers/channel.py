"""Messages between a parent and its worker: JSON over a socket, in both directions."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from optcli.errors import StepError
from optcli.files import regular_files
from optcli.workers import messages

T = TypeVar("T")
# Of one message. Those of optcli have some kilobytes; figures of large sweeps have megabytes.
MOST_BYTES = 256 * 1024 * 1024


def pair() -> tuple[Connection, Connection]:
    """Two connected ends. Framing, waiting and reading are the standard library's."""
    parent, child = socket.socketpair()
    return Connection(parent.detach()), Connection(child.detach())


def send(connection: Connection, record: dict[str, Any]) -> None:
    """Send plain JSON data. Raises OSError when the other end is gone."""
    connection.send_bytes(json.dumps(record).encode())


def receive(connection: Connection) -> dict[str, Any] | None:
    """The next record; None when the other end is gone.

    Raises `StepError` for what is no record, and for more than `MOST_BYTES`.
    """
    try:
        text = connection.recv_bytes(MOST_BYTES)
    except (EOFError, OSError):
        if not connection.readable:  # so the library marks a message that is too long
            raise StepError(f"it sent more than {MOST_BYTES >> 20} MiB in one message") from None
        return None
    with suppress(ValueError):
        record = regular_files.parsed_json(text)
        if isinstance(record, dict):
            return record
    raise StepError("the other process sent something that is not a JSON object")


class Channel:
    """The worker's side: what a worker function talks through."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        """Tell the parent something: an event, or the answer to what it asked."""
        send(self._connection, {"event": messages.to_record(message)})

    def receive(self, kind: type[T]) -> T | None:
        """What the parent asks next, of the type `kind`; None when it is done or gone."""
        record = receive(self._connection)
        return None if record is None else messages.read(kind, record["command"])
