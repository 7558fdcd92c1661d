"""A server that answers with whatever bytes it is told to, as fast or as slowly as it is told to."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = bytes | Callable[[socket.socket], None]
SHAPED = {
    "name": "net",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}


def http(body: Any = b"", status: str = "200 OK", **headers: str) -> bytes:
    """An answer as it should be; what is no bytes is written as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "content_length" not in headers:
        lines.append(f"content-length: {len(content)}")
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + content


def trickling(first: bytes, piece: bytes) -> Answer:
    """A piece now and then, without an end."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            time.sleep(0.02)
            connection.sendall(piece)

    return answer


def flooding(first: bytes, piece: bytes) -> Answer:
    """As many pieces as are taken."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(piece)

    return answer


def silent(connection: socket.socket) -> None:
    """Nothing, as long as the other side waits."""
    connection.recv(1)


@contextmanager
def serving(pages: dict[str, Answer]) -> Iterator[str]:
    """Answers by path, in threads; gives the URL. What is not among the pages is 404.

    The pages may change meanwhile; "" answers a connection before anything is read.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            if "" in pages:
                _give(pages[""], connection)
                return
            stream = connection.makefile("rb")
            while line := stream.readline():
                path, length = line.split()[1].decode(), 0
                while (header := stream.readline()) not in (b"\r\n", b""):
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                stream.read(length)
                _give(pages.get(path, http(status="404 Not Found")), connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                opened.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _give(answer: Answer, connection: socket.socket) -> None:
    if callable(answer):
        answer(connection)
        connection.shutdown(socket.SHUT_RDWR)
    else:
        connection.sendall(answer)
