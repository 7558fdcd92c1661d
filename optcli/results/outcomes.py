"""What was found out about accuracy, also layer by layer, and verdicts: parts of a report."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Outcome = Literal["accept", "reject", "inconclusive"]

# What verdicts on accuracy are called. The policy that decides is `accuracy`, the other one, for
# information, goes by its own name.
POLICIES = ("fixed-set", "non-inferiority")
ACCURACY_VERDICTS = (
    "accuracy",
    "outputs",
    *POLICIES,
    "batch invariance",
    "determinism",
    "saturation",
    "scores",
    "labels",
    "samples",
    "preparation",
    "decoding",
)


SPEEDUP = "speed-up"
# What the verdict on a bound of `slo` is called, before the name of the bound.
SERVICE_LEVEL = "slo "


class Result(BaseModel):
    """Base of all results: frozen; unknown keys of a newer writer are kept out of the way."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    def to_json(self) -> str:
        """The public JSON form."""
        return self.model_dump_json(by_alias=True, indent=2)


class Estimate(Result):
    """A value with its 95 % interval; `low` and `high` are None where the samples do not give one."""

    value: float
    low: float | None = None
    high: float | None = None


class Against(Result):
    """The speed-up of a variant over another one, which took turns with it."""

    variant: str
    speedup: Estimate


class Verdict(Result):
    """One answer, with its reason: an accuracy bar, a service level, advice such as "does not pay".

    `over` names the variant that a speed was compared with, where that is not the baseline.
    `samples_needed` is how many samples would decide where these cannot; `runner` and `isa` say where
    an accuracy was found: the same file can be right in one runtime or CPU and wrong in another.
    """

    name: str
    outcome: Outcome
    blocking: bool
    limit: float | None = None
    actual: float | None = None
    interval: tuple[float, float] | None = None
    over: str | None = None
    samples_needed: int | None = None
    runner: str | None = None
    isa: str | None = None
    reason: str

    @property
    def is_speedup(self) -> bool:
        """Whether it is on the speed, over the baseline or over another variant."""
        return self.name == SPEEDUP or self.over is not None


class InterfaceChange(Result):
    """One difference between the outputs of a variant and of its baseline.

    `output` is the baseline's name of the output; for an `added` output it is the variant's. `before`
    and `after` are numbers of outputs, names, shapes of one sample or element types: `what` says which.
    `comparable` says whether the values can still be compared one by one.
    """

    what: Literal["added", "removed", "renamed", "order", "shape", "dtype"]
    output: str
    before: str
    after: str
    comparable: bool


class OutputDistance(Result):
    """How far one output lies from the baseline's: signal to noise in decibel, largest difference.

    `sqnr_db` is None where the values are equal (`max_abs` is 0 then) or the baseline's are all zero.
    For whole numbers it is computed from the share of values that are the same.
    """

    output: str
    sqnr_db: float | None
    max_abs: float


class PartDistance(Result):
    """How far a part of an output lies from the baseline's, such as the scores of a detector.

    `of` are the entries of the dimension `axis` (the batch is 0) that it holds: from, to (not
    included); None: all. `low` and `high` are the baseline's extremes. `scale` is the factor by which
    the values are the baseline's, by least squares; `shift` the mean difference of the entry that is
    shifted most, as a fraction of the range. `dead` are the first entries that vary in the baseline by
    what matters and are constant here, of `dead_count`; `faded_count` those that vary by less.
    """

    output: str
    part: str
    axis: int | None = None
    of: tuple[int, int] | None = None
    sqnr_db: float | None
    max_abs: float
    low: float
    high: float
    scale: float | None = None
    shift: float | None = None
    dead: tuple[int, ...] = ()
    dead_count: int = 0
    faded_count: int = 0
    wrong: tuple[int, ...] = ()
    wrong_count: int = 0


