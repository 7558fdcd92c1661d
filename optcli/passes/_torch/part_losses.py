"""How far the outputs of a network are from its teacher's, part by part, for networks without labels.

A detector gives boxes beside scores, in other units. So each part has a distance of its own, and each
is given as a share of what the teacher's mean answer has: 0 where both agree, about 1 for a network
that gives the same for every image. So no part outweighs another, whatever its units. Boxes, keypoints
and the like count as much as the teacher is sure that there is an object, and scores of classes as
much as it is sure of any: most rows of a detector show the background.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from optcli.errors import StepError
from optcli.settings.outputs import Kind, OutputPart

if TYPE_CHECKING:
    import torch

    Outputs = Mapping[str, torch.Tensor]
    Parts = Mapping[str, Sequence[OutputPart]]

Activation = Literal["probabilities", "sigmoid", "softmax"]
# What belongs to one object of a row, as its box does.
_OF_OBJECTS = ("boxes", "keypoints", "angle", "mask_coefficients")
_SCORES = ("scores", "objectness")
# Detections after NMS: which row holds which object differs from network to network.
_FINISHED = ("class_numbers", "rows")
# Beyond this share of a box's size a difference counts in proportion (smooth L1).
_BETA = 0.1
_EPSILON = 1e-7
_LEAST = 1e-12


def are_no_classes(parts: Parts) -> bool:
    """Whether outputs are known to be something else than scores of classes, of samples or pixels."""
    kinds = {part.kind for each in parts.values() for part in each}
    return bool(kinds - {"logits", "class_map", "unknown"})


@dataclass(frozen=True)
class PartLoss:
    """The distance of one part, in the output at a position.

    `activation` is what makes probabilities of scores. `sizes` says where width and height of a box
    are: its last two numbers (`extent`), or the difference of its `corners`; None: the standard
    deviation of each number, `scale` `[k]`, stands for them. `whole` is what the teacher's mean answer
    has.
    """

    name: str
    position: int
    part: OutputPart
    activation: Activation
    rows_last: bool = False
    sizes: Literal["extent", "corners"] | None = None
    scale: torch.Tensor | None = None
    whole: float = 1.0

    def of(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The part as `[n, ..., k]`, its own dimension last."""
        value = self.part.of(outputs[self.position])
        if self.part.axis is not None:
            return value.movedim(self.part.axis + 1, -1)
        if self.rows_last or self.part.kind in ("logits", "class_map"):
            return value.movedim(1, -1)
        return value

    def shares(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Scores as probabilities."""
        value = self.of(outputs).float()
        if self.activation == "probabilities":
            return value.clamp(0.0, 1.0)
        return value.softmax(-1) if self.activation == "softmax" else value.sigmoid()

    def between(
        self, student: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """The mean distance of values as `of` gives them, a scalar; `weight` is `[n, rows]`."""
        kind: Kind = self.part.kind
        if kind in _SCORES and self.activation != "softmax":
            distances = _of_probabilities(student, teacher, logits=self.activation == "sigmoid").sum(-1)
        elif kind in (*_SCORES, "logits", "class_map"):
            distances = _of_shares(student, teacher)
        elif kind == "embedding":
            distances = 1 - _cosine(student, teacher)
        elif kind in _OF_OBJECTS:
            distances = self._of_places(student, teacher).mean(-1)
        else:
            distances = (student - teacher).square()
        if weight is not None and weight.shape == distances.shape:
            distances = distances * weight
        return distances.mean()

    def _of_places(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        size = self.scale
        if self.sizes is not None:
            extent = teacher[..., 2:4]
            if self.sizes == "corners":
                extent = extent - teacher[..., :2]
            extent = extent.abs()
            least = 0.01 * extent.mean().clamp_min(_EPSILON)
            size = extent.clamp_min(least).repeat((1,) * (extent.ndim - 1) + (2,))
        assert size is not None
        return functional.smooth_l1_loss(student / size, teacher / size, reduction="none", beta=_BETA)


@dataclass(frozen=True)
class PartLosses:
    """The distances of all parts, as one loss; `scores` and `objectness` weigh the others.

    Classes are those from `first_class` to `classes`, without a background.
    """

    losses: tuple[PartLoss, ...]
    scores: PartLoss | None
    objectness: PartLoss | None
    first_class: int
    classes: int | None

    @property
    def names(self) -> list[str]:
        """What is compared: outputs with their parts."""
        return [each.name for each in self.losses]

    def __call__(self, outputs: Outputs, taught: Outputs) -> torch.Tensor:
        """The loss of a batch, a scalar: the mean over parts of their shares.

        Outputs go by position: a network may name them otherwise while it trains. Raises `StepError`.
        """
        student, teacher = _listed(outputs), _listed(taught)
        if [each.shape for each in student] != [each.shape for each in teacher]:
            raise StepError(
                f"the outputs have the shapes {[list(each.shape) for each in student]}, the teacher's "
                f"{[list(each.shape) for each in teacher]}",
                hint="set `compare: logits` with `output: NAME`, or `distillation_weight: 0`",
            )
        weights = self._weights(teacher)
        shares = []
        for each in self.losses:
            values, wanted = each.of(student).float(), each.of(teacher).float()
            shares.append(each.between(values, wanted, self._weight(each, weights)) / each.whole)
        return sum(shares[1:], shares[0]) / len(shares)

    def _weights(self, taught: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        """How sure the teacher is of an object in each row, `[n, rows]`, and of one of a class."""
        objectness = None if self.objectness is None else self.objectness.shares(taught)[..., 0]
        if self.scores is None:
            return objectness, objectness
        best = self.scores.shares(taught)[..., self.first_class : self.classes].amax(-1)
        return objectness, best if objectness is None else best * objectness

    def _weight(self, distance: PartLoss, weights: tuple[Any, Any]) -> Any:
        if distance.part.kind == "scores":
            return weights[0]
        return weights[1] if distance.part.kind in _OF_OBJECTS else None


def part_losses(parts: Parts, how: tuple[str, Mapping[str, Any]] | None, taught: Outputs) -> PartLosses:
    """The distances of a network's parts; outputs that nobody describes are compared by their values.

    `how` is the decoding of a detector: a kind of `postprocess` and its settings. `taught` are answers
    of the teacher to some samples. Raises `StepError` where no part can be compared.
    """
    kind, settings = how or ("", {})
    listed = _listed(taught)
    distances = [*_unscaled(parts, kind, settings, taught)]
    finished = [each.name for each in distances if each.part.kind in _FINISHED]
    if finished:
        raise StepError(
            f"{finished[0]}: detections after NMS cannot be compared with a teacher's, row by row",
            hint="train the network before its NMS, with boxes and scores of all candidates as outputs",
        )
    background = settings.get("background", "none")
    whole = PartLosses(
        (),
        next((each for each in distances if each.part.kind == "scores"), None),
        next((each for each in distances if each.part.kind == "objectness"), None),
        int(background == "first"),
        -1 if background == "last" else None,
    )
    weights = whole._weights(listed)
    scaled = []
    for distance in distances:
        values = distance.of(listed).float()
        if distance.part.kind in _OF_OBJECTS and distance.sizes is None:
            deviation = values.flatten(0, -2).std(0, correction=0)
            distance = replace(distance, scale=deviation.clamp_min(_EPSILON))
        mean = values.mean(0, keepdim=True).expand_as(values)
        if distance.part.kind in _SCORES and distance.activation == "sigmoid":
            shares = distance.shares(listed).mean(0, keepdim=True).expand_as(values)
            mean = shares.clamp(_EPSILON, 1 - _EPSILON).logit()
        apart = float(distance.between(mean, values, whole._weight(distance, weights)))
        if apart > _LEAST:  # else it is the same for every sample: nothing to learn
            scaled.append(replace(distance, whole=apart))
    if not scaled:
        raise StepError(
            "the teacher gives the same outputs for all training samples",
            hint="see that `data.training` is prepared as the network wants it",
        )
    return replace(whole, losses=tuple(scaled))


def _unscaled(
    parts: Parts, kind: str, settings: Mapping[str, Any], taught: Outputs
) -> Iterator[PartLoss]:
    formats = {"xyxy": "corners", "cxcywh": "extent", "xywh": "extent"}
    form = "cxcywh" if kind == "yolox" and settings["decoded"] else settings.get("format")
    rows_last = bool(settings.get("transposed"))
    for position, (name, value) in enumerate(taught.items()):
        if not value.is_floating_point() and name not in parts:
            continue
        for part in parts.get(name) or (OutputPart("unknown"),):
            if part.kind == "unknown" and part.axis is not None:
                continue
            scores = part.of(value)
            inside = float(scores.min()) >= 0 and float(scores.max()) <= 1
            activation: Activation = "probabilities" if inside else "sigmoid"
            if part.kind == "scores" and settings.get("activation", "none") != "none":
                activation = settings["activation"]
            yield PartLoss(
                f"{name}: {part.kind}",
                position,
                part,
                activation,
                rows_last and part.kind in ("boxes", "scores"),
                formats.get(str(form)) if part.kind == "boxes" else None,  # type: ignore[arg-type]
            )


def _listed(outputs: Outputs) -> list[torch.Tensor]:
    return list(outputs.values())


def _of_probabilities(student: torch.Tensor, teacher: torch.Tensor, *, logits: bool) -> torch.Tensor:
    """The Kullback-Leibler divergence of each yes or no."""
    from torch.nn import functional

    if logits:
        wanted = teacher.sigmoid()
        given = functional.binary_cross_entropy_with_logits(student, wanted, reduction="none")
        own = functional.binary_cross_entropy_with_logits(teacher, wanted, reduction="none")
        return given - own
    # Clamped values have no gradient, and what lies beyond 0 and 1 by rounding no logarithm.
    wanted = teacher.clamp(_EPSILON, 1 - _EPSILON)
    given = functional.binary_cross_entropy(
        student.clamp(_EPSILON, 1 - _EPSILON), wanted, reduction="none"
    )
    return given - functional.binary_cross_entropy(wanted, wanted, reduction="none")


def _of_shares(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """The Kullback-Leibler divergence of logits along the last dimension."""
    from torch.nn import functional

    soft = [functional.log_softmax(value, dim=-1) for value in (student, teacher)]
    return functional.kl_div(soft[0], soft[1], reduction="none", log_target=True).sum(-1)


def _cosine(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    return functional.cosine_similarity(student, teacher, dim=-1)
