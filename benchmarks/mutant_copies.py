"""Copies of a tree for `mutants.py`: where a mutant is planted and pytest runs.

Pytest runs under a process that adopts all that it starts and ends it with it. That process ends too if
the one that started it is killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from mutant_edits import Mutant

LATE = 124  # the exit code of what took too long
LAST_WORDS_S = 5.0
_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1  # prctl(2)


class Copy:
    """A copy of the files of a tree that git knows or would add. `folder` is made for it."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree = folder / "tree"
        self._listed, self._output = folder / "tests.txt", folder / "output.txt"
        self._temporary = folder / "tmp"
        self._lock, self._closed = threading.Lock(), False
        self._guard: subprocess.Popen[bytes] | None = None
        self._time = int(time.time()) - 10**8
        self._temporary.mkdir(parents=True)
        self._temporary.chmod(0o1777)
        _copy(tree, self.tree)
        for each in (folder.parent, folder, self.tree):
            each.chmod(0o755)  # some tests go on as another user
        self.variables = self._environment(tree)

    def _environment(self, tree: Path) -> dict[str, str]:
        variables = dict(os.environ)
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        paths = [str(self.tree), *filter(None, [variables.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(paths)  # before the editable installation
        variables.setdefault("OPTCLI_SHARED", str(tree.parent / "shared"))
        return {**variables, "TMPDIR": str(self._temporary)}

    def tests(self, files: Iterable[str]) -> set[str]:
        """The ids of the tests in these files. Raises RuntimeError where the copy does not work."""
        asks = [sys.executable, "-P", "-c", "import optcli; print(optcli.__file__)"]
        done = subprocess.run(asks, cwd="/", env=self.variables, stdout=subprocess.PIPE, text=True)
        if not Path(done.stdout.strip()).is_relative_to(self.tree):
            raise RuntimeError(f"`import optcli` takes {done.stdout.strip()}, not the copy {self.tree}")
        here = sorted(file for file in set(files) if (self.tree / file).is_file())
        code, output = self.pytest(here, 1800, "--collect-only", "-qq")
        if code != 0:
            raise RuntimeError(f"the tests do not collect (exit code {code}):\n{output[-4000:]}")
        return {line for line in output.splitlines() if "::" in line}

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[bool]:
        """Plant a mutant and take it out at the end; false where this tree has no such place."""
        file = self.tree / mutant.path
        source = file.read_bytes() if file.is_file() else b""
        planted = mutant.planted(source.decode())
        if planted is None:
            yield False
            return
        was = file.stat()
        self._time += 1  # code compiled for a file of the same size and second would be taken
        try:
            file.write_bytes(planted.encode())
            os.utime(file, (self._time, self._time))
            yield True
        finally:
            file.write_bytes(source)
            os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))

    def change(self, path: str, text: str) -> bool:
        """Write another text into a file of the copy, for good."""
        return (self.tree / path).write_text(text) > 0

    def run(self, command: Sequence[str]) -> int:
        """Run a command in the copy, in sight; its exit code."""
        return subprocess.run(command, cwd=self.tree, env=self.variables).returncode

    def pytest(self, tests: Sequence[str], limit: float, *options: str) -> tuple[int, str]:
        """Run tests until one fails: pytest's exit code, LATE after so many seconds; its output."""
        self._listed.write_text("".join(f"{test}\n" for test in tests))
        command = [sys.executable, __file__, str(limit), sys.executable, "-m", "pytest", "-x", "-v"]
        command += ["--tb=short", "-p", "no:cacheprovider", "-n", "0", *options, f"@{self._listed}"]
        with self._output.open("wb") as file:
            code = self._guarded(command, file.fileno())
        for each in self._temporary.iterdir():
            shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()
        return code, self._output.read_text(errors="replace")

    def _guarded(self, command: list[str], output: int) -> int:
        with self._lock:
            if self._closed:
                raise InterruptedError
            self._guard = subprocess.Popen(
                command,
                cwd=self.tree,
                env=self.variables,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        code = self._guard.wait()
        if self._closed:
            raise InterruptedError
        return code

    def close(self) -> None:
        """End what runs here. Nothing runs here afterwards."""
        with self._lock:
            self._closed = True
        if self._guard is not None:
            self._guard.terminate()
            self._guard.wait()


def _copy(tree: Path, target: Path) -> None:
    command = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(tree / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, target / name, follow_symlinks=False)


def guard(limit: float, command: Sequence[str]) -> int:
    """Run a command: its exit code, or LATE. At its end nothing lives that it started."""
    for option, value in ((_SUBREAPER, 1), (_PARENT_DEATH_SIGNAL, signal.SIGTERM)):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    signals = (signal.SIGALRM, signal.SIGTERM)
    for each in signals:
        signal.signal(each, _too_late)
    code, child = LATE, None
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        signal.setitimer(signal.ITIMER_REAL, max(limit, 0.001))
        code = _ended(child.pid)
    except TimeoutError:
        with suppress(TimeoutError):
            signal.setitimer(signal.ITIMER_REAL, LAST_WORDS_S)
            if child is not None:
                os.kill(child.pid, signal.SIGINT)  # fixtures end what they began
                _ended(child.pid)
    for each in signals:
        signal.signal(each, signal.SIG_IGN)
    _kill_all()
    return code


def _too_late(*_: object) -> None:
    raise TimeoutError


def _ended(wanted: int) -> int:
    """Wait for a child, and for orphans until then; its exit code."""
    while True:
        process, status = os.wait()
        if process == wanted:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _kill_all() -> None:
    """Kill the descendants of this process, those too that they start meanwhile."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(guard(float(sys.argv[1]), sys.argv[2:]))
