"""Zero-shot top-1: the class whose text is nearest to the image's embedding is the label's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from optcli.accuracy.metrics._classes import Classification
from optcli.accuracy.metrics._embeddings import unit_rows
from optcli.data.layouts.npz import Archive
from optcli.errors import InputError, excerpt
from optcli.files import regular_files
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Predictions, Records

if TYPE_CHECKING:
    import numpy as np

_ARRAYS, _NAMES = ("embeddings", "text", "texts"), ("names", "classes", "class_names")


_MOST_BYTES = 1 << 30


_WANTED = "wanted an array `embeddings` [classes, size], and the classes' names as an array `names`"


class ZeroShotTop1(Classification):
    """Scores are `scale` · image · textᵀ of embeddings of length 1, as CLIP takes them.

    `accuracy.text` names the file with an embedding for each class. Where the file and the data both
    have names of classes, they are paired by name, else the file's rows are the classes in their order.
    Outputs and targets are those of `knn`.
    """

    reads: ClassVar[Kind | None] = "embedding"

    scale: float = Field(
        100.0, gt=0, description="factor of the cosines, for the confidence: CLIP's own is 100"
    )
    _texts: Any = PrivateAttr(None)

    def opened(
        self, settings: AccuracySettings, folder: Path, names: Callable[[], Sequence[str] | None]
    ) -> ZeroShotTop1:
        assert settings.text is not None
        self._texts = texts_of(folder / regular_files.expanded(settings.text), names())
        return self

    def scores_of(self, seen: Predictions) -> np.ndarray:
        import numpy as np

        rows = unit_rows(seen.scores())
        if rows.shape[1] != self._texts.shape[1]:
            raise InputError(
                f"an image's embedding has {rows.shape[1]} values, a text's {self._texts.shape[1]}",
                place="accuracy.text",
                hint="the texts must be embedded by the same model's own text encoder",
            )
        scores: np.ndarray = self.scale * (rows.astype(np.float64) @ self._texts.T)
        return scores

    def figures(self, records: Records) -> dict[str, float]:
        return {name: figure for name, figure in super().figures(records).items() if name != "top1"}

    def right(self, records: Records) -> np.ndarray:
        right: np.ndarray = records["rank"] < 1
        return right


def texts_of(path: Path, names: Sequence[str] | None) -> np.ndarray:
    """The embedding of each class, float64 `[classes, size]`, rows of length 1.

    Several texts of a class, `[classes, texts, size]`, are averaged at length 1. `names` are those of
    the data's classes: with the file's own names they decide the order. Raises `InputError`.
    """
    import numpy as np

    try:
        regular_files.check(path)
        arrays, own = _read(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"the texts' embeddings cannot be read: {reason}", place=str(path), hint=_WANTED
        ) from error
    numbers = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    chosen = next((name for name in _ARRAYS if name in numbers), None)
    if chosen is None and len(numbers) == 1:
        chosen = next(iter(numbers))
    if chosen is None or numbers[chosen].ndim not in (2, 3) or not numbers[chosen].size:
        raise _wrong(path, f"found {_shown(arrays)}")
    texts = numbers[chosen].astype(np.float64)
    if not np.isfinite(texts).all() or not np.linalg.norm(texts, axis=-1).all():
        raise _wrong(path, f"{chosen} holds NaN, infinity or rows of zeros")
    texts = texts / np.linalg.norm(texts, axis=-1, keepdims=True)
    if texts.ndim == 3:
        texts = texts.mean(axis=1)
        texts = texts / np.linalg.norm(texts, axis=-1, keepdims=True)
    rows: np.ndarray = texts if own is None else texts[_order(path, own, names, len(texts))]
    return rows


def _order(path: Path, own: list[str], names: Sequence[str] | None, count: int) -> list[int]:
    """Which row belongs to each class of the data."""
    if len(own) != count:
        raise _wrong(path, f"found {len(own)} names for {count} embeddings")
    twice = next((name for name in own if own.count(name) > 1), None)
    if twice is not None:
        raise _wrong(path, f"two embeddings have the name {excerpt(twice)!r}")
    if names is None:
        return list(range(count))
    missing = [name for name in names if name not in own]
    if missing:
        more = ", ..." if len(missing) > 3 else ""
        raise InputError(
            f"{len(missing)} of the data's {len(names)} classes have no text:"
            f" {excerpt(', '.join(missing[:3]))}{more}",
            place=str(path),
            hint=f"the file's names are those of the data; it has {excerpt(', '.join(own[:5]))}",
        )
    further = [number for number, name in enumerate(own) if name not in set(names)]
    return [own.index(name) for name in names] + further


def _read(path: Path) -> tuple[dict[str, np.ndarray], list[str] | None]:
    """The arrays of a file, and the names of classes that it has. Raises OSError and `InputError`."""
    import numpy as np

    if path.suffix == ".npz":
        archive = Archive.of(path)
        arrays = {name: archive.rows(name) for name in archive.names}
        texts = next((arrays[name] for name in _NAMES if name in arrays), None)
        return arrays, None if texts is None else [_text(each) for each in texts.ravel()]
    content = regular_files.read(path, _MOST_BYTES)
    if path.suffix == ".npy":
        import io

        try:
            return {"embeddings": np.load(io.BytesIO(content), allow_pickle=False)}, None
        except (ValueError, EOFError) as error:
            raise _wrong(path, f"not an array of NumPy: {excerpt(str(error))}") from error
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return load(content), _names_in(content)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _wrong(path, f"not readable: {excerpt(str(error))}") from error
    raise _wrong(path, f"found the suffix {path.suffix!r}, wanted .npz, .npy or .safetensors")


def _names_in(content: bytes) -> list[str] | None:
    """The names in the metadata of safetensors: a JSON list under one of the usual keys."""
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    text = next((metadata[name] for name in _NAMES if name in metadata), None)
    return None if text is None else [str(each) for each in json.loads(text)]


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _shown(arrays: Mapping[str, np.ndarray]) -> str:
    return excerpt(", ".join(f"{k} {a.dtype} {list(a.shape)}" for k, a in arrays.items())) or "nothing"


def _wrong(path: Path, message: str) -> InputError:
    return InputError(message, place=str(path), hint=_WANTED)
