"""Mean average precision of rotated boxes: over IoU 0.50 to 0.95 of their areas and over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.accuracy.metrics.map import Map
from optcli.errors import InputError

if TYPE_CHECKING:
    from optcli.accuracy.metrics._coco import Kind

_MOST = 1000  # detections of a class in an image: aerial pictures show many objects
_CORNERS = 8


class RotatedMap(Map):
    """The mAP of rotated boxes as COCO sums it up: at most 1000 detections of a class in an image.

    As `map`, with the exact IoU of two convex quadrangles: the area that they share over that of both.
    `map50` is DOTA's measure but for its 11 recalls, of which COCO has 101. Targets have `corners`
    [n, 4, 2] beside their boxes; a `segmentation` of one polygon with four corners is taken as well.
    """

    def kind(self, truths: Sequence[Mapping[str, Any]]) -> Kind:
        from optcli.accuracy.metrics._coco import Kind

        return Kind("corners", _MOST)

    def truth(self, target: Any, place: str) -> dict[str, Any]:
        import numpy as np

        truth = super().truth(target, place)
        corners = target.get("corners")
        if corners is None:
            corners = _of_polygons(target.get("segmentation"))
        corners = np.asarray([] if corners is None else corners, np.float64).reshape(-1, 4, 2)
        if len(corners) != len(truth["labels"]) or not np.isfinite(corners).all():
            raise InputError(
                f"the target has {len(truth['labels'])} boxes, and corners of {len(corners)}",
                place=place,
                hint="wanted corners [n, 4, 2], or a segmentation of one polygon with four corners for"
                " each object; metric: map judges upright boxes",
            )
        return {**truth, "fields": [{"corners": each} for each in corners]}

    def detections(
        self, decoded: Any, place: str, truth: Mapping[str, Any], size: tuple[int, int]
    ) -> dict[str, Any]:
        import numpy as np

        from optcli.accuracy.metrics import _coco

        decoded_fields = _coco.detections_of(decoded, place, "corners")
        fields = [{"corners": np.asarray(each, np.float64)} for each in decoded_fields["corners"]]
        return {**decoded_fields, "fields": fields}


def _of_polygons(masks: Any) -> list[Any] | None:
    """The corners of masks that are one quadrangle each; None where one is not."""
    if not isinstance(masks, list):
        return None
    single = [each[0] for each in masks if isinstance(each, list) and len(each) == 1]
    sound = len(single) == len(masks) and all(len(each) == _CORNERS for each in single)
    return single if sound else None
