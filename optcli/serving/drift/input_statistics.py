"""Statistics of single inputs: what a server keeps of what it sees, and the same of calibration data.

An input here is one row of a tensor: an image. Values have statistics for each channel. Rows of one
tensor are a matrix of statistics. A file holds that of the calibration data, the reference, and those
of periods of traffic.

Needs NumPy alone: a bundle has a copy of this file.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SCHEMA = 1
REFERENCE = "reference-inputs.npz"
# Of each channel; a channel with a single value a row has no spread.
_OF_MANY, _OF_ONE = ("mean", "std", "min", "max", "outside"), ("mean", "outside")
_MOST_BYTES = 512 * 1024**2


@dataclass
class Statistics:
    """A file of statistics.

    `about` says of what: `inputs` has how each tensor is summarised, `reference` what the reference is
    of, `periods` when each period began (seconds since the epoch) and how many rows it saw.
    `reference` has one matrix [rows, statistics] a tensor, `periods` as many for each period.
    """

    about: dict[str, Any]
    reference: list[np.ndarray]
    periods: list[list[np.ndarray]] = field(default_factory=list)

    def packed(self) -> bytes:
        """The content of the file: an npz without pickled objects."""
        arrays = {"about": np.frombuffer(json.dumps(self.about).encode(), np.uint8)}
        arrays |= {f"reference-{index}": array for index, array in enumerate(self.reference)}
        for number, period in enumerate(self.periods):
            arrays |= {f"period-{number}-{index}": array for index, array in enumerate(period)}
        stream = io.BytesIO()
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        return stream.getvalue()


def unpacked(content: bytes) -> Statistics:
    """What `Statistics.packed` gave. Raises ValueError for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(each.file_size for each in archive.infolist()) > _MOST_BYTES:
                raise ValueError("it unpacks to too much")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            tensors, periods = range(len(about["inputs"])), range(len(about["periods"]))
            reference = [arrays[f"reference-{index}"] for index in tensors]
            rows = [[arrays[f"period-{number}-{index}"] for index in tensors] for number in periods]
        if about["schema"] != SCHEMA:
            raise ValueError(f"it has schema {about['schema']}, wanted {SCHEMA}")
        for matrices in (reference, *rows):
            for how, matrix in zip(about["inputs"], matrices, strict=True):
                _require_columns(matrix, how)
    except Exception as error:  # zipfile, zlib, NumPy and json raise many kinds over broken files
        raise ValueError(f"it holds no statistics of inputs ({error})") from error
    return Statistics(about, reference, rows)


def _require_columns(matrix: np.ndarray, how: Mapping[str, Any]) -> None:
    fits = matrix.ndim == 2 and matrix.dtype.kind == "f" and np.isfinite(matrix).all()
    # So many columns are at least there: no list is made of more.
    if not fits or how["channels"] > matrix.shape[1] or len(names(how)) != matrix.shape[1]:
        raise ValueError(f"{how['name']!r} has other statistics than it says")


def names(how: Mapping[str, Any]) -> list[tuple[str, int | None]]:
    """What the columns of a tensor's matrix are: a statistic, and its channel, None: of all.

    `mean`, `std`, `min`, `max`; `outside`: the share of values beyond the reference's smallest and
    largest; `size`: how many values a row has; `checksum`: 24 bits, by which rows that come again are
    known.
    """
    last: list[tuple[str, int | None]] = [("size", None)] if how["varies"] else []
    last.append(("checksum", None))
    channels = range(how["channels"])
    of_each = _OF_ONE if how["single"] else _OF_MANY
    columns: list[tuple[str, int | None]] = [(name, each) for name in of_each for each in channels]
    return [*columns, *last]


def of_row(row: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """The statistics of one row of a tensor, without its batch: float32, as `names` lists them."""
    last = [row.size] if how["varies"] else []
    # As many bits as float32 holds.
    last.append(zlib.crc32(row.tobytes()) & 0xFFFFFF)
    values = by_channel(row, how)
    means = values.mean(1, dtype=np.float64)
    low, high = (np.asarray(how[end], np.float64)[:, None] for end in ("low", "high"))
    outside = ((values < low) | (values > high)).mean(1)
    parts: list[np.ndarray | list[int]] = [means]
    if not how["single"]:
        parts += [values.std(1, dtype=np.float64), values.min(1), values.max(1)]
    parts.append(outside)
    return np.concatenate([*parts, last]).astype(np.float32)


def by_channel(row: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """The values of a row as [channels, values]; `axis` of None: all of them are one channel."""
    values = row.view(np.uint8) if row.dtype == np.bool_ else row
    if how["axis"] is not None:
        values = np.moveaxis(values, how["axis"], 0)
    return values.reshape(how["channels"], -1)


def of_rows(feed: Mapping[str, np.ndarray], row: int, hows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The statistics of one row of every tensor, in the order of `hows`."""
    return [of_row(feed[how["name"]][row], how) for how in hows]


def columns_of(how: Mapping[str, Any], statistic: str) -> list[int]:
    """Where the columns of a statistic stand, in the order of the channels."""
    return [place for place, (name, _) in enumerate(names(how)) if name == statistic]


def checksums(matrix: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """What tells the rows of a matrix from each other."""
    column: np.ndarray = matrix[:, columns_of(how, "checksum")[0]]
    return column
