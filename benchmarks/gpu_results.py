"""What `gpu_check.py` found: rows of reports, bars, and the file that is kept."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import checked

_FASTER, _NEAR = 2.5, 0.03
# Least signal to noise in decibel of outputs against FP32, by what computes. For the halves it is 6 dB
# below what PyTorch computes on a CPU with the network that loses most, ResNet-50: 33.9 dB in fp16 and
# 20.0 in bf16 (gpu_networks.py). TF32 has the mantissa of fp16.
_SQNR_DB = {"fp32": 80.0, "tf32": 28.0, "fp16": 28.0, "bf16": 14.0, "int8": 12.0, "fp8": 12.0}


def rows(report: dict[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What one build says of some of its variants, in short."""
    found = {}
    for name in names:
        variant = report["variants"].get(name)
        if variant is None:
            found[name] = {"note": report.get("reason", "not in the report")}
            continue
        runner, judged = variant.get("runner") or {}, variant.get("accuracy") or {}
        flags = [flag["text"] for row in variant["latency"] for flag in row["flags"]]
        found[name] = {
            "status": variant["status"],
            "note": variant["reason"] or "; ".join(dict.fromkeys(flags)),
            "precision": runner.get("precision"),
            "provider": runner.get("provider"),
            "build_s": variant["build_s"],
            "latency": [_latency(row) for row in variant["latency"]],
            "sqnr_db": (judged.get("output_error") or {}).get("sqnr_db"),
            "agreement": judged.get("agreement"),
            "metric": judged.get("metric"),
            "value": judged.get("value"),
        }
    return found


def _latency(row: dict[str, Any]) -> dict[str, Any]:
    speedup = row["speedup"] or {}
    kept = {key: row[key] for key in ("batch_size", "region", "samples", "peak_gpu_memory_bytes")}
    return {**kept, "p50_ms": row["p50_ms"], "speedup": speedup.get("value")}


def p50(row: dict[str, Any], batch_size: int, region: str) -> float | None:
    """Milliseconds of the median call, None where it was not measured."""
    for each in row.get("latency", ()):
        if each["batch_size"] == batch_size and each["region"] == region:
            return float(each["p50_ms"]["value"])
    return None


def alone(code: int | None, text: str) -> dict[str, Any]:
    """The median device time that the bare loop or trtexec printed; None, and why, where it failed.

    `code` is what it ended with, None where there was no time for it.
    """
    if code != 0:
        reason = "did not end in time" if code is None else f"ended with {code}"
        return {"p50_ms": None, "failed": reason, "printed": checked.tail(text)}
    for line in text.splitlines():
        if line.startswith('{"p50_ms"'):
            return {"by": "bare loop", "p50_ms": json.loads(line)["p50_ms"]}
        if found := re.search(r"GPU Compute Time: .*\bmedian = ([\d.]+) ms", line):
            return {"by": "trtexec", "p50_ms": float(found[1])}
    return {"p50_ms": None, "failed": "printed no median", "printed": checked.tail(text)}


