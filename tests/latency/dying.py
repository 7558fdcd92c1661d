"""Measuring processes that die, run out of memory or hang; the environment says how and when."""

import os
import signal
import time
from pathlib import Path

from optcli.measure.latency import process
from optcli.measure.latency.messages import MeasureRequest
from optcli.workers import Channel


class Dying(process.MeasuringProcess):
    """Ends as DYING_HOW says in its round after next, in launch DYING_IN."""

    def __init__(self, request):
        super().__init__(request)
        counter = Path(os.environ["DYING_COUNTER"])
        self.launch = len(counter.read_text()) if counter.exists() else 0
        counter.write_text("x" * (self.launch + 1))
        self.rounds = 0

    def _round(self, *arguments):
        self.rounds += 1
        if self.launch == int(os.environ["DYING_IN"]) and self.rounds == 3:
            how = os.environ["DYING_HOW"]
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "memory":
                raise MemoryError
            time.sleep(600)
        return super()._round(*arguments)


def serve(request: MeasureRequest, channel: Channel) -> None:
    process.serve(request, channel, Dying)
