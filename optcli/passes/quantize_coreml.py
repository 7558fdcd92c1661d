"""Smaller weights for Core ML models: integers with a scale, or places in a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import coreml as coreml_format
from optcli.passes import Job, Made, Pass
from optcli.settings import Patterns

if TYPE_CHECKING:
    from coremltools.models import MLModel
    from coremltools.optimize.coreml import OptimizationConfig


class QuantizeCoreml(Pass):
    """Makes the weights of a Core ML model smaller, with coremltools. Activations stay as they are.

    `linear`: integers with a scale. `palettized`: each weight is a place in a table of values, which
    k-means finds. It reads no data. Quantizing activations needs a Mac.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.COREML,)
    needs: ClassVar[Needs] = Needs(("coremltools",))

    mode: Literal["linear", "palettized"] = Field("linear", description="how weights are written")
    bits: Literal[1, 2, 3, 4, 6, 8] | None = Field(
        None, description="bits of a weight; `linear` has 4 and 8; default: 8, for a table 6"
    )
    group_size: int | None = Field(
        None,
        ge=1,
        description="input channels that share a scale, or output channels that share a table; "
        "default: a scale for each output channel, a table for each layer",
    )
    weight_threshold: int = Field(
        2048, ge=0, description="layers with no more weights than this stay as they are"
    )
    ignored_types: tuple[str, ...] = Field(
        (), description="operators whose weights stay as they are, such as `linear`"
    )
    ignored_names: Patterns = Field(
        (), description="regular expressions of names of weights that stay as they are"
    )

    @model_validator(mode="after")
    def _bits_that_there_are(self) -> Self:
        if self.mode == "linear" and self.bits not in (None, 4, 8):
            raise ValueError(f"`mode: linear` has 4 or 8 bits, not {self.bits}")
        return self

    def produces(self, source: Format) -> Format:
        return Format.COREML

    def run(self, source: Artifact, job: Job) -> Made:
        from coremltools.optimize import coreml

        model = coreml_format.open(source.path)
        config = self._config(self._ignored(model))
        compress = coreml.linear_quantize_weights if self.mode == "linear" else coreml.palettize_weights
        hint = "blocks, groups and weights of 4 bits want `target: iOS18` in to_coreml"
        with raised_as(StepError, "coremltools cannot quantize this model", hint=hint):
            made = compress(model, config)
            coreml_format.save(made, job.out)
        counts = _counts(made)
        if not counts:
            raise StepError(
                f"no layer has more than {self.weight_threshold} weights that could be quantized",
                hint="lower `weight_threshold`, ignore less, or drop the pass",
            )
        kind = f"int{self._bits()}" if self.mode == "linear" else f"lut{self._bits()}"
        return Made(precision=f"{kind}-weights", facts={"quantized_weights": counts})

    def _bits(self) -> int:
        return self.bits or (8 if self.mode == "linear" else 6)

    def _config(self, ignored: list[str]) -> OptimizationConfig:
        from coremltools.optimize import coreml

        common = {"weight_threshold": self.weight_threshold}
        if self.mode == "linear":
            granularity = "per_channel" if self.group_size is None else "per_block"
            block = {} if self.group_size is None else {"block_size": self.group_size}
            wanted = coreml.OpLinearQuantizerConfig(
                dtype=f"int{self._bits()}", granularity=granularity, **block, **common
            )
        else:
            granularity = "per_tensor" if self.group_size is None else "per_grouped_channel"
            group = {} if self.group_size is None else {"group_size": self.group_size}
            wanted = coreml.OpPalettizerConfig(
                nbits=self._bits(), granularity=granularity, **group, **common
            )
        return coreml.OptimizationConfig(
            wanted, dict.fromkeys(self.ignored_types), dict.fromkeys(ignored)
        )

    def _ignored(self, model: MLModel) -> list[str]:
        """Names of weights that a pattern names. Raises `StepError` for a pattern that names none."""
        from coremltools.optimize import coreml

        if not self.ignored_names:
            return []
        names = list(coreml.get_weights_metadata(model, weight_threshold=0))
        chosen: list[str] = []
        for pattern in self.ignored_names:
            matching = [name for name in names if re.fullmatch(pattern, name)]
            if not matching:
                raise StepError(
                    f"ignored_names: {pattern!r} is the name of no weights",
                    hint=f"there are {', '.join(names[:10])}",
                )
            chosen += matching
        return chosen


def _counts(model: MLModel) -> dict[str, int]:
    """How many weights are written in a smaller form, by the operation that restores them."""
    counts: dict[str, int] = {}
    for operation in coreml_format.operations(model):
        if operation.type.startswith("constexpr_"):
            counts[operation.type] = counts.get(operation.type, 0) + 1
    return dict(sorted(counts.items()))
