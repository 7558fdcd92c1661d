"""What `tune_peers.py` says of its measurements: ratios, losses, means, limits; the file of results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import peers
from tune_networks import NETWORKS, Network

# Geometric means of the trained networks by batch size, and the least of each network.
MEANS = {"1": 1.3, "8": 1.5}
LEAST = 0.98
HONEST = 0.95
# What the peer is called that Olive's search makes.
OLIVE = "onnx-olive"
KINDS = ("trained", "without training", "trained here")
# Minutes beside the search: peers, judging and turns. ViT-tiny took 4.6; large networks compile longer.
_BESIDE_SMALL, _BESIDE_LARGE = 6.0, 20.0
# Olive's search goes on after its time: it took 20 minutes of 15 (ResNet-56, MobileNetV3-small).
_OLIVE_TAKES = 4 / 3


def inside(loss: float, bar: float) -> bool:
    """Whether a loss lies inside the bar, but for the rounding of fractions."""
    return loss <= bar + 1e-9


def of_search(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a search's answer: its words, and each trial in one entry."""
    words = ("outcome", "answer", "findings", "left_out", "stopped_because", "next_idea", "seconds")
    keys = ("label", "stage", "trains", "seconds", "reason")
    trials = []
    for trial in found["trials"]:
        figures = {each: (trial[each] or {}).get("value") for each in ("score", "loss")}
        figures["loss_high"] = (trial["loss"] or {}).get("high")
        trials.append({**{key: trial[key] for key in keys}, **figures})
    judged = ("variant", "trial", "why", "outcome", "certain", "validation_loss", "loss", "score")
    finalists = [{key: each[key] for key in judged} for each in found["finalists"]]
    return {**{key: found[key] for key in words}, "finalists": finalists, "trials": trials}


def loss(reference: Mapping[str, Any], found: Mapping[str, Any], bar: float) -> dict[str, Any]:
    """What is lost of the reference on a part, with a 95 % interval where samples are right or not."""
    lost = reference["value"] - found["value"]
    told: dict[str, Any] = {"value": found["value"], "loss": lost, "inside": inside(lost, bar)}
    if reference["right"] is not None:
        from optcli.results.statistics import drop_interval

        pairs = list(zip(reference["right"], found["right"], strict=True))
        low, high = drop_interval(pairs.count((1, 0)), pairs.count((0, 1)), len(pairs))
        told |= {"samples": len(pairs), "interval": [low, high]}
    return told


def ratios(
    times: Mapping[str, Any], within: Mapping[str, bool], floats: Sequence[str]
) -> dict[str, Any]:
    """The best peer, and how many times as fast the winner is: over quantized peers, and over all.

    `within` says by method whether a peer is inside the bar. Where no quantized peer is, the best is
    the fastest float network.
    """
    allowed = {name: times[name]["ms"] for name, good in within.items() if good}
    listed = {name: ms for name, ms in allowed.items() if name not in floats}
    told: dict[str, Any] = {"no_int8_peer_inside": not listed}
    for key, rivals in (("", listed or allowed), ("_with_float", allowed)):
        if not rivals:
            continue
        best = min(rivals, key=rivals.__getitem__)
        told[f"best{key}"] = best
        if "winner" not in times:
            continue
        rounds = zip(times[best]["rounds_ms"], times["winner"]["rounds_ms"], strict=True)
        ratio, low, high = peers.quartiles([theirs / ours for theirs, ours in rounds])
        told |= {f"ratio{key}": ratio, f"middle{key}": [low, high]}
    return told


def aim(network: Network, size: str) -> float:
    """The ratio below which the cause is wanted."""
    return MEANS.get(size, LEAST) if network.trains else LEAST


