"""What stands below the table: reasons, what was left out, what to distrust, how it was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from optcli import environment
from optcli.artifact import OUTPUT_TAIL, RUINED_LAYERS, SLOW_INTEGERS, costly_packing, has_own_model
from optcli.errors import counted, plural, shown_path
from optcli.report import engines, wording
from optcli.report.rows import fastest_fp32
from optcli.results import Report, VariantReport
from optcli.results.outcomes import ACCURACY_VERDICTS, POLICIES, Layers
from optcli.results.serving import ServingChoice
from optcli.results.tuning import Repair

# How many operators a line names; the others are counted.
_LISTED = 3


# Batch sizes in words, of a report that may be from elsewhere.
_SIZES = re.compile(r"[\w, ]{1,1000}")


def notes(report: Report) -> dict[str, list[str]]:
    """What stands below the tables, by title; without what has nothing to say."""
    sections = {
        "Failed or skipped": _missing(report),
        "Verdicts": (*_reasons(report), *_siblings(report), *_packing(report)),
        "Kept in floating point": _floats(report),
        "Engines": engines.lines(report),
        "Found since the build": _later(report),
        "Doubts about the measurement": _doubts(report),
    }
    return {title: lines for title, each in sections.items() if (lines := list(each))}


def advice(report: Report) -> str:
    """The recommendation; with the device that it holds for, where the recipe asks for devices."""
    on = f"On {report.device}: " if report.device is not None and report.recommendation else ""
    return f"{on}{report.recommendation}"


def serving_line(report: Report) -> str:
    """The plan of a build in one line; empty where its recipe names no rate."""
    choice = report.serving
    if choice is None:
        return ""
    again = f"`optcli plan {report.recipe.path or report.recipe.name} --variant {choice.variant}"
    more = f"{again} --rate {choice.rate_per_s:g} {_slo(choice)}` says more"
    begin = f"Serving {choice.variant} at {wording.number(choice.rate_per_s)} requests a second"
    if not choice.fit:
        return f"{begin}: its latency was measured on a busy machine, so that nothing is planned."
    if not choice.kept:
        return f"{begin}: no configuration keeps {_promised(choice)}; {more}."
    figures = ", ".join(
        f"{name} {choice.figures_ms[name]:.3g} of {limit:g} ms" for name, limit in choice.slo_ms.items()
    )
    count = counted(choice.instances or 0, "instance")
    how = "one request at a time"
    if choice.batch is not None and choice.batch > 1:
        how = f"batches of at most {choice.batch}, waiting at most {choice.wait_ms:g} ms"
        if choice.padded_from:
            how += f" (the server pads {wording.padded(choice.padded_from)})"
    return f"{begin}: {how}, {count} with 20 % headroom, {figures}, queue included; {more}."


def _promised(choice: ServingChoice) -> str:
    return " and ".join(f"{name} {limit:g} ms" for name, limit in choice.slo_ms.items())


def _slo(choice: ServingChoice) -> str:
    return " ".join(f"--slo {name}={limit:g}ms" for name, limit in choice.slo_ms.items())


def ending(report: Report) -> str:
    """`exit 0: onnx-int8 is accepted and recommended`; empty where the report says no reason."""
    return f"exit {report.exit_code}: {report.exit_reason}" if report.exit_reason else ""


def _reasons(report: Report) -> Iterator[str]:
    """What was not accepted and why; several variants of one reason share a line."""
    variants_of: dict[str, list[str]] = {}
    for name, variant in report.variants.items():
        for each in variant.verdicts:
            # The policy that does not decide is worth a note only where it rejects.
            aside = each.name in POLICIES and each.outcome == "inconclusive"
            if each.outcome == "accept" or aside:
                continue
            word = {"reject": "rejected", "inconclusive": "inconclusive"}[each.outcome]
            label = f"{each.name} {word}" if each.blocking else each.name
            variants_of.setdefault(f"{label}: {each.reason}", []).append(name)
    yield from (f"{wording.listed(names)}: {reason}" for reason, names in variants_of.items())


def _siblings(report: Report) -> Iterator[str]:
    """For each quantized variant that lost too much by labels: which ones hold, and its repair."""
    for name, variant in report.variants.items():
        precision = _integers(variant)
        labelled = variant.accuracy is not None and variant.accuracy.metric is not None
        if not labelled or precision is None or _judged(variant) != "reject":
            continue
        others = [
            other
            for other, each in report.variants.items()
            if _integers(each) == precision and _judged(each) == "accept"
        ]
        verb = "is" if len(others) == 1 else "are"
        held = (
            f"{wording.listed(others)} {verb} {precision} too, and inside the bar. " if others else ""
        )
        repair = f"`optcli tune {report.recipe.path} --from {name}`"
        yield f"{name}: {held}{repair} looks for settings that keep it inside"


def _judged(variant: VariantReport) -> str:
    """The outcome of its accuracy: a rejection by any verdict about it, else that of the main one."""
    outcomes = {each.name: each.outcome for each in variant.verdicts if each.name in ACCURACY_VERDICTS}
    if "reject" in outcomes.values():
        return "reject"
    return outcomes.get("accuracy", outcomes.get("outputs", "inconclusive"))


def _integers(variant: VariantReport) -> str | None:
    """The integer precision of what was built; None where there is none."""
    precision = variant.artifact.precision if variant.artifact else ""
    return precision if precision.startswith("int") else None


def _packing(report: Report) -> Iterator[str]:
    """Variants that pack weights on every call, at a batch size at which they were measured."""
    for name, variant in report.variants.items():
        facts = variant.steps[-1].facts if variant.steps else {}
        calls = costly_packing(facts)
        if calls:
            remedy = "fix the batch, or set `shapes: auto`"
            if variant.steps[-1].name == "torch_compile":
                remedy = "set `dynamic: false`"
            elif all(has_own_model(facts, size) for size in calls):
                remedy = "a fixed batch does not change that"
            sizes = wording.listed([f"{size} ({count} of them)" for size, count in calls.items()])
            yield (f"{name}: weights are packed on every call at batch size {sizes}; {remedy}")


# Facts that name what was not quantized, the kind of each, and the reason in words.
_PROMISES: tuple[tuple[str, Any, str], ...] = (
    (
        OUTPUT_TAIL,
        list | tuple,
        "behind the last layers, where values of different range meet; none of them is a layer, and"
        " they take as long as in the float model",
    ),
    (
        SLOW_INTEGERS,
        list | tuple,
        "all operators of these kinds: XNNPACK computes them in floating point, and not in integers"
        " (`whole: true` quantizes them too)",
    ),
    (
        RUINED_LAYERS,
        dict,
        "with what computes the values they read: integers would ruin them (`least_layer_sqnr`)",
    ),
)


def _floats(report: Report) -> Iterator[str]:
    """Operators that were not quantized; a line for all variants that keep the same, for one reason."""
    for fact, kind, reason in _PROMISES:
        variants_of: dict[str, list[str]] = {}
        for name, variant in report.variants.items():
            facts = variant.steps[-1].facts if variant.steps else {}
            operators = facts.get(fact)
            if not (isinstance(operators, kind) and operators):
                continue
            each = [*map(str, operators)]
            if isinstance(operators, dict):
                each = [f"{operator} ({decibels} dB)" for operator, decibels in operators.items()]
            more = f" and {len(each) - _LISTED} more" if len(each) > _LISTED else ""
            variants_of.setdefault(f"{', '.join(each[:_LISTED])}{more}", []).append(name)
        yield from (
            f"{wording.listed(names)}: {named}, {reason}" for named, names in variants_of.items()
        )


def _missing(report: Report) -> Iterator[str]:
    """Why variants were not built, or what else is said of them; those of one failed step together."""
    said: dict[str, list[str]] = {}
    for name, variant in report.variants.items():
        if variant.status in ("failed", "skipped"):
            log = f" (log: {shown_path(variant.log)})" if variant.log else ""
            repeat = next((step.repeat for step in variant.steps if step.status == "failed"), None)
            again = f"\n  repeat it: {repeat}" if repeat else ""
            again += "".join(f"\n  checked: {text}" for text in variant.checked)
            needed = variant.required and variant.status == "skipped"
            status = f"{variant.status} although required" if needed else variant.status
            text = f" {status}: {variant.reason or 'no reason given'}{log}{again}"
        elif variant.reason:
            text = f": {variant.reason}"
        else:
            continue
        said.setdefault(text, []).append(name)
    yield from (f"{wording.listed(names)}{text}" for text, names in said.items())


def _doubts(report: Report) -> Iterator[str]:
    """Flags by kind, each with the variants it concerns, so that a noisy hour fits on few lines.

    One wording for all of them is said in full, several by what they have in common.
    """
    kinds: dict[str, dict[str, list[str]]] = {}
    measured = [name for name, variant in report.variants.items() if variant.latency]
    several = len({row.batch_size for v in report.variants.values() for row in v.latency}) > 1
    for name in measured:
        for row in report.variants[name].latency:
            where = f"{name} (batch {row.batch_size})" if several else name
            where += " on the device" if row.region == "device" else ""
            for flag in row.flags:
                kinds.setdefault(flag.summary, {}).setdefault(flag.text, []).append(where)
    rows = sum(len(report.variants[name].latency) for name in measured)
    for summary, texts in kinds.items():
        names = [name for concerned in texts.values() for name in concerned]
        who = "all" if len(names) == rows > 1 else wording.listed(names)
        yield f"{next(iter(texts)) if len(texts) == 1 else summary}: {who}"
    # Shares of the peak that cannot be, and those of disturbed times.
    for name, variant in report.variants.items():
        for share in variant.operations.shares if variant.operations else ():
            yield from (f"{name} (batch {share.batch_size}): {flag.text}" for flag in share.flags)


_LIMITS = (
    "GOP: 10^9 operations of a call's convolutions and matrix products, two for a multiply-accumulate."
    " Of peak: how near that came, at the median, to what this machine can do at most with as many"
    " threads, in the precision (compute) or for the bytes that must move (memory); the brackets are"
    " p50's, the peak is taken as it was measured."
)


def footer(report: Report) -> list[str]:
    """How it was measured, and what the figures mean."""
    lines = []
    if any(variant.operations for variant in report.variants.values()):
        lines.append(_LIMITS)
    if any(variant.latency for variant in report.variants.values()):
        lines += [_measured(report), _meaning(report)]
        lines += device_lines(report)
        lines += _static(report)
        times = {row.measured_at for variant in report.variants.values() for row in variant.latency}
        ages = sorted(age for then in times if (age := wording.age(then, report.started)))
        if ages:
            lines.append(f"Latency was measured {ages[0]} before this build and reused.")
    lines += _evaluated(report)
    return lines


def _measured(report: Report) -> str:
    how = report.protocol
    calls = how.get("calls_per_round") or [0, 0]
    count = f"{calls[0]}" if calls[0] == calls[1] else f"{calls[0]} to {calls[1]}"
    threads = [str(each) for each in how.get("threads", [])]
    cpu = report.environment.get("cpu", {}).get("model", "this machine")
    launches = how.get("launches", 1)
    groups = how.get("groups", [])
    apart = f", in {len(groups)} groups, each with the baseline" if len(groups) > 1 else ""
    cores = report.environment.get("cores", "?")
    return (
        f"Latency: {how.get('mode', 'quick')} mode, {counted(launches, 'launch', 'launches')}"
        f" of each artifact in its own process, {how.get('rounds', '?')} rounds of {count} calls"
        f" taking turns in random order{apart}, {' or '.join(threads) or '?'}"
        f" thread{'' if threads == ['1'] else 's'},"
        f" inputs: {how.get('inputs', 'unknown')}; on {cpu}, {cores} cores."
    )


def _meaning(report: Report) -> str:
    noun = "launch" if report.protocol.get("launches", 1) > 1 else "round"
    over = {"launch": "launches", "round": "rounds"}[noun]
    on_device = any(variant.on_device for variant in report.variants.values())
    device = " Device: computing alone, by the GPU's own events." if on_device else ""
    return (
        f"A call hands the inputs over, computes and copies the outputs.{device}"
        f" Brackets hold 95 % intervals over {over}, ± is the wider half of one;"
        f" the speed-up is over {report.baseline}, paired {noun} by {noun}.{_fp32(report)}"
    )


def _fp32(report: Report) -> str:
    """What the column beside the speed-up compares with."""
    fastest = fastest_fp32(report)
    if not fastest:
        return ""
    names = dict.fromkeys(fastest.values())
    which = ", ".join(
        f"{name} at batch size {wording.listed([str(s) for s, one in fastest.items() if one == name])}"
        if len(names) > 1
        else name
        for name in names
    )
    return f" vs fp32: over the fastest that computes the unchanged network in fp32, {which}."


def _static(report: Report) -> Iterator[str]:
    """Which artifacts were compiled for single batch sizes, and what that gained where compared."""
    names_of: dict[str, list[str]] = {}
    for name, variant in report.variants.items():
        runner = variant.runner or {}
        sizes, gains = runner.get("compiled_batch_sizes"), runner.get("static_gains")
        own = {str(size) for size in sizes} if isinstance(sizes, list) else ()
        compiled = runner.get("compiled_for")  # AOTInductor: it may take any other size as well
        if isinstance(sizes, list):
            noun = plural(len(sizes), "batch size")
            compiled = f"{noun} {wording.listed([*map(str, sizes)])} alone"
        if not variant.latency or not isinstance(compiled, str) or not _SIZES.fullmatch(compiled):
            continue
        gained = ""
        if isinstance(gains, dict) and gains:
            known = [gain for size, gain in gains.items() if size in own]
            times = [f"{gain:.3g}" for gain in known if isinstance(gain, int | float)]
            gained = f" ({wording.listed(times)} times as fast as one form for all)"
        names_of.setdefault(compiled, []).append(f"{name}{gained}")
    for compiled, names in names_of.items():
        yield f"Compiled for {compiled}: {wording.listed(names)}."


def _evaluated(report: Report) -> list[str]:
    judged = [v.accuracy for v in report.variants.values() if v.accuracy is not None]
    if not judged:
        others = [v for name, v in report.variants.items() if v.artifact and name != report.baseline]
        is_explained = not others or any(v.status == "failed" for v in report.variants.values())
        why = "the recipe names no data: evaluation" if report.recipe.path else "speed alone was asked"
        return [] if is_explained else [f"Outputs were not compared: {why}."]
    count = judged[0].samples
    metric = next((accuracy.metric for accuracy in judged if accuracy.metric), None)
    if metric is None:
        return [f"Outputs were compared with {report.baseline}'s on the same {count} samples."]
    return [
        f"Accuracy: {metric} on the same {count} samples for all, each artifact in its own runtime."
    ]


def device_lines(report: Report) -> Iterator[str]:
    """The device's processor, GPUs, state and versions; nothing where the recipe asks for no device."""
    if report.device is None:
        return
    machine = report.environment
    parts = [_processor(machine), *_gpus(machine), *_state(report), *_versions(machine)]
    yield f"{report.device}: {'; '.join(parts)}."
    yield from _judged_elsewhere(report)


