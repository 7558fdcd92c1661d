"""Passes of a user's own file, for builds on Ray: they note each start, and misbehave on request."""

import ctypes
import os
import time
from pathlib import Path

from fakes import Copy
from pydantic import Field

from optcli.artifact import Artifact
from optcli.passes import Job, Made


class Noted(Copy):
    """Copies; notes each start in a file: the store of its machine, and its process."""

    notes: str = Field("", description="the file")
    way: str = Field("", description="what it does instead")

    def run(self, source: Artifact, job: Job) -> Made:
        path = Path(self.notes)
        with path.open("a") as stream:
            stream.write(f"{os.environ.get('OPTCLI_STORE', 'unknown')} {os.getpid()}\n")
        starts = len(path.read_text().splitlines())
        if self.way == "segfault":
            ctypes.string_at(0)
        if self.way == "hang at first" and starts == 1:
            time.sleep(600)
        while self.way == "wait" and not path.with_suffix(".go").exists():
            time.sleep(0.05)
        if self.way == "warn":
            job.warn("mind the gap")
        return super().run(source, job)
