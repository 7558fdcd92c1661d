"""A connection has a time limit and a size limit for the head of a request: its first line and headers.

uvicorn, which Ray listens with, waits for a head as long as the client likes, and keeps all of it.
Ray calls `limit` in each process that listens, before it does, where
RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH is `request_heads:limit`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from uvicorn.protocols.http import auto
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BYTES = 1 << 16
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose next head takes longer than `limit_s`, or more than 64 KiB.

    Between requests uvicorn's own limit holds.
    """

    limit_s = 10.0
    _timer: asyncio.TimerHandle | None = None
    _size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        inside = self._timer
        super().data_received(data)
        if inside is not None and self._timer is inside:
            self._size += len(data)
            if self._size > _MOST_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._begin()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._timer is not None:  # what follows a body in pieces is of no use here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end()
        super().on_headers_complete()

    def _begin(self) -> None:
        self._end()
        self._timer, self._size = self.loop.call_later(self.limit_s, self._close), 0

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()


def limit() -> None:
    """Set the limits for whatever this process listens with from now on."""
    bundle = json.loads((Path(__file__).parent / "bundle.json").read_text())
    LimitedProtocol.limit_s = bundle["read_timeout_s"]
    auto.AutoHTTPProtocol = LimitedProtocol