def limits(row: Mapping[str, Any], network: Network) -> dict[str, Any] | None:
    """Why a network is below the aim, from the search's own record; None where it is not."""
    below = {
        size: each.get("ratio")
        for size, each in row["ratios"].items()
        if (each.get("ratio") or 0.0) < aim(network, size)
    }
    if not below:
        return None
    tuning = row["tuning"]
    outside = [each for each in tuning["trials"] if each["stage"] == "outside" and each["score"]]
    fastest = max(outside, key=lambda each: each["score"], default=None)
    timed = [each for each in tuning["trials"] if each["stage"] == "timed" and each["score"]]
    return {
        "below": below,
        "fastest_outside_the_bar": fastest,
        "fastest_untrained": max(timed, key=lambda each: each["score"], default=None),
        "stopped_because": tuning["stopped_because"],
        "findings": tuning["findings"],
        "left_out": tuning["left_out"],
        "next_idea": tuning["next_idea"],
    }


def keep(path: Path, section: str, row: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write the row into the file, in place of an older one of the same network and seed."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    rows = [each for each in known.get(section, []) if _place(each) != _place(row)]
    older = [each for each in known.get(section, []) if _place(each) == _place(row)]
    good = [each for each in older if "failed" not in each]
    if "failed" in row and good:
        row = {**good[0], "failed_again": {key: row.get(key) for key in ("when", "failed")}}
        machine = row.pop("machine")
    known[section] = [*rows, {**row, "machine": machine}]
    known["summary"] = summary(known)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(known, indent=1) + "\n")
    os.replace(unfinished, path)


