"""Runners whose calls are an object of its own: what a model's forms and runtimes have in common."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from pydantic import PrivateAttr

from optcli.errors import RunnerError
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np


class ModelCalls(Protocol):
    """The three steps of a call, as in `Runner`."""

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take one batch."""

    def execute(self) -> None:
        """Compute it."""

    def fetch(self) -> dict[str, np.ndarray]:
        """The outputs by name."""


class CallsRunner(Runner):
    """A runner that sets `_loaded` when it loads."""

    _loaded: ModelCalls | None = PrivateAttr(None)

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        self._calls.bind(feed)

    def execute(self) -> None:
        self._calls.execute()

    def fetch(self) -> dict[str, np.ndarray]:
        return self._calls.fetch()

    def close(self) -> None:
        self.__dict__.pop("_calls", None)
        self._loaded = None

    @cached_property
    def _calls(self) -> ModelCalls:
        # A private attribute of a pydantic model costs a microsecond at each look, this one nothing.
        if self._loaded is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        return self._loaded
