"""The recipe as it is after checking: frozen, every option valid, nothing heavy imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny
from pydantic.fields import FieldInfo

from optcli.data import DataSettings
from optcli.files.digest import of_value
from optcli.models import sources
from optcli.models.sources import Source
from optcli.passes import Pass
from optcli.results.outcomes import DataRemark
from optcli.runners import Runner
from optcli.settings import Abbreviated, DeviceNames, Settings, TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.devices import DeviceSettings
from optcli.settings.gate import GateSettings
from optcli.settings.labels import ClassName, LabelSettings
from optcli.settings.latency import LatencySettings
from optcli.settings.outputs import OutputSettings
from optcli.settings.postprocess import PostprocessSettings
from optcli.settings.references import (
    CodeReference,
    RecipePath,
    SourceReference,
    WeightsReference,
)
from optcli.settings.slo import SloSettings
from optcli.settings.tuning import TuneSettings

ROLES = ("calibration", "training", "validation", "evaluation")


class WeightsSettings(Abbreviated):
    """Where a network's parameters are: a name alone is the file, or what the source knows."""

    short_for: ClassVar[str] = "file"

    file: WeightsReference = Field(description="a file, or a name the source knows such as DEFAULT")
    key: str = Field(
        "",
        description="which weights of a checkpoint that holds several: the entries that lead to them,"
        " joined by dots, such as `model_ema` or `ema.module`",
    )


class ModelSettings(Settings):
    """Which model: `source` says where its network is, `weights` where its parameters are."""

    source: Annotated[
        str,
        SourceReference(
            ("executorch", "exported", "litert", "onnx", "openvino", "torchscript"), ("hf",)
        ),
    ] = Field(
        min_length=1,
        description="KIND:WHAT, such as torchvision:resnet50, python:FILE.py:NAME, onnx:PATH, hf:PATH",
        examples=[
            "torchvision:resnet50",
            "python:models/digits.py:DigitsNet",
            "onnx:model.onnx",
            "hf:google/vit-base-patch16-224",
        ],
    )
    weights: WeightsSettings | None = Field(
        None,
        description="a file, or a name the source knows such as DEFAULT; {file: FILE, key: KEY} for one"
        " of several in a checkpoint",
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the callable that makes the network"
    )
    revision: str | None = Field(
        None, min_length=1, description="hf: a branch, a tag or a commit of the repository"
    )
    download: bool = Field(False, description="hf: fetch what is not in Hugging Face's cache")

    def in_folder(self, folder: Path) -> Source:
        """The source of a recipe in a folder. Raises `UsageError` for an unknown kind."""
        file, key = (self.weights.file, self.weights.key) if self.weights else (None, "")
        fields = {**dict(self), "weights": file, "weights_key": key}
        return sources.named(folder=folder, **fields)


class PassUse(Settings):
    """A pass in a variant, with its options.

    `place` is where it stands (`recipe.yaml:31:7`; no two uses that differ share one). `configured`
    is the checked pass where it is optcli's own; otherwise it is None and `reference`
    (`FILE_OR_MODULE:CLASS`, relative to the recipe's folder) names the class, which only a worker
    imports.
    """

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    place: str
    configured: SerializeAsAny[Pass] | None = None
    reference: str | None = None


class RunnerUse(Settings):
    """The runner of a variant: its name and the checked settings."""

    name: str
    configured: SerializeAsAny[Runner]
    place: str = ""


class VariantSettings(Settings):
    """What a variant says besides its passes and its runner."""

    extends: str | None = Field(
        None,
        description="another variant: its passes come first, its settings hold where this has none",
    )
    required: bool = Field(
        False, description="true: where a library or GPU is missing, the build fails; false: it skips"
    )
    gate: bool = Field(False, description="true: `optcli gate` judges this variant")
    devices: DeviceNames | None = Field(
        None, description="where its latency is measured; default: what `latency.devices` says"
    )


class Variant(VariantSettings):
    """Passes in their order, and the runner that runs what they make (None: the format's default)."""

    passes: tuple[PassUse, ...] = Field((), description="passes, carried out in this order")
    runner: RunnerUse | None = Field(None, description="what runs the result; default: by its format")


class MatrixEntry(Settings):
    """Writes one variant for every combination of the values in `over`.

    `${name}` in the entry's name and in `variant` is replaced by the value.
    """

    over: dict[str, tuple[Any, ...]] = Field(description="values by name")
    variant: Any = Field(description="the variant to write for each combination")


