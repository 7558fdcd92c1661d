"""The summary of `optcli infer`: costs by batch size, and progress."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optcli.observer import Silent
from optcli.report import terminal
from optcli.report.inference import document
from optcli.results.serving import Inference
from optcli.serving import inference
from optcli.serving.inference.listing import Listing, Shard, Stored
from optcli.serving.inference.output import Output
from optcli.serving.inference.shard_worker import ShardResult


def result(**more: Any) -> Inference:
    about = {"variant": "int8", "input": "in", "output": "out", "form": "jsonl", "images": 20}
    about |= {"shards": 2, "shards_before": 0, "answered": 20, "batch_size": 8, "rates": {8: 50.0}}
    about |= {"workers": 1, "threads": 2, "seconds": 3.0, "images_per_s": 40.0}
    return Inference.model_validate({**about, **more})


def test_the_summary_has_the_cost_of_each_batch_size() -> None:
    priced = result(batch_size=8, rates={1: 50.0, 8: 200.0}, costs={1: 0.01, 8: 0.0025})
    rows = [line.split() for line in terminal.text(document(priced)).splitlines()]
    assert ["1", "50.0", "0.0100"] in rows
    assert ["8", "200.0", "0.00250", "used"] in rows
    bare = terminal.text(document(result(batch_size=8, rates={1: 50.0})))
    assert ["1", "50.0"] in [line.split() for line in bare.splitlines()]


@pytest.mark.parametrize(("cost_per_s", "cost"), [(None, ""), (0.01, ", cost 0.02 of about 0.04")])
def test_progress_says_how_far_it_is_and_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost_per_s: float | None, cost: str
) -> None:
    """Two shards of four, of ten images and a second each."""
    shards = tuple(Shard(f"part-{n}", (Stored("a", ""),) * 10) for n in range(4))
    said: list[str] = []
    now = 0.0

    class Hearing(Silent):
        def progress(self, step: str, fraction: float | None, message: str) -> None:
            said.append(message)

    def ended() -> Iterator[ShardResult]:
        nonlocal now
        for shard in shards[:2]:
            now += 1
            yield ShardResult(shard.name, 9, 1, "", now - 1, now)

    monkeypatch.setattr(inference, "time", SimpleNamespace(monotonic=lambda: now))
    out = Output(str(tmp_path), "jsonl", {"artifact": "a"}, ("classes",))
    listing = Listing("in", shards, "digest")
    inference._InferenceRun(listing, out, set(), Hearing(), cost_per_s).carry_out(ended())
    assert said[-1] == f"20 of 40, 10 images/s, 2 s left{cost}"
