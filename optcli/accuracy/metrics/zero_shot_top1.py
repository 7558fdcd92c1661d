"""Zero-shot top-1: the class whose text is nearest to the image's embedding is the label's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from optcli import regular_files
from optcli.accuracy.metrics._classes import Classification
from optcli.accuracy.metrics._embeddings import unit_rows
from optcli.accuracy.metrics._texts import texts_of
from optcli.errors import InputError
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Predictions, Records


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
