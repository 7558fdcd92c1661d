"""Devices that ssh reaches, as places to measure on: docs/how-to/devices.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from optcli.errors import MissingError, StepError
from optcli.files.digest import FileDigests
from optcli.observer import Observer
from optcli.pipeline.on_ssh.connection import HostLostError, SshConnection, hint_of
from optcli.pipeline.on_ssh.frames import EndedError
from optcli.pipeline.on_ssh.hosts import Host, host_of
from optcli.pipeline.plan import BuildPlan, Device
from optcli.pipeline.remote_devices.devices import RemoteDevice, look_for, travelling_files
from optcli.pipeline.remote_devices.messages import DeviceAnswer, DeviceOrder, Look, Seen, Travelling
from optcli.store import Store
from optcli.workers import messages


@contextmanager
def opened(
    plan: BuildPlan, devices: Sequence[Device], store: Store, observer: Observer
) -> Iterator[dict[str, SshDevice]]:
    """Those of the devices that ssh reaches, by name; each has said what it is.

    They are connected as long as the block runs. Raises `MissingError` where the user does not say
    where a device is, and where it cannot be reached or cannot measure.
    """
    names = [each.name for each in devices if each.name is not None and each.ssh]
    hosts = {name: host_of(name) for name in names}
    reached: dict[str, SshDevice] = {}
    try:
        for name, host in hosts.items():
            reached[name] = SshDevice(name, host, look_for(plan, store.digests), store.digests)
            reached[name].connect(observer)
        yield reached
    finally:
        for each in reached.values():
            each.close()


class SshDevice(RemoteDevice):
    """A device that ssh reaches. Each measurement there holds the lock of the machine."""

    def __init__(self, name: str, host: Host, look: Look, digests: FileDigests) -> None:
        super().__init__(name, look)
        self._host, self._digests = host, digests
        self._connection: SshConnection | None = None

    def connect(self, observer: Observer) -> None:
        """Reach the host and have it say what it is. Raises `MissingError`."""
        packages = {each for wish in self._look.wishes.values() for each in wish.needs.packages}

        def tell(text: str) -> None:
            observer.warned(self._name, text)

        connection = SshConnection(self._name, self._host, packages, tell)
        self._connection = connection
        try:
            frame, _ = connection.call("look", messages.to_record(self._look), tell)
            seen = messages.read(Seen, frame.record()) if frame.kind == "seen" else None
        except (HostLostError, EndedError, StepError) as error:
            raise self._unfit(str(error)) from error
        if seen is None:
            raise self._unfit(frame.payload.decode(errors="replace"))
        if seen.unfit:
            raise self._unfit("; ".join(seen.unfit))
        self._seen = seen

    def release(self) -> None:
        """As `RemoteDevice` says: between two orders nothing is held there."""

    def close(self) -> None:
        """End the connection, and what is left of it there."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unfit(self, why: str) -> MissingError:
        return MissingError(
            f"the device {self._name} ({self._host.target}) cannot measure: {why}",
            place=f"devices.{self._name}",
            hint=hint_of(why, self._host, "see whether its Python can import the runtime"),
        )

    def _answer(
        self, order: DeviceOrder, feeds: Path | None, observer: Observer
    ) -> tuple[DeviceAnswer, bytes]:
        """As `RemoteDevice` says. What was lost is measured by the next build."""
        if self._connection is None:
            before = self._seen.machine
            self.connect(observer)
            if self._seen.machine != before:
                raise StepError(f"the device {self._name} is another machine now", hint="build again")
        assert self._connection is not None
        try:
            files = travelling_files(order.artifacts, feeds, self._digests)
            self._connection.send(
                {
                    Path(folder, name): content
                    for folder, contents in files.items()
                    for name, (_, content) in contents.items()
                }
            )
            record = messages.to_record(replace(order, travelling=Travelling(files=files)))
            warn = partial(observer.warned, order.step)
            with self._paused():
                frame, samples = self._connection.call("order", record, warn)
            if frame.kind == "answer":
                answer = messages.read(DeviceAnswer, frame.record())
                hint = "make room there, or say where there is some: `folder` of the device"
                self._require_answer(answer, hint)
                return answer, samples
        except OSError as error:
            raise StepError(f"files do not reach the device {self._name}: {error}") from error
        except (HostLostError, EndedError) as error:
            self.close()
            raise StepError(
                f"the device {self._name} was lost while it measured: {error}",
                hint="build again: what is made is in the store",
            ) from error
        raise StepError(
            f"the device {self._name} could not measure: {frame.payload.decode(errors='replace')}",
            hint="see whether it has room for the artifacts (`folder` of the device says where)",
        )
