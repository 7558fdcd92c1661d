"""Write the evaluation samples as a recipe prepares them, for a machine that optcli does not run on."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optcli import data, workers
from optcli.data import DataSettings
from optcli.errors import InputError, UsageError, raised_as
from optcli.observer import Observer, Silent
from optcli.pipeline.terms import require_evaluation
from optcli.recipe import load
from optcli.settings import TensorSpec
from optcli.workers import Channel

_NEWS_EVERY = 50
_IDS = "ids"


@dataclass(frozen=True)
class WriteRequest:
    """Which samples to write into `out`; paths in `data` are relative to `folder`."""

    data: DataSettings
    folder: Path
    inputs: tuple[TensorSpec, ...]
    out: Path


@dataclass(frozen=True)
class WrittenSamples:
    """How many samples of how many are written."""

    done: int
    of: int


def write(
    recipe: Path, out: Path, *, overrides: Sequence[str] = (), observer: Observer | None = None
) -> int:
    """Write an npz with an array by input and their `ids`, a row a sample; gives how many.

    The file is replaced once it is whole. Raises `UsageError` without evaluation data or where nothing
    can be written, and what reading the samples raises.
    """
    observer = observer or Silent()
    read = load(recipe, overrides)
    require_evaluation(read, recipe, "to write")

    def heard(news: WrittenSamples) -> None:
        text = f"{news.done} of {news.of} samples"
        observer.progress("inputs", news.done / news.of, text)

    hint = "name a file where there is room"
    with (
        raised_as(UsageError, "the samples cannot be written", of=OSError, place=str(out), hint=hint),
        tempfile.TemporaryDirectory(prefix=".optcli-", dir=out.absolute().parent) as folder,
    ):
        made = Path(folder) / "inputs.npz"
        request = WriteRequest(read.data["evaluation"], read.folder, read.inputs, made)
        listener = workers.Listener(WrittenSamples, heard)
        count = workers.run(
            "optcli.pipeline.verification.inputs:write_samples",
            request,
            int,
            listener=listener,
            reads=request.data.source,
        )
        os.replace(made, out)
    return count


def write_samples(request: WriteRequest, channel: Channel) -> int:
    """Prepare every sample and write them; memory does not grow with their number."""
    import numpy as np
    from numpy.lib.format import open_memmap

    samples = data.open(request.data, request.folder, request.inputs)
    ids: list[str] = []
    files: dict[str, np.ndarray] = {}
    for number in range(len(samples)):
        sample = samples[number]
        if _IDS in sample.inputs:
            raise InputError(
                "an input is called `ids`, as the samples' ids are in the file",
                place="inputs",
                hint="rename the input",
            )
        for name, array in sample.inputs.items():
            if name not in files:
                path = request.out.with_name(f"{len(files)}.npy")
                shape = (len(samples), *array.shape)
                files[name] = open_memmap(path, mode="w+", dtype=array.dtype, shape=shape)
            if array.shape != files[name].shape[1:]:
                raise InputError(
                    f"input {name!r} has samples of several shapes: {list(files[name].shape[1:])} and"
                    f" {list(array.shape)}",
                    place=sample.id,
                    hint="prepare all images to one size: resize, crop or letterbox",
                )
            files[name][number] = array
        ids.append(sample.id)
        if number % _NEWS_EVERY == 0:
            channel.send(WrittenSamples(number, len(samples)))
    with zipfile.ZipFile(request.out, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for number, (name, array) in enumerate(files.items()):
            array.flush()  # type: ignore[attr-defined]
            archive.write(request.out.with_name(f"{number}.npy"), f"{name}.npy")
        with archive.open(f"{_IDS}.npy", "w") as stream:
            np.lib.format.write_array(stream, np.array(ids, dtype=str), allow_pickle=False)
    return len(ids)
