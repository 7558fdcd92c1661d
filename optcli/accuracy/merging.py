"""From the parts of an evaluation to one: records joined in order, the metric worked out."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.accuracy import detections, labels, objects, resampling, shards
from optcli.accuracy.evaluation import ABOUT, SAMPLES
from optcli.accuracy.metrics import Metric
from optcli.accuracy.metrics.miou import PIXELS
from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np


def merge(out: Path, jobs: int, name: str | None, metric: Metric | None, facts: dict[str, Any]) -> None:
    """Write `evaluation.json`, `samples.npz` and the outputs' rows; take the parts away.

    `facts` are further fields of the first.
    """
    import numpy as np

    folders = [out / f"part-{job}" for job in range(jobs)]
    abouts = [json.loads((folder / shards.ABOUT).read_bytes()) for folder in folders]
    busy = [i for i, about in enumerate(abouts) if about["samples"]]
    folders, abouts = [folders[i] for i in busy], [abouts[i] for i in busy]
    records = _records(folders)
    ids = records.pop("ids")
    clusters = np.unique(records.pop("content"), return_inverse=True)[1].astype(np.int32)
    if metric is not None:
        records = metric.over_all(records)
    beside = (*detections.PAIRS, *objects.NAMES, *PIXELS)
    stored = ("predicted", "label", "confidence", "embedding", *detections.NAMES, *beside)
    arrays: dict[str, np.ndarray] = {
        "ids": ids,
        "cluster": clusters,
        **{name: records[name] for name in stored if name in records},
    }
    about: dict[str, Any] = {
        "samples": len(ids),
        "stored": abouts[0]["stored"],
        "metric": None,
        "value": None,
        "finite": all(each["finite"] for each in abouts),
        "outputs": _outputs(out, folders, abouts),
        "effective": abouts[0]["effective"],
        "stability": abouts[0]["stability"],
        "class_order": None,
        "doubts": [],
        **facts,
    }
    value = None if metric is None else _value(metric, str(name), records, ids, about["finite"])
    if metric is not None and value is not None:
        right = metric.right(records)
        if right is not None:
            arrays["correct"] = right
        else:
            arrays["resampled"] = resampling.resampled(metric, records, clusters)
            arrays["left_out"] = resampling.left_out(metric, records, clusters)
        classes = metric.by_class(records)
        if classes is not None:
            arrays |= {f"class_{part}": array for part, array in vars(classes).items()}
        figures = metric.figures(records).items()
        about |= {
            "metric": name,
            "value": value,
            "better": metric.better(),
            "largest_change": metric.largest_change(records),
            "figures": {label: figure for label, figure in figures if math.isfinite(figure)},
            "doubts": labels.doubts(str(name), metric, records, clusters, arrays.get("resampled")),
            "class_order": labels.other_order(records),
        }
    np.savez_compressed(out / SAMPLES, **arrays)  # type: ignore[arg-type]
    (out / ABOUT).write_text(json.dumps(about, indent=1))
    for folder in out.glob("part-*"):
        shutil.rmtree(folder)


def _value(
    metric: Metric, name: str, records: dict[str, np.ndarray], ids: np.ndarray, finite: bool
) -> float | None:
    """The metric; None where it is no number because the outputs are none. Raises `InputError`."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        value = metric.value(records)
    if math.isfinite(value):
        return value
    if not finite:  # which is a verdict of its own
        return None
    odd = metric.not_numbers(records)
    first = f", {len(odd)} of them no numbers, the first {ids[odd[0]]}" if len(odd) else ""
    raise InputError(
        f"the metric is {value:g} over {len(ids)} samples{first}",
        place=f"accuracy.metric {name}",
        hint="let it give a finite number for these labels and outputs",
    )


def _records(folders: list[Path]) -> dict[str, np.ndarray]:
    import numpy as np

    parts, count = [], 0
    for folder in folders:
        with np.load(folder / shards.RECORDS, allow_pickle=False) as archive:
            part = shards.moved({name: archive[name] for name in archive.files}, count)
        parts.append(part)
        count += len(part["ids"])
    return shards.joined_records(parts)


def _outputs(out: Path, folders: list[Path], abouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is known of each output over all parts; its rows become one file."""
    import numpy as np

    firsts = []
    for folder in folders:
        with np.load(folder / shards.FIRSTS, allow_pickle=False) as archive:
            firsts.append({name: archive[name] for name in archive.files})
    outputs = []
    for index, output in enumerate(abouts[0]["outputs"]):
        parts = [about["outputs"][index] for about in abouts]
        shapes = [part["shape"] for part in parts]
        shape = shapes[0] if all(each == shapes[0] for each in shapes) else None
        file = output["file"] if shape is not None and all(part["file"] for part in parts) else None
        same = all(
            np.array_equal(first[f"output_{index}"], firsts[0][f"output_{index}"]) for first in firsts
        )
        constant = same and all(part["constant"] for part in parts)
        several = sum(part["seen"] for part in parts) > 1
        if file is not None:
            _join([folder / file for folder in folders], out / file)
        outputs.append(
            {
                "name": output["name"],
                "file": file,
                "constant": constant and several,
                "dtype": output["dtype"],
                "shape": shape,
            }
        )
    return outputs


def _join(parts: list[Path], whole: Path) -> None:
    import numpy as np
    from numpy.lib.format import open_memmap

    parts = [part for part in parts if part.exists()]
    if len(parts) == 1:
        parts[0].rename(whole)
        return
    rows = [np.load(part, mmap_mode="r", allow_pickle=False) for part in parts]
    count = sum(len(each) for each in rows)
    joined = open_memmap(whole, mode="w+", dtype=rows[0].dtype, shape=(count, *rows[0].shape[1:]))
    start = 0
    for each in rows:
        joined[start : start + len(each)] = each
        start += len(each)
    joined.flush()
