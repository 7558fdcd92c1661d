"""Mean average precision of instance masks, COCO's: over mask IoU 0.50 to 0.95 and over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.accuracy import objects
from optcli.accuracy.metrics.map import Map
from optcli.errors import InputError, excerpt

if TYPE_CHECKING:
    from optcli.accuracy.metrics._coco import Kind

_WANTED = "wanted a list of polygons [x1, y1, x2, y2, x3, y3, ...], or {size, counts} as COCO has them"


class MaskMap(Map):
    """COCO's mAP of masks: all areas, at most 100 detections of a class in an image.

    As `map`, with the IoU of masks in pixels of the original image, by pycocotools. Targets have
    `segmentation` beside their boxes: data `coco:` give it where the annotations do.
    """

    def kind(self, truths: Sequence[Mapping[str, Any]]) -> Kind:
        from optcli.accuracy.metrics._coco import Kind

        return Kind("segm")

    def truth(self, target: Any, place: str) -> dict[str, Any]:
        truth = super().truth(target, place)
        masks = target.get("segmentation")
        if masks is None:
            hint = "mask_map is for data with masks; metric: map judges boxes"
            raise InputError("the target has no segmentation", place=place, hint=hint)
        if len(masks) != len(truth["labels"]):
            counts = f"{len(truth['labels'])} boxes and {len(masks)} masks"
            raise InputError(counts, place=place, hint="give every object its segmentation")
        for number, mask in enumerate(masks):
            if not _is_mask(mask):
                raise InputError(
                    f"the segmentation of object {number} is {excerpt(repr(mask))}",
                    place=place,
                    hint=_WANTED,
                )
        return {**truth, "fields": [{"segmentation": each} for each in masks]}

    def size(self, truth: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[int, int]:
        height, width = super().size(truth, meta)
        masks = [each["segmentation"] for each in truth["fields"]]
        known = {tuple(each["size"]) for each in masks if isinstance(each, Mapping)}
        if not height and len(known) == 1:
            height, width = known.pop()
        if known - {(height, width)}:
            raise InputError(
                f"masks are of {sorted(known)} pixels, the image has {height} x {width}",
                place="data.evaluation",
                hint="give masks the size of their image; without `meta` original_size nobody knows it",
            )
        return height, width

    def detections(
        self, decoded: Any, place: str, truth: Mapping[str, Any], size: tuple[int, int]
    ) -> dict[str, Any]:
        from optcli.accuracy.metrics import _coco

        decoded_fields = _coco.detections_of(decoded, place, "masks")
        masks = [objects.encoded(each) for each in decoded_fields["masks"]]
        wrong = {tuple(each["size"]) for each in masks} - {size}
        if wrong:
            raise InputError(
                f"a mask of {place} has {sorted(wrong)[0]} pixels, its image {size}",
                place="postprocess",
                hint="masks are of the original image, as its annotations are",
            )
        return {**decoded_fields, "fields": [{"segmentation": each} for each in masks]}


def _is_mask(mask: Any) -> bool:
    if isinstance(mask, Mapping):
        size, counts = mask.get("size"), mask.get("counts")
        whole = isinstance(counts, list) and all(isinstance(each, int) for each in counts)
        sized = isinstance(size, list | tuple) and len(size) == 2
        return sized and (whole or isinstance(counts, str | bytes))
    return isinstance(mask, list) and bool(mask) and all(map(_is_polygon, mask))


def _is_polygon(points: Any) -> bool:
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        return False
    return all(isinstance(each, int | float) and abs(each) < float("inf") for each in points)
