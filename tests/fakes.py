"""Passes of a user's own file, for the tests of the build: they copy, and misbehave on request."""

import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.passes import Job, Made, Pass


class Copy(Pass):
    """Copies an ONNX model; `note` changes nothing but the key."""

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    note: str = Field("", description="anything")

    def produces(self, source: Format) -> Format:
        return source

    def run(self, source: Artifact, job: Job) -> Made:
        shutil.copyfile(source.path / "model.onnx", job.out / "model.onnx")
        return Made(facts={"note": self.note})


class Calibrated(Copy):
    """Copies, and reads one calibration sample."""

    uses = ("calibration",)

    def run(self, source: Artifact, job: Job) -> Made:
        assert job.calibration is not None
        assert job.calibration[0].inputs
        return super().run(source, job)


class Tuned(Copy):
    """Copies, and says that the result depends on this CPU."""

    device_bound = True


class Sized(Copy):
    """Copies, and tells the batch sizes that will be measured."""

    uses_batch_sizes = True

    def run(self, source: Artifact, job: Job) -> Made:
        super().run(source, job)
        return Made(facts={"sizes": list(job.batch_sizes)})


class Misbehave(Copy):
    """Copies, after having done something else."""

    way: str = Field("", description="what it does instead")

    def run(self, source: Artifact, job: Job) -> Made:
        if self.way == "segfault":
            ctypes.string_at(0)
        elif self.way == "abort":
            os.abort()
        elif self.way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.way == "hang":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            time.sleep(3600)
        elif self.way == "raise":
            raise ValueError("no such luck")
        elif self.way == "empty":
            return Made()
        elif self.way == "slow":
            time.sleep(0.4)
        return super().run(source, job)


class Meddle(Copy):
    """Copies, and does to its input or its output what no pass may."""

    way: str = Field("", description="what it does")

    def run(self, source: Artifact, job: Job) -> Made:
        made = super().run(source, job)
        model = source.path / "model.onnx"
        if self.way == "removes":
            model.unlink()
        elif self.way == "changes":
            model.chmod(0o644)
            before = model.stat()
            with model.open("r+b") as stream:
                stream.write(b"xx")
            os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
        elif self.way == "replaces":
            content = model.read_bytes()
            model.unlink()
            model.write_bytes(content[:-1] + b"x")
        elif self.way == "adds":
            (source.path / "more.txt").write_text("more")
        elif self.way == "touches":
            os.utime(model)
        elif self.way == "store":
            entries = job.out.parents[3] / "entries" / "artifact" / source.key / "files"
            (entries / "model.onnx").chmod(0o644)
            (entries / "model.onnx").write_bytes(b"nothing")
        elif self.way == "all":
            for entry in (job.out.parents[3] / "entries" / "artifact").iterdir():
                if entry.name != source.key:
                    (entry / "files" / "model.onnx").unlink()
        elif self.way == "pipe":
            os.mkfifo(job.out / "pipe")
        elif self.way == "pipe for a model":
            (job.out / "model.onnx").unlink()
            os.mkfifo(job.out / "model.onnx")
        elif self.way == "socket":
            os.chdir(job.out)
            socket.socket(socket.AF_UNIX).bind("socket")
        elif self.way == "link":
            (job.out / "link").symlink_to("/etc/hostname")
        elif self.way == "folders in folders":
            os.chdir(job.out)
            for _ in range(3000):
                os.mkdir("folder")
                os.chdir("folder")
            os.chdir("/")
        elif self.way == "many files":
            for number in range(30_000):
                (job.out / str(number)).touch()
        elif self.way == "device":
            os.mknod(job.out / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        return made


class Convert(Pass):
    """A conversion that must not change the result, and does where `wrong` says so.

    `lost` kills what runs beside it: the process that compares.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    needs: ClassVar[Needs] = Needs(packages=("onnx",))
    tolerance: ClassVar[float | None] = 1e-4
    computes_on_one_core: ClassVar[bool] = True
    wrong: bool = Field(False, description="change a weight a little")
    way_out: bool = Field(False, description="have a second attempt that is right")
    lost: bool = Field(False, description="end the processes beside it")

    def produces(self, source: Format) -> Format:
        return source

    def attempts(self) -> tuple[Pass, ...]:
        if self.wrong and self.way_out:
            return (self, Convert(wrong=False, lost=self.lost))
        return (self,)

    def run(self, source: Artifact, job: Job) -> Made:
        import numpy as np
        from onnx import numpy_helper

        from optcli.models.formats import onnx as onnx_format

        beside = Path("/proc/thread-self/children").read_text().split() if self.lost else ()
        for process in beside:
            os.kill(int(process), signal.SIGKILL)
        model = onnx_format.open(source.path)
        if self.wrong:
            tensor = model.graph.initializer[0]
            values = np.array(numpy_helper.to_array(tensor))
            values.reshape(-1)[0] += 0.02
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        onnx_format.save(model, job.out)
        return Made(facts={"converted": True})


class Unobtainable(Copy):
    """Needs a package that nobody has."""

    needs: ClassVar[Needs] = Needs(packages=("optcli_no_such_package",))


class Watchful(Unobtainable):
    """Cannot run either, and says what it sees of its source."""

    def check_source(self, source: Artifact, job: Job) -> tuple[str, ...]:
        return (f"the model has {len(job.inputs)} input", f"note {source.facts['note']} was seen")
