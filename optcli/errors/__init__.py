"""Every failure a user can meet: what happened, where, what to do, and the exit code.

An error can cross a process boundary: `to_record` and `from_record` turn it into plain JSON data
and back, so that a failure inside a worker reaches the person with its place and hint intact.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

# What the operating system says where nothing more can be written.
NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
}
_DEATHS: dict[int, str] = {
    signal.SIGSEGV: "crashed with a segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGKILL: "was killed, most likely because memory ran out",
    signal.SIGBUS: "crashed with a bus error",
    signal.SIGILL: "used an instruction this CPU does not have",
    signal.SIGFPE: "crashed with an arithmetic error",
}


class ExitCode(IntEnum):
    """What the process returns. People's CI relies on it."""

    DONE = 0
    REJECTED = 1
    WRONG_RECIPE = 2
    MISSING = 3
    FAILED = 4
    INCONCLUSIVE = 5
    BUG = 70
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What a person may conclude from it."""
        return {
            ExitCode.DONE: "done; what was asked is accepted",
            ExitCode.REJECTED: "a blocking verdict or the gate rejects; a plan, search or load test "
            "misses its target",
            ExitCode.WRONG_RECIPE: "the recipe, the command line, the model or the data is wrong",
            ExitCode.MISSING: "something required is missing: a library, a GPU",
            ExitCode.FAILED: "a pass, runner or device failed, nothing could be written, or the store "
            "is damaged",
            ExitCode.INCONCLUSIVE: "inconclusive: the measurement cannot tell",
            ExitCode.BUG: "a bug in optcli",
            ExitCode.INTERRUPTED: "interrupted (143: by SIGTERM, 129: by SIGHUP); what was finished is "
            "kept",
        }[self]

    @staticmethod
    def of(outcome: str) -> ExitCode:
        """The code of a verdict: `accept`, `reject` or `inconclusive`."""
        codes = {"accept": ExitCode.DONE, "reject": ExitCode.REJECTED}
        return codes.get(outcome, ExitCode.INCONCLUSIVE)

    @staticmethod
    def first_of(codes: Sequence[ExitCode]) -> ExitCode:
        """The one code to return when several apply: the most severe first."""
        order = (
            ExitCode.INTERRUPTED,
            ExitCode.BUG,
            ExitCode.WRONG_RECIPE,
            ExitCode.MISSING,
            ExitCode.FAILED,
            ExitCode.REJECTED,
            ExitCode.INCONCLUSIVE,
        )
        return next((code for code in order if code in codes), ExitCode.DONE)


class OptcliError(Exception):
    """A failure that the user can act on.

    `message` says what was found and what was wanted, `place` where (a file with line and column,
    a variant and pass), `hint` one action that mends it.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, *, place: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        where = f"{shown_place(self.place)}: " if self.place else ""
        return f"{where}{self.message}" + (f"\n  hint: {self.hint}" if self.hint else "")

    def to_record(self) -> dict[str, Any]:
        """Plain data that `from_record` turns back into the same error."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "place": self.place,
            "hint": self.hint,
        }


class UsageError(OptcliError):
    """The command line asks for something that does not exist or contradicts itself."""

    exit_code = ExitCode.WRONG_RECIPE


class InputError(OptcliError):
    """A model, weights or data file that the recipe names cannot be used as it is."""

    exit_code = ExitCode.WRONG_RECIPE


class InputsError(InputError):
    """The recipe's inputs are not those that the model takes."""


class TrustError(InputError):
    """A file that could run code on loading was refused."""


class MissingError(OptcliError):
    """A library, GPU or driver that is required is not there."""

    exit_code = ExitCode.MISSING


class StepError(OptcliError):
    """A pass failed: it raised, crashed, ran out of memory or time, or wrote something wrong."""


class WorkerEndError(StepError):
    """A worker process crashed, was killed, or ran out of time; `hint` says where it was."""

    def said_of(self, what: str | Path) -> StepError:
        """The error as one of what the process read: a file, or the name of a model or of data."""
        message = f"the process that read it stopped: {self.message}"
        hint = "copy the file or export it again" if isinstance(what, Path) else self.hint
        return StepError(message, place=str(what), hint=hint)


class NoModuleError(StepError):
    """A worker's interpreter has not what the code imports."""


class RunnerError(OptcliError):
    """A runtime could not load or run an artifact, or fell back without being asked."""


class NotComparableError(OptcliError):
    """Two reports say nothing about each other: they come from machines that differ."""

    exit_code = ExitCode.INCONCLUSIVE


class UnfitError(OptcliError):
    """What was asked rests on figures of a busy machine, which decide nothing."""

    exit_code = ExitCode.INCONCLUSIVE


class StoreError(OptcliError):
    """The store cannot be read or written: disk full, read-only, damaged."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a recipe. `line` and `column` count from 1; 0 outside a file (`--set`)."""

    file: str
    line: int
    column: int
    message: str
    hint: str = ""

    def __str__(self) -> str:
        file = shown_place(self.file)
        where = f"{file}:{self.line}:{self.column}" if self.line else file
        text = f"{where}: {self.message}"
        return text + (f"\n  hint: {self.hint}" if self.hint else "")


class RecipeError(OptcliError):
    """A recipe is wrong; `problems` holds everything that was found, in file order."""

    exit_code = ExitCode.WRONG_RECIPE

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        several = f"{counted(len(self.problems), 'problem')} in the recipe"
        super().__init__(self.problems[0].message if len(self.problems) == 1 else several)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    def to_record(self) -> dict[str, Any]:
        """Plain data that `from_record` turns back into the same error."""
        return {
            "error": "RecipeError",
            "problems": [vars(problem) for problem in self.problems],
        }


