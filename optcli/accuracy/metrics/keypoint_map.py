"""Mean average precision of keypoints, COCO's: over OKS 0.50 to 0.95 and over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from optcli.accuracy.metrics.map import Map
from optcli.errors import InputError

if TYPE_CHECKING:
    from optcli.accuracy.metrics._coco import Kind

_MOST = 20  # detections of an image, as COCO counts them
_COCO = 17
# COCO's, for its 17 keypoints of a person.
_SIGMAS = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)
# An object covers about so much of its box, where the data do not say its area.
_COVERED = 0.53


class KeypointMap(Map):
    """COCO's mAP of keypoints: all areas, at most 20 detections of a class in an image.

    As `map`, with the similarity of keypoints (OKS) in place of IoU, by pycocotools. Targets have
    `keypoints` [n, k, 3] beside their boxes: data `coco:` give them where the annotations do. An object
    without a visible keypoint does not count. Where data have no areas, the object's is 0.53 of its
    box's, as Ultralytics takes it.
    """

    sigmas: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None,
        min_length=1,
        description="how far each keypoint may lie off; default: COCO's of 17 keypoints, else 1/k each",
    )

    def kind(self, truths: Sequence[Mapping[str, Any]]) -> Kind:
        from optcli.accuracy.metrics._coco import Kind

        count = max((truth["count"] for truth in truths), default=0)
        if not count:  # no object is there that could match
            return Kind("keypoints", _MOST)
        sigmas = self.sigmas
        if sigmas is None:
            sigmas = tuple(each / 1000 for each in _SIGMAS) if count == _COCO else (1 / count,) * count
        if len(sigmas) != count:
            raise InputError(
                f"there are {len(sigmas)} sigmas, and an object has {count} keypoints",
                place="accuracy.options.sigmas",
                hint="name one for each keypoint",
            )
        return Kind("keypoints", _MOST, sigmas)

    def truth(self, target: Any, place: str) -> dict[str, Any]:
        import numpy as np

        truth = super().truth(target, place)
        points = np.asarray(target.get("keypoints", []), np.float64)
        count = len(truth["labels"])
        if not count and not points.size:
            points = points.reshape(0, points.shape[1] if points.ndim == 3 else 0, 3)
        elif points.ndim != 3 or len(points) != count or points.shape[2] != 3 or not points.shape[1]:
            raise InputError(
                f"the target has keypoints of the shape {list(points.shape)}"
                if "keypoints" in target
                else "the target has no keypoints",
                place=place,
                hint=f"wanted [{count}, k, 3]: x, y and visibility; metric: map judges boxes",
            )
        sizes = truth["boxes"][:, 2:] - truth["boxes"][:, :2]
        areas = target.get("areas", _COVERED * sizes.prod(axis=1))
        visible = (points[:, :, 2] > 0).sum(axis=1)
        fields = [
            {"keypoints": each.reshape(-1).tolist(), "num_keypoints": int(seen), "area": float(area)}
            for each, seen, area in zip(points, visible, areas, strict=True)
        ]
        return {**truth, "ignored": visible == 0, "fields": fields, "count": points.shape[1]}

    def detections(
        self, decoded: Any, place: str, truth: Mapping[str, Any], size: tuple[int, int]
    ) -> dict[str, Any]:
        import numpy as np

        from optcli.accuracy.metrics import _coco

        decoded_fields = _coco.detections_of(decoded, place, "keypoints")
        fields = []
        for points in decoded_fields["keypoints"]:
            if truth["count"] not in (0, len(points)):
                raise InputError(
                    f"a detection has {len(points)} keypoints, and an object has {truth['count']}",
                    place=place,
                    hint="the model and the data must have the same keypoints",
                )
            triples = np.ones((len(points), 3))
            triples[:, :2] = np.asarray(points, np.float64)[:, :2]
            fields.append({"keypoints": triples.reshape(-1).tolist()})
        return {**decoded_fields, "fields": fields}