class ReportSettings(Settings):
    """What the report of a build shows beside its figures."""

    pictures: bool = Field(
        True,
        description="false: no evaluation image is drawn into the report, and pictures of earlier"
        " builds are removed",
    )


class Recipe(Settings):
    """What the user asked for, fully checked. A recipe file may have every key but the last six.

    A section of plain settings is added here and nowhere else: it is read, checked, merged with what
    is extended and described in the schema by its type. One that is written in another form than its
    type has a reader in `sections.READERS` and a form in `schema`. The example of a required field is
    what the hint says where it is missing.

    `variants` holds those that the matrix writes as well, and has at least one. Paths in all
    settings are relative to `folder`. `digest` is over all that was checked, wherever
    the file lies. `read_from` are the recipe files that it was read from, its own first.
    `data_remarks` say what was found out of the data before a build, `class_orders` how their classes
    may be numbered otherwise.
    """

    version: Literal[1] = Field(description="version of the recipe's language", examples=[1])
    name: str = Field(description="name of the folder of the results", examples=["NAME"])
    extends: RecipePath | tuple[RecipePath, ...] | None = Field(
        None, description="recipe files that this one changes: mappings merge, null removes a key"
    )
    baseline: Annotated[
        str,
        BeforeValidator(lambda name: "" if name is None else name, json_schema_input_type=str | None),
    ] = Field("", description="the variant to compare with; default: the first")
    seed: int = Field(0, ge=0, description="seed of everything that draws at random")
    model: ModelSettings = Field(examples=[{"source": "torchvision:resnet50", "weights": "DEFAULT"}])
    inputs: tuple[TensorSpec, ...] = Field(
        min_length=1, examples=[[{"name": "image", "shape": ["batch", 3, 224, 224]}]]
    )
    data: dict[str, DataSettings] = Field(
        default_factory=dict,
        description="samples by role: calibration, training, validation, evaluation",
    )
    outputs: dict[str, OutputSettings] = Field(
        default_factory=dict,
        description="what the values of each output are, by its name: parts such as [boxes, scores];"
        " default: what `postprocess`, the metric, the exporter or the values say",
    )
    postprocess: PostprocessSettings | None = None
    class_names: RecipePath | Annotated[tuple[ClassName, ...], Field(min_length=1)] | None = Field(
        None,
        description="names of the classes in a server's answers, that of label 0 first: a list, or a"
        " text file with one name a line; default: the names that the data set has",
    )
    labels: LabelSettings | None = Field(
        None, description="which class numbers of the model the labels of all roles are"
    )
    plugins: dict[str, CodeReference] = Field(
        default_factory=dict,
        description="passes from your own files, FILE.py:CLASS, or a mapping from names to them",
    )
    variants: dict[str, Variant] = Field(
        min_length=1, description="what to build, by name", examples=[{"eager": []}]
    )
    matrix: dict[str, MatrixEntry] = Field(
        default_factory=dict, description="variants by combinations of values"
    )
    devices: dict[str, DeviceSettings] = Field(
        default_factory=dict, description="machines to measure latency on, by name"
    )
    latency: LatencySettings = LatencySettings()
    accuracy: AccuracySettings | None = None
    slo: SloSettings | None = None
    gate: GateSettings = GateSettings()
    tune: TuneSettings = TuneSettings()
    report: ReportSettings = ReportSettings()

    path: Path
    folder: Path
    digest: str = ""
    read_from: tuple[Path, ...] = ()
    data_remarks: tuple[DataRemark, ...] = ()
    class_orders: dict[str, tuple[int, ...]] = Field(default_factory=dict)

    @property
    def wants_certainty(self) -> bool:
        """Whether a loss is accepted only where the same can be said of samples not seen."""
        return self.accuracy is not None and self.accuracy.policy == "non-inferiority"


# Found out when the recipe is read.
_NOT_WRITTEN = ("path", "folder", "digest", "read_from", "data_remarks", "class_orders")


def written_fields(recipe: type[Recipe]) -> dict[str, FieldInfo]:
    """What a recipe file may say at the top, in the order of the documentation."""
    return {name: field for name, field in recipe.model_fields.items() if name not in _NOT_WRITTEN}


def digest_of(recipe: Recipe) -> str:
    """Digest over the checked content, not over where the file lies or how it was written."""
    content = recipe.model_dump(mode="json", exclude={*_NOT_WRITTEN, "extends", "matrix", "plugins"})
    for variant in content["variants"].values():
        variant.pop("extends")
        if variant["runner"]:
            variant["runner"].pop("place")
        for use in variant["passes"]:
            use.pop("place")
            use["options"] = use.pop("configured") or use["options"]
    return of_value(content)
