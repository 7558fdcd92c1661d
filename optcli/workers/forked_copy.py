"""A copy of a worker that computes beside it, on a core that the worker leaves free."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from optcli.workers import channel


def is_possible() -> bool:
    """Whether this process can be copied: it has one thread. Of more, their locks would stay locked."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # no Linux
        return False


class ForkedCopy:
    """A copy of this process, which carries out `serve` with its end of a connection and then ends.

    It may do what this process may, and writes to the same log. The keeper of a worker ends its copies
    with it (`lifetime`). Only where `is_possible`.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self.connection, theirs = channel.pair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else the copy writes it again
        self._pid = os.fork()
        if self._pid == 0:
            self.connection.close()
            _serve(serve, theirs)
        theirs.close()

    def close(self) -> None:
        """End the copy, whatever it does.

        A confined process may not be allowed to: then the copy ends once it looks at its connection, or
        with this process.
        """
        self.connection.close()
        try:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, PermissionError, ChildProcessError):
            return


def _serve(serve: Callable[[Connection], None], connection: Connection) -> NoReturn:
    status = 1
    try:
        with suppress(OSError):  # it is the first to take where memory runs out: the worker goes on
            Path("/proc/self/oom_score_adj").write_text("900")
        serve(connection)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