class DetectionChange(Result):
    """A detector's detections beside the baseline's, on the same images, without labels.

    Of the baseline's detections with a score of `score` or more (`confident` of them) `same` have a
    detection at IoU 0.5 of the same class; `same_place` have one of any class. `score_ratio` is the
    mean score over the baseline's, and `shift` the mean displacement of their edges in parts of the
    box's size, of those that are the same. `new` counts confident detections where the baseline has
    none. `classes` are those of which less than half are left, with the counts: class, left, of.
    `guessed`: nobody says that the outputs are decoded so; their form suggests it.

    Of those that are the same, too: `mask_iou` is the IoU over the pixels of all masks together, and
    `other_masks` counts masks that share less than half with the baseline's. `keypoint_distance` is
    the mean distance of the keypoints that the baseline sees, in parts of the object's size (the root
    of its box's area), `moved_keypoints` are the numbers of those at over a tenth, and
    `keypoints_seen` the share that the variant sees, too. `turn_degrees` is the mean angle between
    rotated boxes.
    """

    images: int
    score: float
    confident: int
    same_place: int
    same: int
    new: int
    score_ratio: float | None = None
    shift: float | None = None
    classes: tuple[tuple[int, int, int], ...] = ()
    guessed: bool = False
    mask_iou: float | None = None
    other_masks: int = 0
    keypoint_distance: float | None = None
    moved_keypoints: tuple[int, ...] = ()
    keypoints_seen: float | None = None
    turn_degrees: float | None = None


class ScoreChange(Result):
    """How many `detections`, or a classifier's `answers`, a threshold lets through.

    `count` of the variant, `baseline` of the baseline on the same samples. `equal` is the threshold at
    which the variant gives as many as the baseline; None where it never does.
    """

    of: Literal["detections", "answers"]
    threshold: float
    count: int
    baseline: int
    equal: float | None = None


class DecodingNote(Result):
    """What decoding noted of so many `images`.

    `max_candidates`, `max_detections`: there were more than this limit, which `figures` has. `columns`:
    rows have more numbers than are read. `classes`: so many has the model, and so many the data.
    `misread`: scores above 1, or class numbers that the data do not have. `no_boxes`: confident boxes
    lie outside of the image, or have no area; looked for where the decoding is a guess.
    """

    kind: Literal["max_candidates", "max_detections", "columns", "classes", "misread", "no_boxes"]
    images: int
    figures: tuple[int, ...] = ()


class DataRemark(Result):
    """A sentence on how the parts of the data go together, such as labels and classes.

    `doubtful`: figures may be wrong by it; else it says what was made of the data.
    """

    text: str
    about: Literal["labels", "preparation"] = "labels"
    doubtful: bool = False


class OutputError(Result):
    """How far a variant's outputs lie from the baseline's on the same samples.

    Signal to noise in decibel (None where the outputs are equal), cosine, largest and mean difference
    are over all values of all outputs together. Each is None where values are no numbers, or where
    nothing can be compared, which `compared` says. `samples` counts the samples that were compared,
    `far_samples` those that lie far from the baseline's by themselves. `worst` is the output that lies
    farthest, `parts` are those of all outputs. `finite` says that no value is NaN and that no output is
    all infinite, `infinite_elsewhere` that single values are infinite at other places than the
    baseline's. `constant` says that the outputs are the same for every sample. `changes` lists what
    differs from the baseline's interface.
    """

    sqnr_db: float | None = None
    cosine: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    finite: bool
    constant: bool
    baseline_finite: bool = True
    infinite_elsewhere: bool = False
    baseline_constant: bool = False
    compared: bool = True
    samples: int | None = None
    far_samples: int | None = None
    worst: OutputDistance | None = None
    parts: tuple[PartDistance, ...] = ()
    detections: DetectionChange | None = None
    changes: tuple[InterfaceChange, ...] = ()


class FurtherFigure(Result):
    """A further figure of a variant beside the baseline's, such as `calibration_error`."""

    value: float
    baseline: float


class ClassChange(Result):
    """One class on the same samples: shares that were right, and how many changed sides."""

    label: int
    samples: int
    value: float
    baseline: float
    regressed: int
    improved: int


class ClassFigure(Result):
    """The metric of one class, of a variant and of the baseline; `samples` as the metric counts them.

    Images of the class for a share of right samples, images that show it for mAP and mIoU.
    """

    label: int
    samples: int
    value: float
    baseline: float | None


class Stability(Result):
    """Whether a sample's outputs depend on its batch or change from run to run, on a few samples.

    Largest differences over the largest output: of two runs on one batch (`repeat_error`), and of a
    batch against its samples one by one (`batch_error`; None where the model takes no other size).
    """

    repeat_error: float
    batch_error: float | None = None
    samples: int


