"""Single rows that arrive at the same time go to a replica in one call.

A call through Ray takes longer than all else that the ingress does for a request. The busier the
ingress is, the more requests it finds each time that it looks, and the fewer calls it makes for them.
Nothing waits for others: a request that is alone goes alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = tuple[Mapping[str, Any], float]
"""The inputs of a request of one row, and its deadline in seconds since the epoch."""


class Together:
    """Gathers rows for `ask`, which gives the result of each, `most` of them at a time."""

    def __init__(self, ask: Callable[[Sequence[Row]], Any], most: int) -> None:
        self._ask, self._most = ask, most
        self._waiting: list[tuple[Row, asyncio.Future[Any]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def result(self, row: Row) -> Any:
        """What the replica gives for a row. Raises what the call raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((row, future))
        return await future

    def _send(self) -> None:
        """Send what came since the event loop looked last, but for requests that were given up."""
        came, self._waiting = self._waiting, []
        waiting = [each for each in came if not each[1].done()]
        for start in range(0, len(waiting), self._most):
            call = asyncio.create_task(self._called(waiting[start : start + self._most]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _called(self, waiting: Sequence[tuple[Row, asyncio.Future[Any]]]) -> None:
        """One call; where nobody waits for any of its rows any more, it is cancelled."""
        futures = [future for _, future in waiting]
        try:
            response = self._ask([row for row, _ in waiting])

            def given_up(_: object) -> None:
                if all(future.cancelled() for future in futures):
                    response.cancel()

            for future in futures:
                future.add_done_callback(given_up)
            results = await response
        except (Exception, asyncio.CancelledError) as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in zip(futures, results, strict=True):
            if not future.done():
                future.set_result(result)