def measured(network: dict[str, dict[str, Any]]) -> bool:
    """Whether every variant of a network has a latency."""
    return bool(network) and all(row.get("latency") for row in network.values())


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What must hold, and whether it does: `pass`, `fail` or `unknown`."""
    made = [_faster(found["networks"].get("resnet50", {}))]
    if found["tests"] is not None:
        code = found["tests"]["exit_code"]
        outcome = "pass" if code == 0 else "unknown" if code in (None, 5) else "fail"
        made.append({"bar": "tests marked gpu", "outcome": outcome, "found": found["tests"]["summary"]})
    for network, variants in found["networks"].items():
        for name, row in variants.items():
            made.extend(_of_row(f"{network} {name}", name, row))
    return made


def _faster(resnet: dict[str, dict[str, Any]]) -> dict[str, Any]:
    bar = f"resnet50: TensorRT FP16 at least {_FASTER} times as fast as eager FP32 at batch size 8"
    eager, engine = (resnet.get(name, {}) for name in ("eager", "trt-fp16"))
    for region in ("device", "host"):
        slow, fast = p50(eager, 8, region), p50(engine, 8, region)
        if slow is not None and fast is not None:
            ratio = slow / fast
            said = f"{ratio:.2f} times ({region})"
            return {"bar": bar, "outcome": "pass" if ratio >= _FASTER else "fail", "found": said}
    return {"bar": bar, "outcome": "unknown", "found": "not measured"}


def _of_row(title: str, name: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    alone = row.get("alone")
    if alone is not None:
        ours = p50(row, alone["batch_size"], "device")
        if alone["p50_ms"] is None:
            outcome, said = "unknown", f"the loop alone {alone['failed']}"
        else:
            ratio = ours / alone["p50_ms"] if ours else float("nan")
            said = f"{ours:.3f} ms, {alone['by']} {alone['p50_ms']:.3f} ms ({ratio - 1:+.1%})"
            outcome = "pass" if abs(ratio - 1) <= _NEAR else "fail"
        made.append({"bar": f"{title}: device time within 3 %", "outcome": outcome, "found": said})
    wanted = _SQNR_DB.get(name.partition("-")[2]) if name.startswith(("trt-", "rtx-")) else None
    sqnr = row.get("sqnr_db")
    if wanted is not None and sqnr is not None:
        outcome = "pass" if sqnr >= wanted else "fail"
        said = f"{sqnr:.1f} dB"
        made.append({"bar": f"{title}: at least {wanted:.0f} dB", "outcome": outcome, "found": said})
    return made


def write(found: dict[str, Any], path: Path) -> None:
    """Keep it as JSON and as Markdown, each replaced at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for file, text in ((path, json.dumps(found, indent=1)), (path.with_suffix(".md"), markdown(found))):
        beside = file.with_suffix(file.suffix + ".part")
        beside.write_text(text + "\n")
        os.replace(beside, file)


def markdown(found: dict[str, Any]) -> str:
    """The same to be read."""
    gpus = [f"{one['name']} (compute capability {one['compute_capability']}, driver {one['driver']}, "
            f"CUDA {one['cuda']})" for one in found["gpu"]]  # fmt: skip
    versions = ", ".join(f"{name} {each}" for name, each in found["versions"].items() if each)
    lines = [f"# GPU check of {found['started'][:10]}", "", f"    {found['command']}", ""]
    lines += [f"GPU: {'; '.join(gpus) or 'none'}. {versions}. {found['minutes']} minutes.", ""]
    lines += ["| bar | outcome | found |", "| --- | --- | --- |"]
    lines += [f"| {bar['bar']} | {bar['outcome']} | {bar['found']} |" for bar in bars(found)]
    for network, variants in found["networks"].items():
        sizes = sorted(
            {each["batch_size"] for row in variants.values() for each in row.get("latency", ())}
        )
        heads = [f"{region} p50 ms at {size}" for region in ("host", "device") for size in sizes]
        heads = [
            "variant",
            "precision",
            *heads,
            f"speed-up at {max(sizes, default=0)}",
            "SQNR dB",
            "agreement",
            "note",
        ]
        lines += ["", f"## {network}", "", _cells(heads), _cells(["---"] * len(heads))]
        lines += [_cells(_shown(name, row, sizes)) for name, row in variants.items()]
    return "\n".join(lines)


def _shown(name: str, row: dict[str, Any], sizes: Sequence[int]) -> list[str]:
    times = [p50(row, size, region) for region in ("host", "device") for size in sizes]
    hosts = [each for each in row.get("latency", ()) if each["region"] == "host"]
    speedup = hosts[-1]["speedup"] if hosts else None
    numbers = [(speedup, ".2f"), (row.get("sqnr_db"), ".1f"), (row.get("agreement"), ".4f")]
    figures = [format(value, shape) if value is not None else "" for value, shape in numbers]
    shown = [f"{each:.3f}" if each is not None else "" for each in times]
    note = (row.get("note") or "").replace("|", "/").replace("\n", " ")
    return [name, row.get("precision") or "", *shown, *figures, note]


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
