"""What the passes with NNCF share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keep NNCF from printing: its progress bars go to rich's global console, its log to stdout."""
    import rich

    console, log = rich.get_console(), logging.getLogger("nncf")
    before = (console.quiet, log.level)
    console.quiet = True
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        console.quiet = before[0]
        log.setLevel(before[1])
