"""One model compiled for single batch sizes, and for any: which of these forms computes a batch.

A graph whose batch size is open computes shapes at every call and uses kernels that suit any size. A
graph that is compiled for one batch size does neither. A batch of another size is padded to the next
compiled size, or goes to the form for any size, whichever takes less time here (`StaticForms`). A file
of one batch size alone computes a batch piece by piece (`Pieces`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from optcli.errors import RunnerError
from optcli.runners._calls import ModelCalls
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Shapes = Literal["static", "dynamic"]
SHAPES: Any = Field(
    None,
    description="`static`: compiled for each of `batch_sizes`, `dynamic`: once for all sizes; "
    "default: what a build measures to be faster at the recipe's batch sizes, `dynamic` elsewhere",
)
BATCH_SIZES: Any = Field(
    None,
    min_length=1,
    max_length=64,
    description="batch sizes to compile for where shapes are `static`; default: those that the recipe "
    "measures latency at; where the build chooses the shapes, those of them that gain",
)

# Calls of each form, in turns, that decide where a size in between goes. The first two are warm-up.
_TRIALS, _WARM = 9, 2


class StaticForms:
    """Calls of a model that is compiled for some batch sizes, as one model for all.

    `make` compiles the model for a size, or for any (None). `can_pad`: whether every output begins with
    the batch; inputs that do not keep a batch from being padded as well. `load_ms` says what compiling
    took, by size or `any`, `destinations` where batches of other sizes went, in words. `padded` has the
    sizes among them that were padded, and the size each was padded to.
    """

    __slots__ = (
        "_any",
        "_batched",
        "_can_pad",
        "_current",
        "_cut",
        "_forms",
        "_make",
        "_routes",
        "destinations",
        "load_ms",
        "padded",
    )

    def __init__(
        self,
        make: Callable[[int | None], ModelCalls],
        sizes: Sequence[int],
        inputs: Sequence[TensorSpec],
        *,
        can_pad: bool,
    ) -> None:
        self._make = make
        self._batched = next(spec.name for spec in inputs if spec.batch_symbol is not None)
        # Every input begins with the same symbol and has it nowhere else.
        symbols = {spec.batch_symbol for spec in inputs}
        inside = any(size in symbols for spec in inputs for size in spec.shape[1:])
        self._can_pad = can_pad and len(symbols) == 1 and None not in symbols and not inside
        self.load_ms: dict[str, float] = {}
        self._forms = {size: self._compiled(size) for size in sorted(set(sizes))}
        self._any: ModelCalls | None = None
        self._routes: dict[int, tuple[ModelCalls, int | None]] = {
            size: (form, None) for size, form in self._forms.items()
        }
        self._current = next(iter(self._forms.values()))
        self._cut: int | None = None
        self.destinations: dict[int, str] = {}
        self.padded: dict[int, int] = {}

    @property
    def can_pad(self) -> bool:
        """Whether a batch may be filled up to a larger size, and its outputs be cut again."""
        return self._can_pad

    @property
    def sizes(self) -> list[int]:
        """The batch sizes that were compiled for."""
        return sorted(self._forms)

    @property
    def current(self) -> ModelCalls:
        """The form that computed last."""
        return self._current

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take one batch, in the form for its size."""
        size = len(feed[self._batched])
        route = self._routes.get(size)
        if route is None:
            route = self._routes[size] = self._route(size, feed)
        self._current, larger = route
        self._cut = size if larger is not None else None
        self._current.bind(feed if larger is None else _filled(feed, larger))

    def execute(self) -> None:
        """Compute it."""
        self._current.execute()

    def fetch(self) -> dict[str, np.ndarray]:
        """The outputs by name, without what was padded."""
        outputs = self._current.fetch()
        if self._cut is None:
            return outputs
        return {name: array[: self._cut] for name, array in outputs.items()}

    def _compiled(self, size: int | None) -> ModelCalls:
        start = time.perf_counter()
        form = self._make(size)
        self.load_ms["any" if size is None else str(size)] = 1e3 * (time.perf_counter() - start)
        return form

    def _route(self, size: int, feed: dict[str, np.ndarray]) -> tuple[ModelCalls, int | None]:
        """The form for a size that none was compiled for, and the size to pad to."""
        if self._any is None:
            self._any = self._compiled(None)
        larger = min((each for each in self._forms if each > size), default=None)
        if larger is None or not self._can_pad:
            self.destinations[size] = "the form for any size"
            return self._any, None
        padded = _filled(feed, larger)
        form = self._forms[larger]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(_TRIALS):
            for seconds, calls, batch in zip(times, (form, self._any), (padded, feed), strict=True):
                seconds.append(_seconds(calls, batch))
        if min(times[0][_WARM:]) < min(times[1][_WARM:]):
            self.padded[size] = larger
            self.destinations[size] = f"padded to {larger}"
            return form, larger
        self.destinations[size] = "the form for any size"
        return self._any, None


