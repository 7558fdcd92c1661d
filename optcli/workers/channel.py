"""Messages between a parent and its worker: JSON over a socket, in both directions."""

from __future__ import annotations

import json
import socket
from multiprocessing.connection import Connection
from typing import Any


def pair() -> tuple[Connection, Connection]:
    """Two connected ends. Framing, waiting and reading are the standard library's."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())


def send(connection: Connection, record: dict[str, Any]) -> None:
    """Send plain JSON data. Raises OSError when the other end is gone."""
    connection.send_bytes(json.dumps(record).encode())


def receive(connection: Connection) -> dict[str, Any] | None:
    """The next message; None when the other end is gone."""
    try:
        record: dict[str, Any] = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return None
    return record


class Channel:
    """The worker's side: what a worker function talks through."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, record: dict[str, Any]) -> None:
        """Tell the parent something: an event, or the answer to what it asked."""
        send(self._connection, {"event": record})

    def receive(self) -> dict[str, Any] | None:
        """What the parent asks next; None when it is done or gone."""
        return receive(self._connection)