def from_record(record: dict[str, Any]) -> OptcliError:
    """The error that `to_record` wrote; an unknown kind becomes a `StepError`."""
    if record.get("error") == "RecipeError":
        return RecipeError([Problem(**problem) for problem in record.get("problems", ())])
    kinds = {kind.__name__: kind for kind in _subclasses(OptcliError)}
    kind = kinds.get(str(record.get("error")), StepError)
    return kind(
        str(record.get("message", "")),
        place=str(record.get("place", "")),
        hint=str(record.get("hint", "")),
    )


def _subclasses(kind: type[OptcliError]) -> list[type[OptcliError]]:
    kinds = [kind]
    for child in kind.__subclasses__():
        kinds.extend(_subclasses(child))
    return kinds


# A file with the line, and the function, that ONNX Runtime and LiteRT write in front of their words.
_IN_CPP = re.compile(
    r"(?:\b\w+)?/\S+\.(?:cc|cpp|cu|h):\d+ "
    r"(?:[^()]*[\w>]\([^()]*\)(?: const)?(?: \[with [^\]]*(?:\[\][^\]]*)*\])? )?"
)
_LONGEST_REASON = 300
_MOST_LISTED = 20
_MOST_COMPARED = 2000


def did_you_mean(
    name: str, choices: Sequence[str], otherwise: str | None = None, *, lists: str = ""
) -> str:
    """A hint that offers the nearest of `choices`; none is near: `otherwise`, or a list of them.

    Of a long list it names the few that are least far, and what `lists` the others.
    """
    import difflib

    # Longer names are no slips of the pen, and comparing them takes seconds; so do thousands of names.
    compared = [choice for choice in choices[:_MOST_COMPARED] if len(choice) <= 200]
    near = [choice for choice in compared if choice.casefold() == name.casefold()]
    if not near and len(name) <= 200:
        near = difflib.get_close_matches(name, compared, n=1, cutoff=0.65)
    if near:
        return f"did you mean {near[0]!r}?"
    if otherwise is not None:
        return otherwise
    if len(choices) <= _MOST_LISTED:
        return f"one of: {', '.join(sorted(choices))}" if choices else ""
    least_far = difflib.get_close_matches(name[:200], compared, n=5, cutoff=0) or sorted(choices)[:5]
    more = f"and {len(choices) - len(least_far)} more"
    return f"nearest: {', '.join(least_far)} {more}{f' ({lists} lists them)' if lists else ''}"


def excerpt(text: str, most: int = 80) -> str:
    """The beginning of a text that may be very long, with its length where something is left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def plural(count: float, one: str, many: str | None = None) -> str:
    """The word for a count: `image` or `images`, and with `many` any other pair, such as is and are."""
    return one if count == 1 else many or f"{one}s"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 image`, `2 images`, `12,000 images`; `many` is a plural without s."""
    number = f"{count:,}" if count >= 10_000 else str(count)
    return f"{number} {plural(count, one, many)}"


def first_line(error: BaseException) -> str:
    """The first line of what an error says, cut where it is long, or its kind where it says nothing.

    Positions in C++ go: they stand before what is said. The log has the whole text.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return excerpt(_IN_CPP.sub("", lines[0]), _LONGEST_REASON) if lines else type(error).__name__


def strerror(error: OSError) -> str:
    """What the system says, without its number and without the path; of several files, of the first."""
    each = error.args[0] if error.args else ""
    if isinstance(each, list) and each:  # shutil's, with source, target and reason of each file
        return str(each[0][-1]).partition("] ")[2].partition(": ")[0] or str(each[0][-1])
    return error.strerror or str(error)


@contextmanager
def raised_as(
    kind: type[OptcliError],
    what: str,
    *,
    of: type[Exception] | tuple[type[Exception], ...] = Exception,
    reason: Callable[[Any], str] = first_line,
    place: str = "",
    hint: str = "",
) -> Iterator[None]:
    """What a library or the system raises inside becomes an error of `kind`: `what`, then its `reason`.

    `of` says which errors; an `OptcliError` goes through as it is.
    """
    try:
        yield
    except OptcliError:
        raise
    except of as error:
        raise kind(f"{what}: {reason(error)}", place=place, hint=hint) from error


def ended_by(number: int) -> tuple[str, str]:
    """What a signal did to a process, in words, and the name of the signal."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal, of which Python names the first and the last
        name = f"signal {number}"
    return _DEATHS.get(number, "was ended"), name


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as messages print it: relative where it lies below the current folder, else absolute.

    `a/../b` becomes `b`, and doubled slashes go. Where a symbolic link makes the two differ, the real
    path is taken.
    """
    text = os.fspath(path)
    try:
        here = os.getcwd()
        whole = os.path.join(here, os.path.expanduser(text))
        plain = os.path.normpath(whole)
        if os.pardir in text.split(os.sep) and not _same(plain, whole):
            plain = os.path.realpath(whole)
    except (OSError, ValueError):  # the current folder is gone, or the name can be none of a file
        return os.path.normpath(text)
    relative = os.path.relpath(plain, here)
    return plain if relative.split(os.sep)[0] == os.pardir else relative


def shown_place(text: str) -> str:
    """The place of a message: a path, with or without line and column, as `shown`; else as it is.

    Places are paths or names (`onnx › to_openvino`, `--set`); of names none begins with a slash or has
    a part `..` or `.`.
    """
    if os.path.isabs(text) or {os.pardir, os.curdir} & set(text.split(os.sep)):
        return shown_path(text)
    return text


def _same(one: str, other: str) -> bool:
    """Whether two paths lead to the same file, or neither leads to any."""
    there = os.path.lexists(other)
    return os.path.samefile(one, other) if there and Path(one).exists() else not there
