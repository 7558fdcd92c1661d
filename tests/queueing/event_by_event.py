"""Batching servers with a calendar of events: what the fast simulations are compared with.

Written from the rules alone. Every arrival, every end of a batch and every end of a wait is an event;
after each the server looks whether a batch can go.
"""

import heapq
import itertools

ARRIVAL, DONE, TIMER = 1, 0, 2  # workers become free before others arrive, timers come last


class Server:
    def __init__(self, batching, took):
        self.batching, self.took, self.wait = batching, took, batching.wait_ms
        self.queue, self.finished = [], {}
        self.calendar, self.order, self.sent = [], itertools.count(), 0

    def at(self, time, kind, what):
        heapq.heappush(self.calendar, (time, kind, next(self.order), what))

    def go(self, times, workers):
        self.times, self.idle = times, workers
        for request, time in enumerate(times):
            self.at(time, ARRIVAL, request)
        while self.calendar:
            now, kind, _, what = heapq.heappop(self.calendar)
            self.happens(now, kind, what)
        return self.finished

    def send(self, now, requests):
        end = now + self.took(len(requests), self.sent)
        self.sent += 1
        for request in requests:
            self.finished[request] = end
        self.idle -= 1
        self.at(end, DONE, None)


class OldestAge(Server):
    def happens(self, now, kind, request):
        if kind == DONE:
            self.idle += 1
        elif kind == ARRIVAL:
            self.queue.append(request)
            self.at(now + self.wait, TIMER, None)
        while self.idle and self.queue and self.is_due(now):
            batch = self.queue[: self.batching.batch]
            del self.queue[: self.batching.batch]
            self.send(now, batch)

    def is_due(self, now):
        oldest = min(self.queue)
        return len(self.queue) >= self.batching.batch or self.times[oldest] + self.wait <= now


class Sealed(Server):
    """One replica. A batch opens with a request and closes when full, or by its timer."""

    opened, closed, number = (), (), 0

    def happens(self, now, kind, what):
        if kind == DONE:
            self.idle += 1
        elif kind == ARRIVAL:
            if not self.opened:
                self.opened = []
                self.at(now + self.wait, TIMER, self.number)
            self.opened.append(what)
            if len(self.opened) == self.batching.batch:
                self.close()
        elif what == self.number and self.opened:
            self.close()
        while self.idle and self.closed:
            first, *rest = self.closed
            self.closed = tuple(rest)
            self.send(now, first)

    def close(self):
        self.closed = (*self.closed, self.opened)
        self.opened = ()
        self.number += 1
