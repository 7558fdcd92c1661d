"""The quickstart on a cluster: the same keys, digests and verdicts as without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from needs import REPOSITORY
from ray_cluster import ray_cluster
from tiny_project import Heard

from optcli.pipeline import build
from optcli.results import Report
from optcli.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long]

# Steps that give another digest each time, on one machine, too: files of TorchScript hold times and
# random names, and ONNX Runtime writes its own format in a changing order.
VARYING = {"optimize_onnx", "torchscript"}
# What is built, beside the baseline: variants with one step of each kind that takes seconds.
BUILT = ["torchscript", "onnx-int8", "openvino-int8", "pruned-tuned", "onnx-int8-ort", "ort"]
HURRIED = "latency={launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.1, threads: 1}"


def built(folder: Path, address: str | None = None) -> tuple[Report, Store, Heard]:
    """A build of the recipe with a store of its own; on Ray with a remote one beside it."""
    heard = Heard()
    store = Store.at(folder / "store", f"file://{folder}/remote" if address else None)
    report = build(
        REPOSITORY / "recipes" / "quickstart-all.yaml",
        store=store,
        artifacts=folder / "artifacts",
        overrides=[HURRIED],
        only=BUILT,
        observer=heard,
        ray=address,
        jobs=4 if address else 2,
    )
    return report, store, heard


def digests(store: Store) -> dict[str, tuple[str, str]]:
    """The step and the digest of every artifact, by key."""
    return {entry.key: (entry.ingredients["step"], entry.digest) for entry in store.entries("artifact")}


def judged(report: Report) -> dict[str, list[tuple[str, str]]]:
    """The verdicts on outputs and accuracy: those on latency depend on what else runs here."""
    by_accuracy = ("outputs", "accuracy", "non-inferiority")
    return {
        name: [(each.name, each.outcome) for each in of.verdicts if each.name in by_accuracy]
        for name, of in report.variants.items()
    }


def test_the_quickstart_is_the_same_on_ray(tmp_path):
    report, store, _ = built(tmp_path / "here")
    with ray_cluster() as cluster:
        cluster.add("one", 1)
        cluster.add("two", 2)
        on_ray, there, heard = built(tmp_path / "ray", cluster.address)
        results = cluster.results()
    first, second = digests(store), digests(there)
    assert set(first) == set(second)
    assert {of[0] for key, of in second.items() if first[key] != of} <= VARYING
    assert results == len(second) - 1, "all but the source was made on a node"
    assert not [note for note in heard.notes if "made on this machine" in note]
    assert set(on_ray.variants) > set(BUILT)
    assert judged(on_ray) == judged(report)
