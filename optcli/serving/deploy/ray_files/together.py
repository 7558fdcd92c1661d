"""Single rows that arrive at the same time go to a replica in one call.

A call through Ray takes longer than all else that the ingress does for a request. The busier the
ingress is, the more requests it finds each time that it looks, and the fewer calls it makes for them.
Nothing waits for others while a replica could begin with it: a request that is alone goes alone. Where
the replicas have a batch to compute and the next one too, what comes waits here and goes together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = tuple[Mapping[str, Any], float]
"""The inputs of a request of one row, and its deadline in seconds since the epoch."""


class Together:
    """Gathers rows for `ask`, which gives the result of each, `most` of them at a time.

    `away` says how many rows may be with the replicas. One full call may always be.
    """

    def __init__(self, ask: Callable[[Sequence[Row]], Any], most: int, away: Callable[[], int]) -> None:
        self._ask, self._most, self._may_be_away = ask, most, away
        self._away, self._looks = 0, False
        self._waiting: list[tuple[Row, asyncio.Future[Any]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def result(self, row: Row) -> Any:
        """What the replica gives for a row. Raises what the call raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((row, future))
        self._look()
        return await future

    def _look(self) -> None:
        """Send what there is as soon as the event loop has seen all that happened."""
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Send what waits, in calls that are as full as can be, but for requests that were given up."""
        self._looks = False
        waiting = deque(each for each in self._waiting if not each[1].done())
        room = max(self._most, self._may_be_away()) - self._away
        while waiting and room >= (size := min(self._most, len(waiting))):
            self._call([waiting.popleft() for _ in range(size)])
            room -= size
        self._waiting = list(waiting)

    def _call(self, waiting: Sequence[tuple[Row, asyncio.Future[Any]]]) -> None:
        self._away += len(waiting)
        call = asyncio.create_task(self._called(waiting))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _called(self, waiting: Sequence[tuple[Row, asyncio.Future[Any]]]) -> None:
        """One call; where nobody waits for any of its rows any more, it is cancelled."""
        futures = [future for _, future in waiting]
        away = len(waiting)

        def returned() -> None:
            nonlocal away
            self._away, away = self._away - away, 0
            self._look()

        try:
            response = self._ask([row for row, _ in waiting])

            def given_up(_: object) -> None:
                if away and all(future.cancelled() for future in futures):
                    response.cancel()
                    returned()  # a replica that hangs may never answer that

            for future in futures:
                future.add_done_callback(given_up)
            results = await response
        except (Exception, asyncio.CancelledError) as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        finally:
            returned()
        for future, result in zip(futures, results, strict=True):
            if not future.done():
                future.set_result(result)
