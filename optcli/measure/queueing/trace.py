"""Recorded arrivals: a trace that is replayed, from another place for every seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import InputError, excerpt, paths
from optcli.files import regular_files
from optcli.measure.queueing.arrivals import PLACE, Arrivals
from optcli.measure.queueing.quantities import whole

if TYPE_CHECKING:
    import numpy as np

MOST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded times of arrival, [requests] in milliseconds, ascending.

    `draw` begins with the seed's own request (seed 0: the first) and goes round: after the last
    request the first follows one mean gap later. `scaled` divides all gaps.
    """

    times_ms: np.ndarray

    def __post_init__(self) -> None:
        import numpy as np

        times = np.asarray(self.times_ms, dtype=float).ravel()
        object.__setattr__(self, "times_ms", times)
        if not np.isfinite(times).all():
            raise InputError(
                "the trace has a time that is no finite number", place=PLACE, hint="leave it out"
            )
        if times.size < 2 or times.max() == times.min():
            raise InputError(
                f"the trace has {np.unique(times).size} different times of arrival",
                place=PLACE,
                hint="give two or more, so that it has a rate",
            )
        falls = np.flatnonzero(np.diff(times) < 0)
        if falls.size:
            raise InputError(
                f"request {falls[0] + 2} of the trace arrives before the one in front of it",
                place=PLACE,
                hint="sort the times",
            )

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """A text file with one time in seconds a line, or the first column of a CSV file.

        A first line that is no number is taken for a heading. Raises `InputError` for a file that
        cannot be read, for what is no number, and for what `Trace` refuses.
        """
        place = paths.place(str(path))
        try:
            text = regular_files.read(path, MOST_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = regular_files.problem(path, place) or getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"the trace cannot be read: {why}", place=place, hint="give a text file of times"
            ) from error
        times = []
        for line, row in enumerate(text.splitlines(), start=1):
            first = row.split(",")[0].strip()
            if not first or first.startswith("#"):
                continue
            try:
                times.append(1000 * float(first))
            except ValueError:
                if line > 1:
                    raise InputError(
                        f"{excerpt(first)!r} is no number",
                        place=f"{place}:{line}",
                        hint="write one time of arrival in seconds a line",
                    ) from None
        try:
            return cls(times)  # type: ignore[arg-type]
        except InputError as error:
            raise InputError(error.message, place=place, hint=error.hint) from None

    @property
    def rate_per_s(self) -> float:
        """The mean rate of the trace."""
        return 1000 * (self.times_ms.size - 1) / float(self.times_ms[-1] - self.times_ms[0])

    def draw(self, count: int, seed: int) -> Arrivals:
        import numpy as np

        whole(count, "the number of requests", PLACE, least=1)
        size = self.times_ms.size
        offset = int(np.random.default_rng(seed).integers(size)) if seed else 0
        rounds, place = np.divmod(np.arange(offset, offset + count), size)
        period = self.times_ms[-1] - self.times_ms[0] + 1000 / self.rate_per_s
        times = self.times_ms[place] + rounds * period
        return Arrivals(times - times[0])

    def scaled(self, factor: float) -> Trace:
        return Trace(self.times_ms / factor)
