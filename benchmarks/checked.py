"""What a benchmark counts as done: a command that ended well, and the result that it had to leave.

A peer that crashes is quick, and a file of an earlier run looks like one of this run. So a time counts
only where the command ended with 0 (optcli's verdicts may reject), and where what it had to write is
there, new, and of the kind that was asked for. Else `NotDoneError` says who did not do what, with the
end of what was printed, and whoever catches it gives no figure.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
# What `optcli` ends with where it did its work: a verdict that rejects is an answer, too.
VERDICTS = (0, 1, 5)
_TAIL_LINES, _TAIL_CHARACTERS = 15, 2000
_QUANTIZED_NODES = ("QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger")  # they begin so


class NotDoneError(RuntimeError):
    """Somebody did not do what was to be timed: who, why not, and the end of what was printed."""

    def __init__(self, who: str, reason: str, printed: str = "") -> None:
        self.who, self.reason = who, reason
        self.printed = tail(printed)
        said = f"; the last that it printed:\n{self.printed}" if self.printed else ""
        super().__init__(f"{who} {reason}{said}")


@dataclass(frozen=True)
class Done:
    """A command that did its work: how it ended, what it printed, wall and processor seconds."""

    code: int
    stdout: str
    stderr: str
    wall_s: float
    processor_s: float


@dataclass(frozen=True)
class Wanted:
    """What a command has to write: a file below `folder` that fits `pattern`, new and not empty.

    `check` gets the file, and raises ValueError where it is not what was asked for. One file that is
    right is enough. A file that was there before counts only where it was written again.
    """

    folder: Path
    pattern: str
    check: Callable[[Path], object] = bool

    def there(self) -> dict[Path, tuple[int, int, int]]:
        """The files that fit, with what changes when one is written."""
        files = [path for path in self.folder.rglob(self.pattern) if path.is_file()]
        return {path: _written(path) for path in files}

    def lacking(self, before: Mapping[Path, tuple[int, int, int]]) -> str | None:
        """What is wrong with the result; None where it is there."""
        now = self.there()
        new = [path for path, written in now.items() if before.get(path) != written]
        if not new:
            left = "left only what was there before of" if now else "wrote no"
            return f"{left} {self.pattern} in {self.folder}"
        reasons = []
        for path in new:
            try:
                if not path.stat().st_size:
                    raise ValueError("it is empty")
                self.check(path)
                return None
            except ValueError as error:
                reasons.append(f"wrote {path}, but {error}")
        return "; ".join(reasons)


def _written(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_ino, about.st_mtime_ns, about.st_size


def run(
    who: str,
    command: Sequence[str],
    *,
    wanted: Wanted | None = None,
    fine: Sequence[int] = (0,),
    keep: Path | None = None,
    **options: Any,
) -> Done:
    """Run a command to its end; `options` are those of `subprocess.run`. All it prints goes to `keep`.

    Raises `NotDoneError` where it does not start, does not end in time, ends with a code that is not
    `fine`, or where what is `wanted` is not there afterwards.
    """
    before = wanted.there() if wanted is not None else {}
    # Files and no pipes: what a command leaves running does not hold it up.
    with TemporaryFile() as out, TemporaryFile() as err:
        used_s, began = _children_s(), time.perf_counter()
        code, reason = _ended(command, stdout=out, stderr=err, **options)
        wall_s, used_s = time.perf_counter() - began, _children_s() - used_s
        stdout, stderr = (_read(stream) for stream in (out, err))
    printed = f"{stdout}\n{stderr}"
    if keep is not None:
        keep.write_text(printed)
    if code is not None and code not in fine:
        reason = f"ended with {code}"
    elif code is not None and wanted is not None and (lacking := wanted.lacking(before)):
        reason = f"ended with {code} and {lacking}"
    if code is None or reason:
        raise NotDoneError(who, reason, printed)
    return Done(code, stdout, stderr, round(wall_s, 3), round(used_s, 3))


def _ended(command: Sequence[str], **options: Any) -> tuple[int | None, str]:
    """The exit code, or why there is none."""
    try:
        return subprocess.run(command, text=True, check=False, **options).returncode, ""
    except subprocess.TimeoutExpired as late:
        return None, f"did not end within {late.timeout:.0f} s"
    except OSError as error:
        return None, f"could not be started: {error}"


def answer(who: str, command: Sequence[str], **more: Any) -> Any:
    """The JSON in the last line that a command prints. Raises `NotDoneError` where there is none."""
    return last_line(who, run(who, command, **more))


def last_line(who: str, done: Done) -> Any:
    """The same of a command that is over."""
    lines = done.stdout.strip().splitlines()
    return _parsed(who, lines[-1] if lines else "", done)


def optcli(*arguments: str, fine: Sequence[int] = VERDICTS, **more: Any) -> Done:
    """A verb of the optcli of this repository."""
    command = [sys.executable, "-m", "optcli", *arguments]
    more.setdefault("env", {**os.environ, "PYTHONPATH": path_of(ROOT)})
    return run(f"optcli {arguments[0]}", command, fine=fine, **more)


def optcli_answer(*arguments: str, **more: Any) -> Any:
    """What a verb prints with `--json`. Raises `NotDoneError` where that is no JSON."""
    done = optcli(*arguments, **more)
    return _parsed(f"optcli {arguments[0]}", done.stdout, done)


def path_of(*folders: Path) -> str:
    """PYTHONPATH with these folders before what it has."""
    return os.pathsep.join(filter(None, (*map(str, folders), os.environ.get("PYTHONPATH", ""))))


def report_of(artifacts: Path) -> Wanted:
    """A build writes a report below its folder of artifacts, whatever its verdict."""
    return Wanted(artifacts, "report.json", lambda path: json.loads(path.read_text()))


def told(main: Callable[[], int | None]) -> NoReturn:
    """Run a benchmark and end with its code; with 1, and what was not done, where that stops it."""
    try:
        sys.exit(main())
    except NotDoneError as error:
        sys.exit(str(error))


def _parsed(who: str, text: str, done: Done) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        reason, printed = f"ended with {done.code} without an answer", f"{done.stdout}\n{done.stderr}"
        raise NotDoneError(who, reason, printed) from None


def figures(who: str, found: Mapping[str, Any], *names: str) -> None:
    """Raise `NotDoneError` unless all of these figures are there and above 0."""
    for name in names:
        value = found.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise NotDoneError(who, f"ended well and gave {value} for {name}")


def model(path: Path, *, quantized: bool = False) -> None:
    """Raise ValueError unless a file is a model, and where asked for one with quantized nodes.

    Knows ONNX, OpenVINO's pair of files, the archives of PyTorch, LiteRT and ExecuTorch.
    """
    if not path.is_file() or not path.stat().st_size:
        raise ValueError(f"{path} is missing or empty")
    kinds = {".onnx": _of_onnx, ".xml": _of_openvino, ".pt2": _of_archive}
    kinds |= {".tflite": _of_litert, ".pte": _of_executorch}
    if path.suffix not in kinds:
        raise ValueError(f"{path.name} is not called as a model is")
    has_quantized = kinds[path.suffix](path)
    if quantized and not has_quantized:
        raise ValueError("it has no quantized nodes, and INT8 was asked for")


def _of_onnx(path: Path) -> bool:
    """Whether an ONNX model has quantized nodes; its weights may lie beside it."""
    import onnx

    try:
        nodes = onnx.load(path).graph.node
    except Exception as error:  # protobuf's own errors have no class in common
        raise ValueError(f"ONNX cannot load it: {error}") from error
    if not nodes:
        raise ValueError("it has no nodes")
    return any(
        "Quantize" in node.op_type or node.op_type.startswith(_QUANTIZED_NODES) for node in nodes
    )


def _of_openvino(path: Path) -> bool:
    weights = path.with_suffix(".bin")
    if not weights.is_file() or not weights.stat().st_size:
        raise ValueError(f"{weights} is missing or empty")
    try:
        layers = [layer.get("type") for layer in ElementTree.parse(path).iter("layer")]
    except ElementTree.ParseError as error:
        raise ValueError(f"it is no XML: {error}") from error
    if not layers:
        raise ValueError("it has no layers")
    return "FakeQuantize" in layers


def _of_archive(path: Path) -> bool:
    """Whether the code in an archive of PyTorch calls quantized operators."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            code = [archive.read(name) for name in names if name.endswith((".cpp", ".json"))]
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is no archive: {error}") from error
    if not names:
        raise ValueError("it is an empty archive")
    return any(word in text for text in code for word in (b"quantize", b"qconv", b"qlinear"))


def _of_litert(path: Path) -> bool:
    from ai_edge_litert import schema_py_generated as schema

    content = _marked(path, b"TFL3")
    graphs = schema.ModelT.InitFromPackedBuf(bytearray(content), 0).subgraphs
    return any(
        each.quantization is not None and each.quantization.scale is not None
        for graph in graphs
        for each in graph.tensors
    )


def _of_executorch(path: Path) -> bool:
    """True: XNNPACK's part of a program does not say it. Who quantizes looks at the graph before."""
    _marked(path, b"ET12")
    return True


def _marked(path: Path, mark: bytes) -> bytes:
    content = path.read_bytes()
    if content[4:8] != mark:
        raise ValueError("it does not begin as such a file does")
    return content


def tail(text: str) -> str:
    """The end of what was printed."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