def _filled(feed: dict[str, np.ndarray], larger: int) -> dict[str, np.ndarray]:
    """The batch with its last sample repeated, which leaves the range of its values as it is."""
    import numpy as np

    batch = {}
    for name, array in feed.items():
        batch[name] = filled = np.empty((larger, *array.shape[1:]), array.dtype)
        filled[: len(array)] = array
        filled[len(array) :] = array[-1]
    return batch


def _seconds(calls: ModelCalls, feed: dict[str, np.ndarray]) -> float:
    start = time.perf_counter()
    calls.bind(feed)
    calls.execute()
    calls.fetch()
    return time.perf_counter() - start


def described(calls: object) -> dict[str, Any]:
    """For a runner's `effective`: which sizes were compiled, and what each took to load."""
    if not isinstance(calls, StaticForms):
        return {"shapes": "dynamic"}
    load_ms = {size: round(milliseconds, 1) for size, milliseconds in calls.load_ms.items()}
    return {
        "shapes": "static",
        "compiled_batch_sizes": calls.sizes,
        "can_pad": calls.can_pad,
        "compile_ms": load_ms,
    }


def observed(calls: object) -> dict[str, Any]:
    """For a runner's `observed`: where batches of sizes that nothing was compiled for went."""
    if not isinstance(calls, StaticForms) or not calls.destinations:
        return {}
    routes = {str(size): how for size, how in sorted(calls.destinations.items())}
    padded = {str(size): larger for size, larger in sorted(calls.padded.items())}
    return {**described(calls), "other_batch_sizes": routes, "padded_batch_sizes": padded}


def sizes_of(requested: Sequence[int] | None, inputs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """The batch sizes to compile for, ascending; the usual one where none is requested.

    Empty where no input has a batch that varies. Raises `RunnerError` for a size that the inputs
    do not take.
    """
    ranges = [spec.batch_range() for spec in inputs if spec.batch_symbol is not None]
    if not ranges:
        return ()
    sizes = tuple(requested or ()) or (ranges[0].opt,)
    low, high = max(each.min for each in ranges), min(each.max for each in ranges)
    outside = [size for size in sizes if not low <= size <= high]
    if outside:
        raise RunnerError(
            f"batch_sizes has {outside[0]}, the inputs take {low} to {high}",
            hint="widen the range under the recipe's `inputs`, or leave the size out",
        )
    return tuple(sorted(set(sizes)))


def whole(
    inputs: Iterable[Sequence[int | str | None]],
    outputs: Mapping[str, Sequence[int | str | None] | None],
) -> frozenset[str]:
    """The outputs of a model of one sample whose first dimension varies, by the shapes of its file.

    A name or None stands for a size that varies, None for a shape of any length. Where the file's own
    batch size varies, what varies is the batch. A size called batch was one before it was fixed.
    """
    if any(list(shape[:1]) != [1] for shape in inputs):
        return frozenset()
    return frozenset(
        name
        for name, shape in outputs.items()
        if shape and not isinstance(shape[0], int) and "batch" not in str(shape[0]).lower()
    )


class Pieces:
    """A batch divided by the batch size of a file, `shapes` being those of its inputs; None varies.

    The last piece is filled up with its last sample.
    """

    __slots__ = ("_batched", "_first", "_rows", "_size")

    def __init__(self, inputs: Sequence[TensorSpec], shapes: Sequence[Sequence[int | None]]) -> None:
        self._batched = [spec.batch_symbol is not None for spec in inputs]
        self._first = self._batched.index(True) if True in self._batched else 0
        self._size = shapes[self._first][0] if True in self._batched else None
        self._rows: int | None = None

    def divided(self, arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
        """The arrays of each piece, in the order of the inputs."""
        size, rows = self._size, len(arrays[self._first]) if self._size else None
        if size is None or rows is None or rows == size:
            self._rows = None
            return [arrays]
        import numpy as np

        self._rows, feeds = rows, []
        for start in range(0, rows, size):
            places = np.arange(start, start + size).clip(max=rows - 1)
            parts = zip(arrays, self._batched, strict=True)
            feeds.append([each[places] if varies else each for each, varies in parts])
        return feeds

    def joined(self, name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
        """An output of all pieces. Raises `RunnerError` where it has no row for each sample."""
        if self._rows is None:
            return parts[0]
        import numpy as np

        if {len(part) if part.ndim else 0 for part in parts} != {self._size}:
            raise RunnerError(
                f"the file computes {self._size} samples at once, and its output {name!r} has no row "
                "for each: batches cannot be computed piece by piece",
                hint="write the file's batch size under the recipe's `inputs`",
            )
        return np.concatenate(parts)[: self._rows]
