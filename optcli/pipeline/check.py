"""Is a conversion right? Runs an artifact and its parent on the same inputs, at once, in the worker.

An export bug must never travel: every pass that declares a `tolerance` is held to it at batch sizes
1, 2, opt and max, on real samples where the recipe has data and on random ones. These lie where the
model's inputs do: within the declared range, else within that of the data; without either they are
standard normal, which for a model of 0..255 is no input at all. The child runs at every batch size; the
parent computes a sample once, where it is seen to give the same in another batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import runners
from optcli.artifact import EMBEDDED_INPUTS, EMBEDDED_STEPS, Artifact, Format, own_inputs
from optcli.errors import InputError, StepError, first_line
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import torch_devices
from optcli.outputs import facts_of
from optcli.outputs.detection_sets import all_tie
from optcli.pipeline._check_samples import Expected, drawn, relative_error, rounding_error
from optcli.runners import Runner
from optcli.settings import TensorSpec, fed

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]

# Of a quantized parent: where it rounds to one integer its child may round to the next, at every layer.
INTEGER_TOLERANCE = 0.2

# A quantized parent may differ from its child by so many times what its own runtime makes of it with
# fusions and without, or of inputs that are a rounding to 8 bits away, and by no more than this.
_VARIATIONS = 2.0
_MOST_OF_INTEGERS = 0.5
_EIGHT_BITS = 2.0**-8

# Two runs of one input may differ by this share of the largest output: additions in another order.
_REPEATED = 1e-3

# What networks for images take, where they do not take normalized values.
_USUAL_RANGES = ((0.0, 1.0), (0.0, 255.0))

# Of a parent in half precision: ten units of its last place.
_HALF_TOLERANCES = {"fp16": 5e-3, "bf16": 4e-2}

_UNTRAINED = (
    "nobody can tell whether the artifact computes what its parent computes: the model's detections are"
    " all as likely, and rounding decides which of them it gives"
)

# No range of the inputs is the answer to that: one on which the network always decides alike hides it.
_FROZEN = (
    "the trace keeps what an `if` or a loop of the network's code decided for one input: set"
    " `method: script`, or write the branch with tensors, such as torch.where"
)

# Networks in which roundings grow, such as deep ones with random weights, are right to ten times what
# one rounding of their inputs does to them: each layer rounds. Beyond two percent nothing is right.
_ROUNDINGS = 10.0
_MOST_ROUNDING = 0.02


class ParentComparison:
    """A parent, and what it computes of the samples that its children are compared on.

    `probe` holds real samples (arrays [n, ...] by input name). `tolerance` is the pass's, the largest
    |difference| allowed as a fraction of the largest |output|. The parent runs with `threads`.
    Use as a context manager.
    """

    def __init__(
        self,
        parent: Artifact,
        inputs: Sequence[TensorSpec],
        probe: Path | None,
        tolerance: float,
        threads: int,
    ) -> None:
        self._artifact = parent
        # Samples are prepared already, and a model that prepares its images takes others.
        self._probe = None if EMBEDDED_INPUTS in parent.facts else probe
        self._inputs = own_inputs(parent.facts, inputs)
        self._tolerance = max(tolerance, _HALF_TOLERANCES.get(parent.precision, 0.0))
        if parent.precision.startswith("int"):
            self._tolerance = max(self._tolerance, INTEGER_TOLERANCE)
        if parent.facts.get(EMBEDDED_STEPS) == "all":  # runtimes resize to within one grey level
            self._tolerance = max(self._tolerance, _MOST_ROUNDING)
        self._parent = _opened(parent, inputs, threads)
        self._expected: list[Expected] | None = None

    def __enter__(self) -> ParentComparison:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.close()

    def prepare(self) -> None:
        """Have the parent compute what children are compared with; again it does nothing."""
        if self._expected is None:
            sets = drawn(self._inputs, self._probe)
            self._expected = [Expected(self._parent, samples, self._tolerance) for samples in sets]

    def of(self, child: Artifact, threads: int) -> dict[str, Any]:
        """Compare a child. Raises `StepError` where it differs too much.

        Gives the largest |difference| as a fraction of the largest |output|, what was compared, and the
        largest difference allowed to any batch, for the artifact's facts.
        """
        self.prepare()
        assert self._expected is not None
        tolerance = self._tolerance
        if child.facts.get(torch_devices.FACT, torch_devices.CPU) != torch_devices.CPU:
            tolerance = max(tolerance, torch_devices.GPU_TOLERANCE)
        worst, compared, most_allowed = 0.0, 0, tolerance
        with _opened(child, self._inputs, threads) as runner:
            for expected in self._expected:
                for rows in expected.samples.batches:
                    error, allowed = self._difference(runner, expected, rows, tolerance, child)
                    worst, compared = max(worst, error), compared + len(rows)
                    most_allowed = max(most_allowed, allowed)
        return {"largest_relative_error": worst, "samples": compared, "tolerance": most_allowed}

    def _difference(
        self,
        child: Runner,
        expected: Expected,
        rows: Sequence[int],
        tolerance: float,
        artifact: Artifact,
    ) -> tuple[float, float]:
        """How far the outputs of a batch differ, and how far they may."""
        samples = expected.samples
        outputs = _run(child, samples.feed(rows), samples.kind, len(rows))
        error = relative_error(expected.of(rows), outputs)
        allowed = tolerance
        if not error <= allowed and expected.shared:
            error = relative_error(expected.exact(rows), outputs)
        if not error <= allowed:
            # More of a parent in which a rounding of the inputs grows that far.
            grown = _ROUNDINGS * rounding_error(self._parent, samples.feed(rows))
            allowed = max(tolerance, min(_MOST_ROUNDING, grown))
        if not error <= allowed and self._artifact.precision.startswith("int"):
            varied = _own_variation(self._artifact, self._parent, samples.feed(rows))
            allowed = max(allowed, min(_MOST_OF_INTEGERS, _VARIATIONS * varied))
            if allowed < error <= _VARIATIONS * varied:
                raise StepError(
                    "quantization left a network in which rounding decides the answers: the quantized"
                    f" model's own outputs move by {varied:.2g} of the largest where values round"
                    f" otherwise, the artifact's differ from them by {error:.2g}",
                    hint="keep more layers in floating point: name them to the pass that quantizes, or"
                    " set a higher `least_layer_sqnr` there",
                )
        if not error <= allowed:
            if all_tie(expected.of(rows)):
                raise StepError(_UNTRAINED, hint="load trained weights")
            hint = (
                _FROZEN
                if artifact.facts.get("fixed_decisions")
                else _hint(self._parent, child, self._inputs, self._probe, allowed)
            )
            if str(self._artifact.facts.get("weights", "")).startswith("random"):
                hint += "; or load trained weights: of random ones, roundings may decide the answers"
            raise StepError(
                "the artifact does not compute what its parent computes: at batch size"
                f" {len(rows)} on {samples.kind} inputs the outputs differ by"
                f" {error:.2g} of the largest output, allowed are {allowed:.0e}",
                hint=hint,
            )
        return error, allowed


def _own_variation(artifact: Artifact, parent: Runner, feed: Feed) -> float:
    """By how much ONNX Runtime differs from itself where it fuses nothing.

    Of other formats, by how much the parent does where its inputs are rounded to 8 bits.
    """
    if artifact.format != Format.ONNX:
        return rounding_error(parent, feed, _EIGHT_BITS)
    plain = onnx_format.session(artifact.path / onnx_format.FILE, optimized=False)
    names = [each.name for each in plain.get_outputs()]
    return relative_error(parent.run(feed), dict(zip(names, plain.run(names, feed), strict=True)))


def against_parent(
    child: Artifact,
    parent: Artifact,
    inputs: Sequence[TensorSpec],
    probe: Path | None,
    tolerance: float,
    threads: int,
) -> dict[str, Any]:
    """Compare a conversion with what it was made from, as `ParentComparison.of` does."""
    with ParentComparison(parent, inputs, probe, tolerance, threads) as comparison:
        return comparison.of(child, threads)


def _hint(
    parent: Runner, child: Runner, inputs: Sequence[TensorSpec], probe: Path | None, tolerance: float
) -> str:
    """What to do about a difference; where no range of the inputs is known, usual ones are tried."""
    wrong = "it is wrong for this model: try another exporter, opset or format"
    guessed = _guessed(inputs, probe)
    if not guessed:
        return wrong
    for low, high in _USUAL_RANGES:
        kind, size, feed = next(feeds(_reported(inputs, guessed, low, high), None))
        error = relative_error(parent.run(feed), _run(child, feed, kind, size))
        if error <= tolerance:
            finding = f"on values between {low:g} and {high:g} they differ by {error:.2g} only"
            return f"{finding}: {_declare(guessed, f'[{low:g}, {high:g}]')}; else {wrong}"
    return f"{_declare(guessed, '[LOW, HIGH]')}; else {wrong}"


@dataclass(frozen=True)
class FirstRun:
    """What running a model as it came from its source showed.

    `notes` are sentences for the user, `facts` are facts of the artifact (`outputs.facts_of`).
    """

    notes: tuple[str, ...]
    facts: dict[str, Any]


def usable(
    artifact: Artifact, inputs: Sequence[TensorSpec], probe: Path | None, threads: int
) -> FirstRun:
    """Run a model as it came from its source, at its two smallest batch sizes up to 2.

    Raises `InputError` where it gives NaN, where all of an output is infinite, or where it runs at one
    batch size alone, or not like at another. Notes name outputs that are the same for every sample, and
    values that are infinite for every sample.
    """
    import numpy as np

    with _opened(artifact, inputs, threads) as model:
        several = feeds(inputs, probe)
        _, size, feed = next(several)
        outputs = {name: array.copy() for name, array in model.run(feed).items()}
        for name, array in outputs.items():
            if bad := _wrong_values(array):
                raise InputError(
                    f"the model's output {name!r} holds NaN or infinity "
                    f"({bad} of {np.size(array)} values)",
                    hint=_range_hint(model, inputs, probe),
                )
        repeated = relative_error(outputs, model.run(feed))
        if not repeated <= _REPEATED:
            raise InputError(
                "the same input gives two answers: they differ by"
                f" {repeated:.2g} of the largest output",
                hint="the model draws at random, as dropout does: export it after model.eval(), or look"
                " for Dropout in training mode and for random operators in it",
            )
        second = next(((n, other) for _, n, other in several if n != size), None)
        if second is not None:
            _require_batches(model, inputs, outputs, size, *second)
        facts = facts_of(outputs, size, model.without_batch())
        notes = [
            f"output {name!r} is the same for every value of the input: are the weights trained?"
            for name, array in outputs.items()
            if array.size > 1 and bool((array == array.reshape(-1)[0]).all())
        ]
        notes += [
            f"output {name!r}: {count} of {array.size} values are infinite, as a mask gives them;"
            " a variant must have the same"
            for name, array in outputs.items()
            if (count := int(np.isinf(array.astype(np.float64)).sum()))
        ]
        return FirstRun(tuple(notes), facts)


def _require_batches(
    model: Runner, inputs: Sequence[TensorSpec], outputs: Feed, size: int, larger: int, feed: Feed
) -> None:
    """Raise `InputError` unless a model gives as many dimensions for a larger batch."""
    first = next(spec for spec in inputs if spec.batch_symbol is not None)
    only = f"shape: {[size, *first.shape[1:]]}"
    place = f"inputs.{first.name}"
    try:
        others = model.run(feed)
    except Exception as error:
        raise InputError(
            f"the model runs at batch size {size} only: at batch size {larger} it fails"
            f" ({first_line(error)[:200]})",
            place=place,
            hint=f"write `{only}`, or export the model again with a batch size that varies: an operator"
            " in it, such as a Reshape, has the size of the batch as a number",
        ) from error
    for name, array in outputs.items():
        if name in others and others[name].ndim != array.ndim:
            raise InputError(
                f"output {name!r} loses its batch dimension at batch size {size}: its shape is"
                f" {list(array.shape)}, and {list(others[name].shape)} at batch size {larger}",
                place=place,
                hint="a `squeeze()` without a dimension takes every dimension of size 1: write"
                f" `squeeze(1)` or `flatten(1)` in the model, or `{only}`",
            )


def _range_hint(model: Runner, inputs: Sequence[TensorSpec], probe: Path | None) -> str:
    """What to do about NaN: a logarithm has none below zero, where normal random values lie."""
    wrong = "look for NaN in the weights, and at what `prepare` feeds it"
    guessed = _guessed(inputs, probe)
    if not guessed:
        return wrong
    for low, high in _USUAL_RANGES:
        _, _, feed = next(feeds(_reported(inputs, guessed, low, high), None))
        if not any(_wrong_values(array) for array in model.run(feed).values()):
            finding = f"on values between {low:g} and {high:g} it holds none"
            return f"{finding}: {_declare(guessed, f'[{low:g}, {high:g}]')}; else {wrong}"
    tried = " nor ".join(f"between {low:g} and {high:g}" for low, high in _USUAL_RANGES)
    finding = f"neither are the outputs numbers on values {tried}"
    return f"{finding}: {_declare(guessed, '[LOW, HIGH]')}; else {wrong}"


def _declare(guessed: Sequence[TensorSpec], values: str) -> str:
    """How to say which values an input takes."""
    advice = "others, declare them" if "LOW" in values else "those, declare it"
    return (
        f"if the model takes {advice} with `range: {values}` at input {guessed[0].name!r},"
        " or give the recipe data"
    )


def _guessed(inputs: Sequence[TensorSpec], probe: Path | None) -> list[TensorSpec]:
    """The inputs of floating point for which neither a range nor data is known."""
    if probe is not None:
        return []
    return [spec for spec in fed(inputs) if spec.range is None and spec.dtype.startswith("float")]


def _reported(
    inputs: Sequence[TensorSpec], guessed: Sequence[TensorSpec], low: float, high: float
) -> list[TensorSpec]:
    return [s.model_copy(update={"range": (low, high)}) if s in guessed else s for s in inputs]


def _wrong_values(array: np.ndarray) -> int:
    """How many values are NaN, plus infinity that not all samples have, or any infinity if all are.

    Masks and logarithms of 0 give minus infinity.
    """
    import numpy as np

    values = array.astype(np.float64)
    infinite = np.isinf(values)
    wrong = np.isnan(values)
    if infinite.all():
        wrong |= infinite
    elif values.ndim and not (infinite == infinite[:1]).all():
        wrong |= np.isposinf(values)
    return int(wrong.sum())


def feeds(inputs: Sequence[TensorSpec], probe: Path | None) -> Iterator[tuple[str, int, Feed]]:
    """The inputs to compare on: (`real` or `random`, batch size, arrays by name)."""
    for samples in drawn(inputs, probe):
        for rows in samples.batches:
            yield samples.kind, len(rows), samples.feed(rows)


def packages_for(format: Format) -> tuple[str, ...]:
    """What running an artifact of a format in a check imports, as far as the format decides it."""
    return runners.find(runners.DEFAULTS[format]).needs.packages


def _opened(artifact: Artifact, inputs: Sequence[TensorSpec], threads: int) -> Runner:
    name = runners.DEFAULTS[artifact.format]
    if artifact.format == Format.ONNX and artifact.precision == "bf16":
        name = "openvino"  # ONNX Runtime has no bfloat16 on the CPU
    runner = runners.find(name)
    return runner(threads=threads).open(artifact, inputs)


def _run(model: Runner, feed: Feed, kind: str, size: int) -> Feed:
    try:
        return model.run(feed)
    except Exception as error:
        raise StepError(
            f"the result does not run at batch size {size} on {kind} inputs: {first_line(error)}",
            hint="was the batch made dynamic? try another exporter, or narrow `batch` under inputs",
        ) from error
