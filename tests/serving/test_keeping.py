"""What a bundle's server keeps of its inputs: a uniform sample of statistics, and never in the way."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from copied_modules import RAY_FILES
from drifting import described, photographs

from optcli.serving.drift import COPIED
from optcli.serving.drift.input_statistics import REFERENCE, unpacked

NAMES = ("input_statistics", "keeping")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules as a bundle has them, beside each other."""
    for folder in (RAY_FILES, *(file.parent for file in COPIED.values())):
        monkeypatch.syspath_prepend(str(folder))
    known = {name: sys.modules.pop(name, None) for name in NAMES}
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name, module in known.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle, as far as this is concerned."""
    found = described(tmp_path / "made", {"image": photographs(50, 0)})
    place = tmp_path / "bundle"
    place.mkdir()
    (place / REFERENCE).write_bytes(found.packed())
    return place


@pytest.fixture
def kept(modules: Any, folder: Path) -> Iterator[Callable[..., Any]]:
    """Makes what a server has; all are closed at the end."""
    made: list[Any] = []

    def make(most: int = 20) -> Any:
        made.append(modules.keeping.Kept(unpacked((folder / REFERENCE).read_bytes()), most))
        return made[-1]

    yield make
    for each in made:
        each.thread.shutdown()


def numbered(count: int, first: int = 0) -> dict[str, np.ndarray]:
    """Rows whose mean is their number."""
    numbers = np.arange(first, first + count, dtype=np.float32).reshape(-1, 1, 1, 1)
    return {"image": np.broadcast_to(numbers, (count, 3, 8, 8))}


def means(content: bytes, period: int = -1) -> list[float]:
    """The numbers of the rows that were kept."""
    return sorted(float(row[0]) for row in unpacked(content).periods[period][0])


def test_all_are_kept_while_there_is_room_and_no_input_is(kept):
    one = kept()
    one.offer(numbered(7))
    one.offer(numbered(5, 7))
    one.thread.shutdown()
    content = one.content()
    assert means(content) == list(range(12))
    found = unpacked(content)
    assert found.about["periods"][0]["seen"] == 12
    assert [each.shape for each in found.periods[0]] == [(12, 16)]  # of 192 values each


@pytest.mark.slow
def test_every_row_is_as_likely_to_be_kept(kept):
    """A chi-square of 40 parts of the stream, over many servers; its 99.9 % point is 72."""
    counts = np.zeros(40)
    for seed in range(60):
        one = kept(20)
        one._draw.seed(seed)
        for first in range(0, 400, 8):
            one.offer(numbered(8, first))
        one.thread.shutdown()
        rows = means(one.content())
        assert len(rows) == len(set(rows)) == 20
        counts += np.bincount((np.array(rows) // 10).astype(int), minlength=40)
    expected = 60 * 20 / 40
    assert ((counts - expected) ** 2 / expected).sum() < 72


def test_two_days_are_kept(kept, modules, monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(modules.keeping.time, "time", lambda: now[0])
    one = kept()
    for day in range(4):
        one.offer(numbered(2, 10 * day))
        now[0] += modules.keeping.PERIOD_S
    one.thread.shutdown()
    content = one.content()
    assert len(unpacked(content).periods) == 2
    assert (means(content, 0), means(content, 1)) == ([20.0, 21.0], [30.0, 31.0])


def test_the_event_loop_never_waits_for_statistics(kept, modules, monkeypatch):
    """While a row's statistics take for ever, offering goes on."""
    release = threading.Event()
    compute = modules.input_statistics.of_rows

    def slow(*arguments: Any) -> Any:
        release.wait()
        return compute(*arguments)

    monkeypatch.setattr(modules.input_statistics, "of_rows", slow)
    one = kept(1000)
    for number in range(9):
        one.offer(numbered(1, number))
    period = unpacked(one.content()).about["periods"][0]
    assert period["seen"] == 9
    release.set()
    one.thread.shutdown()
    assert means(one.content()) == list(range(9))


def test_what_is_computed_counts_and_what_is_refused_does_not(modules, folder):
    (folder / "bundle.json").write_text(json.dumps({"sample_inputs": 20}))

    async def compute(request: SimpleNamespace, deadline: float) -> str:
        if request.feed["image"].max() > 100:
            raise ValueError("refused")
        return "outputs"

    server = SimpleNamespace(
        computed=compute, pages={}, protocol=SimpleNamespace(path="/v2/models/net")
    )
    modules.keeping.extend(server, folder)
    assert asyncio.run(server.outputs(SimpleNamespace(feed=numbered(3)), 0.0)) == "outputs"
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(server.computed(SimpleNamespace(feed=numbered(1, 200)), 0.0))
    content = server.pages["/v2/models/net/inputs"]()
    assert unpacked(content).about["periods"][0]["seen"] == 3
    assert {each.name for each in folder.iterdir()} == {"bundle.json", REFERENCE}  # nothing is written