def _processor(machine: Mapping[str, Any]) -> str:
    cores = machine.get("cores", "?")
    model = _of(machine, "cpu").get("model", "unknown processor")
    return f"{model}, {counted(cores, 'core')}, {machine.get('system', 'unknown system')}"


def _gpus(machine: Mapping[str, Any]) -> Iterator[str]:
    models = machine.get("gpu_models")
    for model in models if isinstance(models, list) else ():
        if isinstance(model, Mapping):
            yield f"{model.get('name', 'GPU')}, driver {model.get('driver_version', 'unknown')}"


def _state(report: Report) -> Iterator[str]:
    """Governor and temperature, as far as the device told them."""
    before, after = (_of(_of(report.protocol, "conditions"), when) for when in ("before", "after"))
    if before.get("governor"):
        yield f"governor {before['governor']}"
    temperatures = [each.get("temperature_c") for each in (before, after)]
    known = [f"{each:.0f}" for each in temperatures if isinstance(each, int | float)]
    if known:
        yield f"{' to '.join(dict.fromkeys(known))} °C"
    gpus = after.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else ():
        if isinstance(gpu, Mapping) and gpu.get("temperature.gpu"):
            yield f"GPU {gpu['temperature.gpu']} °C"


def _versions(machine: Mapping[str, Any]) -> Iterator[str]:
    versions = {"python": machine.get("python"), **_of(machine, "versions")}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    if known:
        yield ", ".join(known)


