"""What can be tried for one recipe on this machine, as parameters.

`Space.options` says what may be changed of some parameters; `Space.candidate` turns them into passes
and a runner. What the recipe, its data or this machine do not allow is not in the space, and `left_out`
says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from optcli import environment, passes, runners
from optcli.artifact import Format
from optcli.pipeline.plan import source_of
from optcli.recipe import Recipe, passes_between
from optcli.settings import image_size
from optcli.tuning.candidates import TrialCandidate, Use

Parameters = dict[str, Any]

# What is tried where the recipe names none: the others are for phones and boards.
RUNTIMES = ("openvino", "onnxruntime", "pytorch")
PRECISIONS = ("fp32", "bf16", "fp16", "int8", "int8-dynamic", "int8-weights")
_NOTHING: Mapping[str, tuple[Format, ...]] = MappingProxyType({})
# The format that a runtime computes from, and what quantizes to INT8 with ranges found beforehand.
_FORMATS = {
    "openvino": Format.OPENVINO,
    "onnxruntime": Format.ONNX,
    "litert": Format.LITERT,
    "executorch": Format.EXECUTORCH,
}
_QUANTIZERS = {
    "openvino": ("quantize_nncf",),
    "onnxruntime": ("quantize_onnxruntime", "quantize_nncf"),
    "pytorch": ("quantize_pt2e",),
    "litert": ("quantize_litert",),
    "executorch": ("quantize_pt2e",),
}
# Runtimes that lower what was quantized before, with the options of their quantizer.
_QUANTIZED_AHEAD = {"executorch": {"quantizer": "xnnpack"}}
# What quantizes to other precisions, and where that is a pass of the runtime's own.
_UNCALIBRATED: dict[str, Use] = {
    "int8-dynamic": ("quantize_dynamic", {}),
    "int8-weights": ("weights_only", {}),
}
_OWN_UNCALIBRATED: dict[str, dict[str, Use]] = {
    "litert": {
        "int8-dynamic": ("quantize_litert", {"mode": "dynamic"}),
        "int8-weights": ("quantize_litert", {"mode": "weights"}),
    }
}
_AWARE = {"openvino": "openvino", "onnxruntime": "onnx"}
_RUNNERS = {"pytorch": "aoti"}  # of the others as they are called themselves
_OTHER_PRECISIONS = {
    "openvino": ("fp32", "bf16", "fp16", "int8", "int8-weights"),
    "onnxruntime": ("fp32", "int8", "int8-dynamic", "int8-weights"),
    "pytorch": ("fp32", "int8"),
    "litert": ("fp32", "int8", "int8-dynamic", "int8-weights"),
    "executorch": ("fp32", "int8"),
}
_MOST_EPOCHS = 200
# Samples of a step, and the most pixels: a training of minutes needs hundreds of steps.
_BATCH, _LEAST_BATCH, _PIXELS = 64, 8, 1 << 20
# Of larger images fewer rank the blocks, each of which is tried without: they show as many places.
_FEW_PIXELS, _BLOCK_SAMPLES = 96 * 96, 16
# A training gives up where, after half of its time, so many bars are lost on held-out samples, and at
# least this share of them. See benchmarks/README.md.
_HOPELESS, _LEAST_HOPELESS = 12, 0.12
_COMPUTED_IN = {"bf16": "bf16", "fp16": "f16"}
# Options of quantizers that a candidate is called by.
_LABELLED = (
    *("preset", "smooth_quant", "fast_bias_correction", "method", "per_channel", "activation_bits"),
)
_RUNNER_OPTIONS = ("threads", "shapes", "hint", "optimization_level")

# Options of the quantizers that the search varies: `None` leaves the pass's own default.
_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "quantize_nncf": {
        "preset": (None, "performance", "mixed"),
        "smooth_quant": (None, True, False),
        "fast_bias_correction": (None, False),
    },
    "quantize_onnxruntime": {
        "method": (None, "percentile", "entropy"),
        "per_channel": (None, False),
    },
    "quantize_pt2e": {"method": (None, "minmax")},
    "quantize_litert": {"activation_bits": (None, 16)},
}


@dataclass(frozen=True)
class Space:
    """The choices of one recipe. `left_out` holds sentences on what is not tried.

    `further` are the passes of `tune.passes` that fit somewhere, with the formats that they read.
    """

    recipe: Recipe
    source: Format
    runtimes: tuple[str, ...]
    precisions: dict[str, tuple[str, ...]]
    trains: bool
    prunes: bool
    aware: bool
    threads: tuple[int, ...]
    left_out: tuple[str, ...] = field(default=())
    further: Mapping[str, tuple[Format, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: Recipe, reads: Mapping[str, tuple[Format, ...]] = _NOTHING) -> Space:
        """The space of a recipe here. Imports nothing heavy.

        `reads` has the formats of the passes of `tune.passes` that are not optcli's own.
        """
        source = source_of(recipe).format
        left: list[str] = []
        runtimes = tuple(_runtimes(recipe, source, left))
        precisions_of = {name: tuple(_precisions(recipe, name, left)) for name in runtimes}
        precisions = {name: each for name, each in precisions_of.items() if each}
        can_train = source == Format.TORCH and "training" in recipe.data
        wants = recipe.tune.prune or recipe.tune.quantize_aware
        if wants and not can_train:
            why = (
                f"the model comes as {source}, which cannot be trained"
                if source != Format.TORCH
                else "the recipe has no data.training"
            )
            left.append(f"Pruning and training were not tried: {why}.")
        prunes = can_train and recipe.tune.prune
        if prunes and environment.missing(passes.find("prune").needs):
            left.append("Pruning was not tried: Torch-Pruning is not installed.")
            prunes = False
        aware = can_train and recipe.tune.quantize_aware
        if aware and (missing := environment.missing(passes.find("quantize_aware").needs)):
            left.append(f"Quantization-aware training was not tried: {missing[0].what}.")
            aware = False
        usual = recipe.latency.threads or environment.usable_cores()
        return cls(
            recipe,
            source,
            tuple(precisions),  # a runtime without a precision is not in the space
            precisions,
            can_train and wants,
            prunes,
            aware,
            recipe.tune.threads or _threads(recipe, usual),
            further=_fitting(recipe, reads, (source, *_formats(tuple(precisions))), left),
            left_out=tuple(left),
        )

    def options(self, parameters: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """Options of quantizer and runner that may have other values, which cost no training.

        `None` leaves the default of the pass or the runner.
        """
        runtime, precision = parameters["runtime"], parameters["precision"]
        options: dict[str, tuple[Any, ...]] = {}
        if precision == "int8" and not parameters.get("aware_s"):
            options |= _OPTIONS[parameters.get("quantizer", self.quantizers(runtime)[0])]
            options["rest"] = self.rests(runtime)
        if len(self.threads) > 1:
            options["threads"] = self.threads
        if runtime in ("openvino", "onnxruntime"):
            options["shapes"] = ("static", "dynamic")
        if self._has_layouts(runtime, precision):
            options["layout"] = (None, "channels_last")
        if runtime == "onnxruntime":
            options["optimization_level"] = (None, "extended")
        if runtime == "openvino" and self.recipe.tune.objective == "throughput":
            options["hint"] = ("latency", "throughput")
        return options

    def rests(self, runtime: str) -> tuple[str | None, ...]:
        """What an INT8 network may compute in what is not quantized; None is FP32."""
        wide = runtime == "openvino" and "bf16" in self.precisions.get(runtime, ())
        return ("bf16", None) if wide else (None,)

    def _has_layouts(self, runtime: str, precision: str) -> bool:
        """Whether the layout of images is a choice: other runtimes and INT8 have their own."""
        return runtime == "pytorch" and precision == "fp32" and self.source == Format.TORCH

    def trains_quantized(self, runtime: str) -> bool:
        """Whether a network can be trained with the roundings of this runtime in it."""
        return self.aware and runtime in _AWARE

    def quantizers(self, runtime: str) -> tuple[str, ...]:
        """What quantizes to INT8 for a runtime, as far as it is installed."""
        known = _QUANTIZERS[runtime]
        return tuple(n for n in known if not environment.missing(passes.find(n).needs)) or known

    def candidate(self, parameters: Mapping[str, Any]) -> TrialCandidate:
        """Passes and runner of these parameters; those that say nothing may be missing."""
        uses = [*self._network(parameters), *self._compiled(parameters)]
        return TrialCandidate(
            tuple(uses), self._runner(parameters), _label(parameters), dict(parameters)
        )

    def _network(self, parameters: Mapping[str, Any]) -> Iterator[Use]:
        """What is removed, and how what is left learns: what was `learned` before, then the rest.

        `blocks` and `width` are shares of the whole network, and a pass takes shares of what is left.
        """
        yield from self._further(parameters, self.source)
        gone: dict[str, float] = {"blocks": 0.0, "width": 0.0}
        for cut in (*parameters.get("learned", ()), parameters):
            shares = {key: _share_left(cut.get(key, 0.0), gone[key]) for key in gone}
            gone = {key: max(gone[key], cut.get(key, 0.0)) for key in gone}
            names = {"block_ratio": shares["blocks"], "ratio": shares["width"]}
            options: dict[str, Any] = {name: share for name, share in names.items() if share}
            if options:
                if "block_ratio" in options and self._pixels > _FEW_PIXELS:
                    options["block_samples"] = _BLOCK_SAMPLES
                if "calibration" in self.recipe.data:
                    options["reconstruct"] = True
                yield "prune", options
            yield from self._learning(cut)

    def _learning(self, cut: Mapping[str, Any]) -> Iterator[Use]:
        for key in ("train_s", "more_s"):
            if cut.get(key):
                options = self.finetuning(cut[key])
                if key == "train_s":
                    options |= self._early_end(cut)
                if cut.get("rate"):
                    options["learning_rate"] = cut["rate"]
                if cut.get("feature_weight"):
                    options["feature_weight"] = cut["feature_weight"]
                yield "finetune", {"batch_size": _BATCH, **options, "augment": "auto"}

    def finetuning(self, seconds: float) -> dict[str, Any]:
        """Options of a pass that trains for so many seconds."""
        # The last epoch counts: validation samples choose between trials, and nothing within one.
        options = {"epochs": _MOST_EPOCHS, "max_minutes": round(seconds / 60, 2)}
        if self._pixels * _BATCH > _PIXELS:
            options["batch_size"] = max(_LEAST_BATCH, 1 << (_PIXELS // self._pixels).bit_length() - 1)
        return {**options, "validate_epochs": False}

    @property
    def _pixels(self) -> int:
        """Pixels of an image; 1 where the network takes no images."""
        return prod(image_size(self.recipe.inputs) or ())

    def _early_end(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Where a training may end early, by samples that are held out of it.

        Those of validation would choose twice. Held-out samples are judged by top-1, which a detector
        does not have.
        """
        accuracy = self.recipe.accuracy
        if self.recipe.postprocess is not None:
            return {}
        ends = {"stop_at_drop": parameters.get("stop_at", 0.0)}
        if accuracy is not None and accuracy.metric == "top1":
            ends["give_up_at_drop"] = min(1.0, max(_LEAST_HOPELESS, _HOPELESS * accuracy.bar(1.0)))
        return ends

    def _compiled(self, parameters: Mapping[str, Any]) -> Iterator[Use]:
        """From the network to what the runtime reads, quantized on the way where that is wanted."""
        runtime, precision = parameters["runtime"], parameters["precision"]
        aware_s = parameters.get("aware_s", 0)
        if precision == "int8" and aware_s:
            options = {**self.finetuning(aware_s), **self._early_end(parameters)}
            yield "quantize_aware", {"to": _AWARE[runtime], **options}
            return
        if runtime == "pytorch":
            if precision == "int8":
                yield "quantize_pt2e", _options("quantize_pt2e", parameters)
            elif parameters.get("layout"):
                yield parameters["layout"], {}
            yield "aot_inductor", {}
            return
        ahead = _QUANTIZED_AHEAD.get(runtime)
        if ahead and precision == "int8":
            (quantizer,) = self.quantizers(runtime)
            yield quantizer, {**ahead, **_options(quantizer, parameters)}
        for name in passes_between(self.source, (_FORMATS[runtime],)) or ():
            yield name, {}
        if _FORMATS[runtime] != self.source:
            yield from self._further(parameters, _FORMATS[runtime])
        if precision == "int8" and not ahead:
            quantizer = parameters.get("quantizer", self.quantizers(runtime)[0])
            floats = parameters.get("floats", {})
            ignored = {"ignored_names": sorted(floats["names"])} if floats else {}
            yield quantizer, {**_options(quantizer, parameters), **ignored}
        elif precision in _UNCALIBRATED:
            yield _OWN_UNCALIBRATED.get(runtime, _UNCALIBRATED)[precision]

    def _further(self, parameters: Mapping[str, Any], at: Format) -> Iterator[Use]:
        """Passes that `tune.passes` names, each at the first format of the chain that it reads."""
        chain = (self.source, *_formats((parameters["runtime"],)))
        for name, options in parameters.get("passes", {}).items():
            reads = self.further.get(name, ())
            if next((each for each in chain if each in reads), None) == at:
                yield name, dict(options)

    def _runner(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        runtime = parameters["runtime"]
        runner: dict[str, Any] = {"name": _RUNNERS.get(runtime, runtime)}
        computed_in = _COMPUTED_IN.get(parameters.get("rest") or parameters["precision"])
        if runtime == "openvino" and computed_in:
            runner["precision"] = computed_in
        for key in _RUNNER_OPTIONS:
            if parameters.get(key) is not None:
                runner[key] = parameters[key]
        return runner


def _threads(recipe: Recipe, usual: int) -> tuple[int, ...]:
    """One thread answers the most images in a core-hour, unless synchronising them costs nothing."""
    return (1, usual) if recipe.tune.objective == "cost" and usual > 1 else (usual,)


def _share_left(share: float, gone: float) -> float:
    """What to remove of what is left, so that this share of the whole is gone."""
    return round((share - gone) / (1.0 - gone), 3) if share > gone else 0.0


def _formats(runtimes: Sequence[str]) -> tuple[Format, ...]:
    """The formats that some runtimes compute from, as far as further passes may change them."""
    return tuple(_FORMATS[name] for name in runtimes if name in _FORMATS)


def _fitting(
    recipe: Recipe,
    reads: Mapping[str, tuple[Format, ...]],
    formats: Sequence[Format],
    left: list[str],
) -> dict[str, tuple[Format, ...]]:
    """The passes of `tune.passes` that read one of these formats; the others are said."""
    fitting: dict[str, tuple[Format, ...]] = {}
    for name in recipe.tune.passes:
        its = passes.find(name).accepts if name in passes.own_names() else reads.get(name, ())
        if any(each in formats for each in its):
            fitting[name] = tuple(its)
        else:
            has = ", ".join(dict.fromkeys(map(str, formats)))
            left.append(f"{name} was not tried: it reads {', '.join(its)}, and the search has {has}.")
    return fitting


def _options(quantizer: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    named = {option: parameters.get(option) for option in _OPTIONS[quantizer]}
    # ONNX Runtime wants a share beside this method only.
    return {option: value for option, value in named.items() if value is not None}


def _runtimes(recipe: Recipe, source: Format, left: list[str]) -> Iterator[str]:
    for name in recipe.tune.runtimes or RUNTIMES:
        path = passes_between(source, (_FORMATS[name],)) if name in _FORMATS else ()
        needs = [runners.find(_RUNNERS.get(name, name)).needs]
        needs += [passes.find(each).needs for each in path or ()]
        missing = [one for each in needs for one in environment.missing(each)]
        if missing:
            left.append(f"{name} was not tried: {missing[0].what}.")
        elif name == "pytorch" and source not in (Format.TORCH, Format.EXPORTED):
            left.append(f"pytorch was not tried: the model comes as {source}.")
        elif path is None:
            left.append(f"{name} was not tried: no passes lead from {source} to it.")
        else:
            yield name


def _precisions(recipe: Recipe, runtime: str, left: list[str]) -> Iterator[str]:
    for precision in recipe.tune.precisions or PRECISIONS:
        if precision not in _OTHER_PRECISIONS[runtime]:
            if recipe.tune.precisions:  # else nobody asked for it
                left.append(f"{precision} was not tried in {runtime}: no pass makes it.")
            continue
        if precision in ("bf16", "fp16") and not environment.computes_in(precision):
            sentence = f"{precision} was not tried: this CPU has no instructions for it."
            if sentence not in left:
                left.append(sentence)
        elif precision == "int8" and "calibration" not in recipe.data:
            sentence = "Static INT8 was not tried: the recipe has no data.calibration."
            if sentence not in left:
                left.append(sentence)
        else:
            yield precision


def _label(parameters: Mapping[str, Any]) -> str:
    """The parameters in a few words: `openvino int8, 40 % of the blocks removed`."""
    words = [f"{parameters['runtime']} {parameters['precision']}"]
    quantizer = parameters.get("quantizer")
    if parameters.get("aware_s"):
        words[0] += f" by quantization-aware training ({parameters['aware_s']} s)"
    elif quantizer:
        words[0] += f" by {quantizer}"
    if parameters.get("layout"):
        words.append("channels last")
    if parameters.get("rest"):
        words.append(f"float layers in {parameters['rest']}")
    if parameters.get("floats"):
        words.append(parameters["floats"]["label"])
    for key in _LABELLED:
        if parameters.get(key) is not None:
            words.append(f"{key} {str(parameters[key]).lower()}")
    if parameters.get("blocks"):
        words.append(f"{100 * parameters['blocks']:.0f} % of the blocks removed")
    if parameters.get("width"):
        words.append(f"{100 * parameters['width']:.0f} % of the channels removed")
    trained = sum(
        cut.get("train_s", 0) + cut.get("more_s", 0)
        for cut in (*parameters.get("learned", ()), parameters)
    )
    if trained:
        words.append(f"trained for {trained} s")
    for key in _RUNNER_OPTIONS:
        if parameters.get(key) is not None:
            words.append(f"{key.replace('_', ' ')} {parameters[key]}")
    words += parameters.get("passes", {})
    return ", ".join(words)
