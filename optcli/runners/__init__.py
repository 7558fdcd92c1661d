"""Runners: one file is one runtime that can run artifacts.

The class is the configuration (its fields are the options under `runner:` in a recipe) and, once
opened, the loaded model. Add one by adding a file here: docs/add-a-runner.md.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact, Format, own_inputs
from optcli.environment import Needs, usable_cores
from optcli.files import registry
from optcli.settings import Settings, TensorSpec
from optcli.settings.references import is_of_one_machine

if TYPE_CHECKING:
    import numpy as np

# The runner used where a recipe names none. Also a table in the README.
DEFAULTS: dict[Format, str] = {
    Format.TORCH: "torch",
    Format.EXPORTED: "torch",
    Format.TORCHSCRIPT: "torchscript",
    Format.AOTI: "aoti",
    Format.ONNX: "onnxruntime",
    Format.ORT: "onnxruntime",
    Format.OPENVINO: "openvino",
    Format.TENSORRT: "tensorrt",
    Format.TENSORRT_RTX: "tensorrt_rtx",
    Format.EXECUTORCH: "executorch",
    Format.LITERT: "litert",
    Format.COREML: "coreml",
}

# Handing memory over takes microseconds, as does copying less than so many bytes.
_LARGE_BYTES = 256 << 10


class Runner(Settings):
    """Runs artifacts of the formats in `runs`.

    A call has three steps, so that the timed region can be named: `bind` takes the inputs,
    `execute` computes, `fetch` hands out the outputs as NumPy arrays.

    >>> with OnnxruntimeRunner(threads=2).open(artifact, inputs) as model:
    ...     logits = model.run({"image": image})["logits"]
    """

    runs: ClassVar[tuple[Format, ...]]
    needs: ClassVar[Needs] = Needs()

    threads: int | None = Field(
        None, ge=1, description="intra-op threads; default: the recipe's `latency.threads`"
    )

    _inputs: tuple[TensorSpec, ...] = PrivateAttr(())
    _profile: Path | None = PrivateAttr(None)

    def open(
        self, artifact: Artifact, inputs: Sequence[TensorSpec], *, profile: Path | None = None
    ) -> Self:
        """Load an artifact. Raises `RunnerError` where the runtime refuses it or falls back.

        `profile` is a folder: a runtime that must be told before it loads then times its operators,
        and may write there (`optcli/profiling`).
        """
        self._inputs = own_inputs(artifact.facts, inputs)
        self._profile = profile
        self.load(artifact)
        return self

    @abstractmethod
    def load(self, artifact: Artifact) -> None:
        """Load the artifact and read the effective settings back."""

    @abstractmethod
    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take one batch: input name to array, shaped as the input's spec with the batch first.

        The arrays may be read where they lie: they stay as they are until the next `bind`.
        """

    @abstractmethod
    def execute(self) -> None:
        """Compute what was bound; returns when the result is there."""

    @abstractmethod
    def fetch(self) -> dict[str, np.ndarray]:
        """The outputs of the last `execute`, by name, in the model's order."""

    @abstractmethod
    def effective(self) -> dict[str, Any]:
        """Settings read back from the runtime: `precision`, `provider`, `threads`, `version`."""

    def device_ms(self) -> float | None:
        """Milliseconds on the device of the last `execute`, by its own events; None: on no device.

        Asked for after `fetch`, outside the timed call: computing alone, without copies.
        """
        return None

    def host_ns(self) -> int | None:
        """Nanoseconds of the last `bind`, `execute` and `fetch`, where the runner timed them itself.

        For one that drives another process and takes the time there; None: the caller's clock holds.
        """
        return None

    def remote_peak_bytes(self) -> int:
        """The most memory of another process that holds the model for this one; 0: none does."""
        return 0

    def observed(self) -> dict[str, Any]:
        """What only calls have shown, beside `effective`: whether a CUDA graph could be recorded."""
        return {}

    def close(self) -> None:
        """Let go of the model; the default does nothing."""

    def without_batch(self) -> frozenset[str]:
        """Outputs that belong to a call as a whole, by what the model declares.

        The batch size is fixed, and their first dimension varies: such as the detections of one image.
        Empty where the runtime does not tell.
        """
        return frozenset()

    def requires(self) -> Needs:
        """What it cannot do without, with these options."""
        return self.needs

    def session(self) -> dict[str, Any]:
        """What the runtime is set to, by its own names, as plain JSON data.

        The runner opens artifacts with it, and so does a server that optcli writes. An option that
        changes what is computed, or how fast, stands in it.
        """
        return {}

    def beside_others(self) -> dict[str, Any]:
        """The options that differ where several processes share the cores of a machine."""
        return {}

    def changed(self) -> dict[str, Any]:
        """The options whose values are not the default ones."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in self
            if value != fields[name].get_default(call_default_factory=True)
        }

    def starts_programs(self) -> bool:
        """Whether opening an artifact with these options starts others, a compiler say.

        A worker that can only read and compute cannot.
        """
        return False

    def gains_by_static_shapes(self, artifact: Artifact) -> bool:
        """Whether compiling for one batch size may make this artifact faster: a build then compares."""
        return False

    def environment(self) -> dict[str, str]:
        """Environment variables that must be set before the runtime is imported.

        OpenMP threads spin for some ten microseconds before they sleep: as fast as OpenMP's own
        default, which spins on for milliseconds into the next one's turn. Without any spinning the
        many short steps of a network take up to three times as long.
        """
        count = str(self.thread_count())
        waiting = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
        return {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, **waiting}

    def thread_count(self) -> int:
        """The number of threads to use: the option, else the cores this process may use."""
        return self.threads or usable_cores()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs it was opened with."""
        return self._inputs

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`bind`, `execute` and `fetch` in one."""
        self.bind(feed)
        self.execute()
        return self.fetch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def names() -> tuple[str, ...]:
    """The names of all runners."""
    return registry.names(__name__)


def find(name: str) -> type[Runner]:
    """The runner class of a name. Raises `UsageError` for an unknown name."""
    return registry.find(__name__, name, Runner)  # type: ignore[type-abstract]


def options_from_elsewhere(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A runner's options without those marked as `OfOneMachine`: a program or a place of one machine.

    For what somebody else may have written: a pack, or a report beside an artifact that is not ours.
    """
    fields = find(name).model_fields
    portable_options: dict[str, Any] = {}
    for option, value in options.items():
        if option not in fields or not is_of_one_machine(fields[option]):
            portable_options[option] = value
        elif isinstance(value, dict):
            portable_options[option] = {key: each for key, each in value.items() if _is_plain(each)}
    return portable_options


def _is_plain(value: Any) -> bool:
    """A number, a truth value or a word: nothing that could be a file."""
    if isinstance(value, str):
        return re.fullmatch(r"[A-Za-z0-9_-]{0,40}", value) is not None
    return isinstance(value, int | float)


def reads_in_place(array: np.ndarray) -> bool:
    """Whether an array is large and its memory can be read as it is: contiguous, aligned, writeable.

    Writeable, since PyTorch and OpenVINO take no other memory over.
    """
    flags = array.flags
    return array.nbytes >= _LARGE_BYTES and flags.c_contiguous and flags.aligned and flags.writeable