def _judged_elsewhere(report: Report) -> Iterator[str]:
    """Integer sums differ between processors: what was accurate on one may not be on another."""
    flags = _of(report.environment, "cpu").get("flags")
    judged = {each.accuracy.isa for each in report.variants.values() if each.accuracy is not None}
    if not isinstance(flags, list) or not flags:
        return
    here = environment.isa_of(flags, str(_of(report.environment, "cpu").get("machine", "")))
    for isa in sorted(each for each in judged if each is not None and each != here):
        yield (
            f"Accuracy was judged on a processor with {isa}; {report.device} has {here}, where 8-bit"
            " models may be less accurate."
        )


def _of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping within another; reports from elsewhere may hold anything."""
    inner = values.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _later(report: Report) -> Iterator[str]:
    """One line for each variant whose layers were compared, and for each that was repaired."""
    for name, variant in report.variants.items():
        if variant.layers is not None:
            yield f"{name}: {_start(variant.layers)}"
        if variant.repair is not None:
            yield f"{name}: {_repair(variant.repair)}"


def _start(layers: Layers) -> str:
    worst = next((row for row in layers.rows if row.rank != float("inf")), None)
    if worst is None:
        return layers.reason or f"no layer adds an error, of {layers.compared} tensors"
    level = "not finite" if worst.own_db is None else f"{worst.own_db:.1f} dB of signal to noise"
    advice = f"; try {worst.advice}" if worst.advice else ""
    return (
        f"the error starts at {worst.node or worst.tensor} ({worst.operator}, {worst.kind}: {level},"
        f" the worst of {layers.compared} tensors){advice}"
    )


def _repair(repair: Repair) -> str:
    count = len(repair.trials) - 1
    best = repair.best
    if best is None:
        return f"no repair in {count} trials: none is inside the bar"
    value = "" if best.value is None else f", {repair.metric} {wording.percent(best.value)}"
    speed = "" if best.speedup is None else f", {wording.times(best.speedup)} as fast as in float"
    word = (
        "repaired" if repair.outcome == "repaired" else "inside the bar again, but perhaps not faster"
    )
    return f"{word} by trial {best.number} of {count} ({best.label}){value}{speed}"
