"""What runs on the host of a device: it takes files and orders, measures, and answers.

It ends with its connection, and takes its folder with it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from optcli.errors import OptcliError, first_line
from optcli.files import digest, folders
from optcli.pipeline.on_ssh.frames import EndedError, Frame, Frames
from optcli.pipeline.remote_devices import measuring
from optcli.pipeline.remote_devices.messages import Contents, Travelling, UnreachableError
from optcli.workers import lifetime

_DIGEST = frozenset("0123456789abcdef")


def serve(source: int, sink: int, folder: str) -> None:
    """Answer the messages that come by `source`, by `sink`; files go into `folder`. Never returns."""
    frames, arrived = Frames(source, sink), _SentFiles(Path(folder))
    orders: queue.Queue[Frame | None] = queue.Queue()
    for work in (frames.beat, lambda: _listen(frames, arrived, orders)):
        threading.Thread(target=work, daemon=True).start()
    with suppress(EndedError):
        while (frame := orders.get()) is not None:
            _answer(frame, frames, arrived)
    _leave(folder)


def _leave(folder: str) -> None:
    folders.remove(Path(folder))
    lifetime.end_at_once()


def _listen(frames: Frames, arrived: _SentFiles, orders: queue.Queue[Frame | None]) -> None:
    """Files are written as they come. Without a driver nobody waits for what is being measured."""
    with suppress(EndedError):
        while True:
            frame = frames.receive()
            if frame.kind == "part":
                arrived.write(str(frame.about.get("digest")), frame.payload)
            else:
                orders.put(frame)
    _leave(str(arrived.folder))


def _answer(frame: Frame, frames: Frames, arrived: _SentFiles) -> None:
    try:
        if frame.kind == "look":
            frames.send_record("seen", measuring.look(frame.record(), ""))
        elif frame.kind == "order":
            record, samples = measuring.carry_out(
                frame.record(), arrived.of, lambda text: frames.send("warned", text.encode())
            )
            frames.send("samples", samples)
            frames.send_record("answer", record)
        else:
            frames.send("failed", b"its optcli does not know this message")
    except EndedError:
        raise
    except OptcliError as error:
        frames.send("failed", error.message.encode())
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        frames.send("failed", f"{where}{error.strerror or error}".encode())
    except Exception as error:
        frames.send("failed", f"{type(error).__name__}: {first_line(error)}".encode())


@dataclass
class _SentFiles:
    """Files by their digests below a folder; `wrong` says why one could not be written."""

    folder: Path
    wrong: str = ""
    laid_out: dict[str, Path] = field(default_factory=dict)

    def write(self, content: str, part: bytes) -> None:
        """Append to the file of this digest."""
        if not content or not _DIGEST.issuperset(content):
            self.wrong = self.wrong or "a file came without its digest"
            return
        try:
            (self.folder / "files").mkdir(exist_ok=True)
            with (self.folder / "files" / content).open("ab") as stream:
                stream.write(part)
        except OSError as error:
            self.wrong = self.wrong or f"{self.folder}: {error.strerror or error}"

    def of(self, travelling: Travelling) -> Mapping[str, Path]:
        """Where the folders of the driver lie here. Raises `UnreachableError`."""
        if self.wrong:
            raise UnreachableError(self.wrong)
        try:
            return {path: self._folder(contents) for path, contents in travelling.files.items()}
        except OSError as error:
            raise UnreachableError(f"{self.folder}: {error.strerror or error}") from error

    def _folder(self, contents: Contents) -> Path:
        key = digest.of_value({name: list(about) for name, about in contents.items()})
        if key not in self.laid_out:
            place = self.folder / "folders" / key
            for name, (size_bytes, content) in contents.items():
                _lay(place, name, self._file(content, size_bytes))
            place.mkdir(parents=True, exist_ok=True)
            self.laid_out[key] = place
        return self.laid_out[key]

    def _file(self, content: str, size_bytes: int) -> Path:
        path = self.folder / "files" / content
        if not size_bytes and not path.exists():
            self.write(content, b"")
        if not path.is_file() or digest.of_file(path) != content:
            raise UnreachableError(f"a file of {size_bytes} bytes is not what was sent")
        return path


def _lay(place: Path, name: str, file: Path) -> None:
    inner = PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts or not inner.parts:
        raise UnreachableError(f"{name[:80]!r} cannot be the name of a file")
    (place / inner.parent).mkdir(parents=True, exist_ok=True)
    (place / inner).unlink(missing_ok=True)
    os.link(file, place / inner)
