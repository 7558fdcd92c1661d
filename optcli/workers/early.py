"""A fork server that starts before anybody knows what for. Whoever needs one takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from optcli.workers.parent import ForkServer

_waiting: list[ForkServer] = []


@contextmanager
def waiting(modules: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Start a server that imports these modules; it ends with the block unless it was taken."""
    server = ForkServer(modules, environment)
    _waiting.append(server)
    try:
        yield
    finally:
        if server in _waiting:
            _waiting.remove(server)
            server.close()


def taken(environment: Mapping[str, str]) -> ForkServer | None:
    """The server that waits with this environment, for the caller to close; None: there is none."""
    for server in _waiting:
        if server.environment == environment:
            _waiting.remove(server)
            return server
    return None