class Accuracy(Result):
    """Accuracy of one artifact in one runner, against the baseline on the same samples.

    `value`, `baseline` and `drop` are fractions; they and `metric` are None without labels. A positive
    `drop` is a loss, whichever way the metric counts (`better`). `bounds` are the drop's one-sided
    bounds at `confidence`. `regressed` counts the samples that the baseline had right and this variant
    has wrong, `improved` the reverse. `mcnemar_p` is the exact p value of no difference. `classes` are
    the classes that changed most. These four are for metrics that call each sample right or wrong; for
    other metrics they are None, and the intervals are bootstrapped over samples. `agreement` is the
    share of samples whose largest score is in the same place as the baseline's, `scores` says how far
    scores moved. `distinct` counts the
    samples that differ by content; intervals rest on these alone. `largest_change` is the most that the
    metric can lose for each share of samples that change; None where that is not known, and there are
    no bounds then. `data` say how the parts of the data go together. `baseline_doubts` say why the
    baseline is no valid reference. `per_class` has the metric of every class. `isa` names the CPU's
    instructions for 8-bit sums. `full_range_weights` says whether INT8 weights need instructions that
    do not saturate. `evaluated_on` is a digest of the evaluation samples, the postprocessing and the
    metric: two accuracies can be subtracted where it is the same.
    """

    metric: str | None
    value: float | None
    baseline: float | None
    samples: int
    better: Literal["higher", "lower"] = "higher"
    drop: Estimate | None = None
    bounds: Estimate | None = None
    confidence: float = 0.95
    regressed: int | None = None
    improved: int | None = None
    mcnemar_p: float | None = None
    agreement: float | None = None
    scores: ScoreChange | None = None
    figures: dict[str, FurtherFigure] = Field(default_factory=dict)
    classes: tuple[ClassChange, ...] = ()
    per_class: tuple[ClassFigure, ...] = ()
    distinct: int | None = None
    largest_change: float | None = None
    stability: Stability | None = None
    doubts: tuple[str, ...] = ()
    baseline_doubts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    data: tuple[DataRemark, ...] = ()
    decoding: tuple[DecodingNote, ...] = ()
    full_range_weights: bool | None = None
    output_error: OutputError | None = None
    runner: str | None = None
    precision: str | None = None
    isa: str | None = None
    evaluated_on: str | None = None


TensorKind = Literal["activation", "weight"]


class LayerError(Result):
    """One tensor of a float network beside the same one of the network that was made from it.

    `tensor` is its name in the float network, `node` the layer that computes it or reads it as its
    weights (what passes call it), `operator` that layer's type. `own_db` is the signal to noise ratio
    in decibel of what this layer adds by itself, with exact inputs; `sqnr_db` has what came with its
    inputs as well. Both are None where the values are equal, and where they are not `finite`. `cosine`
    and `factor`, by which the values are too large, are the layer's own. `clipped` is the share of
    values beyond the range of the integers; `channel` the worst output channel of a weight. `readers`
    are the layers that read an activation as integers: it is quantized until they are left in floats.
    `advice` is one thing to try.
    """

    tensor: str
    node: str
    operator: str
    shape: tuple[int, ...]
    kind: TensorKind
    own_db: float | None
    sqnr_db: float | None
    cosine: float | None = None
    factor: float | None = None
    finite: bool = True
    clipped: float | None = None
    channel: int | None = None
    channel_db: float | None = None
    readers: tuple[str, ...] = ()
    advice: str = ""

    @property
    def rank(self) -> float:
        """What to sort by: the smaller, the worse. Equal values come last, those not finite first."""
        if not self.finite:
            return float("-inf")
        return float("inf") if self.own_db is None else self.own_db


class Layers(Result):
    """All layers that could be compared, the worst first; `reason` says why there are none, or few."""

    rows: tuple[LayerError, ...] = ()
    compared: int = 0
    samples: int = 0
    reason: str | None = None

    def worst_nodes(self) -> tuple[str, ...]:
        """Names of the layers, the one that adds most error first, each once."""
        return tuple(dict.fromkeys(row.node for row in self.rows if row.node))
