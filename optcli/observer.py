"""What the working parts say while they work. Nothing below `cli/` and `report/` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Observer:
    """Hears of every step of a build; what a subclass does not define does nothing.

    `step` is a readable name such as `onnx-int8 › quantize_nncf`.
    """

    def started(self, step: str) -> None: ...

    def cached(self, step: str) -> None: ...

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        """`fraction` is 0..1, or None where the end is not known."""

    def finished(self, step: str, seconds: float) -> None: ...

    def failed(self, step: str, reason: str) -> None: ...

    def warned(self, step: str, message: str) -> None:
        """Something a person should know that stops nothing: a fall-back, a deprecation."""


@contextmanager
def timed(observer: Observer, step: str) -> Iterator[list[str]]:
    """Say that a step starts, and at the end its seconds, or that it failed: why is put into the list.

    Of an error nothing is said here: whoever catches it says it.
    """
    observer.started(step)
    began = time.monotonic()
    failures: list[str] = []
    yield failures
    if failures:
        observer.failed(step, "; ".join(failures))
    else:
        observer.finished(step, time.monotonic() - began)


def left(seconds: float) -> str:
    """The time that something will still take, in words: `2 min 5 s left`."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes} min left"
    return f"{minutes} min {whole % 60} s left" if minutes else f"{whole} s left"


def rate(images: float, seconds: float) -> str:
    """Images a second with three digits, or all that stand before the point."""
    images_per_s = images / seconds
    return f"{images_per_s:.0f} images/s" if images_per_s >= 1000 else f"{images_per_s:.3g} images/s"


class Silent(Observer):
    """An observer that keeps quiet: for tests and for callers from Python."""