def _place(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["network"], row["seed"]


def listed(path: Path, minutes: float | None, has_olive: bool) -> list[str]:
    """A line for each network: when it was measured, with what result, and how long it takes.

    The time is that of its last run where there was one, with the search's minutes replaced; else the
    search, the peers and the turns as they took for a network of its kind.
    """
    known = json.loads(path.read_text()) if path.is_file() else {}
    rows = {row["network"]: row for row in known.get("networks", [])}
    lines, total = [], 0.0
    for network in NETWORKS.values():
        row = rows.get(network.name)
        search = network.minutes if minutes is None else minutes
        rest = _BESIDE_SMALL if network.side <= 64 else _BESIDE_LARGE
        if row is not None and "failed" not in row:
            olive_s = max((each.get("made_in_s", 0.0) for each in _of_olive(row)), default=0.0)
            rest = (row["seconds"] - row["tuning"]["seconds"] - olive_s) / 60
        takes = search * (1 + _OLIVE_TAKES if has_olive and network.family != "coco" else 1) + rest
        total += takes
        told = "not measured"
        if row is not None:
            ratios = ", ".join(
                f"batch {size} {each['ratio']:.2f}"
                for size, each in row.get("ratios", {}).items()
                if "ratio" in each
            )
            result = "failed" if "failed" in row else ratios or "no winner"
            told = f"{row['when']} at {row.get('revision') or 'an unknown revision'}: {result}"
        lines.append(f"{network.name:28} about {takes:3.0f} min   {told}")
    return [*lines, f"{'all':28} about {total:3.0f} min"]


def _of_olive(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The peers of a row that Olive's search made."""
    return [each for name, each in row.get("peers", {}).items() if name.startswith(f"{OLIVE},")]


def summarize(path: Path) -> dict[str, Any]:
    """The summary of a file of results."""
    found: dict[str, Any] = json.loads(path.read_text())["summary"]
    return found


def summary(known: Mapping[str, Any]) -> dict[str, Any]:
    """Geometric means and least ratios by batch size, and what the repeats say."""
    found: dict[str, Any] = {}
    for name in KINDS:
        rows = [row for row in known.get("networks", []) if _kind(NETWORKS[row["network"]]) == name]
        if rows:
            found[name] = {"networks": len(rows), "failed": [_name(r) for r in rows if "failed" in r]}
            found[name] |= {
                "no_winner": [_name(r) for r in rows if "failed" not in r and not r.get("winner")]
            }
            for key in ("ratio", "ratio_with_float"):
                found[name][key] = {size: _of(rows, size, key) for size in MEANS}
    by_network: dict[str, list[Mapping[str, Any]]] = {}
    for row in known.get("repeats", []):
        by_network.setdefault(row["network"], []).append(row)
    if by_network:
        found["repeats"] = {name: _honesty(rows) for name, rows in by_network.items()}
    return found


def _kind(network: Network) -> str:
    """Those that are trained here came later: they show what the search makes of other families."""
    if network.epochs:
        return "trained here"
    return "trained" if network.trains else "without training"


def _name(row: Mapping[str, Any]) -> str:
    return str(row["network"])


def _of(rows: Sequence[Mapping[str, Any]], size: str, key: str) -> dict[str, Any] | None:
    values = [row.get("ratios", {}).get(size, {}).get(key) for row in rows]
    told = [value for value in values if value is not None]
    if not told:
        return None
    mean = math.exp(sum(map(math.log, told)) / len(told))
    return {"count": len(told), "geometric_mean": mean, "least": min(told)}


def _honesty(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often winners are inside the bar on samples that nobody read, and the optimism."""
    winners = [row["winner"] for row in rows if row.get("winner") and "failed" not in row]
    unseen = [each["third_judged"] for each in winners if "third_judged" in each]
    gaps = [
        (each["third_judged"]["loss"] - each["validation_loss"])
        for each in winners
        if "third_judged" in each and each["validation_loss"] is not None
    ]
    return {
        "searches": len(rows),
        "failed": sum("failed" in row for row in rows),
        "no_winner": sum(not row.get("winner") and "failed" not in row for row in rows),
        "inside_on_the_third_part": sum(each["inside"] for each in unseen),
        "judged_on_the_third_part": len(unseen),
        "largest_loss_on_the_third_part": max((each["loss"] for each in unseen), default=None),
        "mean_optimism": sum(gaps) / len(gaps) if gaps else None,
    }


def reached(path: Path, names: Sequence[str]) -> bool:
    """Whether everything of these networks ran and keeps the aims."""
    known = json.loads(path.read_text())
    rows = [row for key in ("networks", "repeats") for row in known.get(key, [])]
    mine = [row for row in rows if row["network"] in names]
    found = summary({key: [r for r in known.get(key, []) if r in mine] for key in known})
    good = not any("failed" in row or "failed_again" in row for row in mine)
    for name in KINDS:
        for size, wanted in MEANS.items():
            values = found.get(name, {}).get("ratio", {}).get(size)
            if values is None:
                continue
            mean = LEAST if name == "without training" else wanted
            good &= values["least"] >= LEAST and values["geometric_mean"] >= mean
        good &= not found.get(name, {}).get("no_winner")
    for each in found.get("repeats", {}).values():
        good &= each["inside_on_the_third_part"] >= HONEST * each["searches"]
    return good


def line(row: Mapping[str, Any]) -> str:
    """A network in a line of text."""
    start = f"{row['network']:28}"
    if "failed" in row:
        return f"{start} failed: {row['failed']}"
    winner = row.get("winner")
    if not winner:
        return f"{start} no winner: {row['tuning']['answer']}"
    parts = [winner["label"]]
    for size, each in row["ratios"].items():
        if "ratio" in each:
            low, high = each["middle"]
            told = f"{each['ratio']:.2f} [{low:.2f}, {high:.2f}] of {each['best']}"
            parts.append(f"batch {size}: {told}, {each['ratio_with_float']:.2f} with float")
        else:
            parts.append(f"batch {size}: no peer is inside the bar")
    for part in ("evaluation_judged", "third_judged"):
        if part in winner:
            lost = winner[part]
            where = "inside" if lost["inside"] else "outside"
            parts.append(f"{part.split('_')[0]}: {100 * lost['loss']:.2f} points lost, {where}")
    if failed := [name for name, peer in row.get("peers", {}).items() if "failed" in peer]:
        parts.append(f"FAILED, and not compared with: {' and '.join(failed)}")
    return f"{start} " + "; ".join(parts)
