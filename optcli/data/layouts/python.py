"""Samples from the user's own code: `python:FILE.py:CALLABLE`, run in workers only."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.data.collection import Collection, Finding, RawSample, RawSamples
from optcli.data.selection import choose, digest_of, split_digest
from optcli.errors import InputError, excerpt, first_line
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.settings import TensorSpec, user_code

if TYPE_CHECKING:
    import numpy as np

_WANTED = (
    "return a sequence of (inputs, target), or of dicts with `inputs` and, as far as there, target, id"
    " and meta; inputs is one array or image, or a dict by the names of the model's inputs"
)
_KEYS = {"inputs", "target", "id", "meta"}


class PythonData(Collection):
    """What a callable of the user's returns: a sequence (a torch Dataset is one) or an iterable.

    An item is `(inputs, target)` or a dict with `inputs`, `target`, `id` and `meta`. `arguments` are
    passed by name; the name of a split as `split`, where the callable has such a parameter. It must
    give the same samples each time. Its code, every local module it imports, the arguments and the
    declared `files` are what the samples are known by. What cannot be indexed is read whole.
    """

    reads = "code"
    holds = "anything"

    def problems(self) -> list[Finding]:
        findings: list[Finding] = []
        wrong = user_code.problem(self.settings.place, self.folder)
        if wrong is not None:
            findings.append(("source", *wrong))
        for file in self.settings.files:
            path = self._file(file)
            if not (regular_files.is_file(path) or regular_files.is_folder(path)):
                hint = "paths are relative to the recipe's folder"
                message = regular_files.problem(path, excerpt(file))
                findings.append(("files", message, hint))
        return findings

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        files = [self._file(file) for file in self.settings.files]
        return {
            "code": user_code.digest(self.settings.place, self.folder, digests),
            "files": [
                digests.of_folder(file) if regular_files.is_folder(file) else digests.of(file)
                for file in files
            ],
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        self.require()
        samples = self._called(user_code.load(self.settings.place, self.folder))
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")) or isinstance(
            samples, Mapping
        ):
            samples = self._listed(samples)
        ids = [str(position) for position in range(len(samples))]
        chosen = choose(self.settings, self.folder, ids)
        return PythonItems(self.settings.source, samples, chosen, [spec.name for spec in inputs])

    def _file(self, name: str) -> Path:
        return self.folder / regular_files.expanded(name)

    def _called(self, loaded: Any) -> Any:
        if not callable(loaded):
            return loaded
        arguments = dict(self.settings.arguments)
        if self.part is not None:
            if "split" not in inspect.signature(loaded).parameters:
                message = f"the callable has no parameter `split` to take {self.part!r}"
                hint = "give it one, or choose by seed: split: {seed: 0, to: 0.5}"
                raise self.wrong(message, hint)
            arguments["split"] = self.part
        with self._running():
            return loaded(**arguments)

    def _listed(self, samples: Any) -> list[Any]:
        if isinstance(samples, Mapping) or not hasattr(samples, "__iter__"):
            what = type(samples).__name__
            raise self.wrong(f"the callable returns a {what}, wanted a sequence of samples", _WANTED)
        with self._running():
            return list(samples)

    def _running(self) -> AbstractContextManager[None]:
        hint = "correct the code; optcli passes the role's `arguments:` by name"
        return user_code.running(self.settings.place, self.folder, "the code", hint)


class PythonItems(RawSamples):
    """The chosen items, asked for one at a time."""

    def __init__(self, source: str, samples: Any, chosen: Sequence[int], names: Sequence[str]) -> None:
        self._source, self._samples, self._chosen, self._names = source, samples, chosen, names

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> RawSample:
        number = self._chosen[index]
        place = f"{self._source}, sample {number}"
        try:
            sample = self._samples[number]
        except Exception as error:  # it is the user's code, which may raise anything
            reason = f"the code raises {type(error).__name__}: {first_line(error)}"
            raise InputError(reason, place=place, hint="correct the code for this sample") from error
        inputs, target, name, meta = self._parts(sample, place)
        return RawSample(str(number if name is None else name), place, inputs, target, meta)

    def identity(self, index: int) -> tuple[str, str]:
        item = self.read(index)
        return item.id, digest_of(item.raw)

    def _parts(self, sample: Any, place: str) -> tuple[dict[str, Any], Any, Any, Mapping[str, Any]]:
        target, name, meta = None, None, {}
        if isinstance(sample, Mapping) and "inputs" in sample:
            if unknown := sorted(set(sample) - _KEYS):
                raise InputError(f"a sample has the key {unknown[0]!r}", place=place, hint=_WANTED)
            inputs = sample["inputs"]
            target, name, meta = sample.get("target"), sample.get("id"), sample.get("meta", {})
        elif isinstance(sample, tuple | list) and len(sample) == 2:
            inputs, target = sample
        else:
            inputs = sample
        by_name = inputs if isinstance(inputs, Mapping) else {self._names[0]: inputs}
        if set(by_name) != set(self._names):
            raise InputError(
                f"a sample feeds {', '.join(map(str, by_name))}, "
                f"the model takes {', '.join(self._names)}",
                place=place,
                hint=_WANTED,
            )
        return {key: _raw(value, place) for key, value in by_name.items()}, _plain(target), name, meta


def _raw(value: Any, place: str) -> Any:
    """An image of Pillow as it is, everything else as an array."""
    import numpy as np

    if hasattr(value, "mode") and hasattr(value, "convert"):
        return value
    array: np.ndarray = np.asarray(_plain(value))
    if array.dtype == object:
        raise InputError(
            f"a sample holds a {type(value).__name__}, wanted an array or an image",
            place=place,
            hint=_WANTED,
        )
    return array


def _plain(value: Any) -> Any:
    """A tensor of torch as an array, a single number as one; everything else as it is."""
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        value = value.detach().cpu().numpy()
    return value.item() if getattr(value, "ndim", None) == 0 else value
