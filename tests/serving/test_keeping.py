"""What a bundle's server keeps of its inputs: a uniform sample of statistics, and never in the way."""

from __future__ import annotations

import importlib
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
from optcli.serving.drift.input_statistics import unpacked

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
    (place / "reference-inputs.npz").write_bytes(found.packed())
    return place


@pytest.fixture
def kept(modules: Any, folder: Path) -> Iterator[Callable[..., Any]]:
    """Makes what a server has; all are closed at the end."""
    made: list[Any] = []

    def make(most: int = 20) -> Any:
        made.append(modules.keeping.Kept(folder, most))
        return made[-1]

    yield make
    for each in made:
        each.close()


def numbered(count: int, first: int = 0) -> dict[str, np.ndarray]:
    """Rows whose mean is their number."""
    numbers = np.arange(first, first + count, dtype=np.float32).reshape(-1, 1, 1, 1)
    return {"image": np.broadcast_to(numbers, (count, 3, 8, 8))}


def means(content: bytes, period: int = -1) -> list[float]:
    """The numbers of the rows that were kept."""
    return sorted(float(row[0]) for row in unpacked(content).periods[period][0])


def test_all_are_kept_while_there_is_room_and_no_input_is(kept, folder):
    one = kept()
    one.offer(numbered(7))
    one.offer(numbered(5, 7))
    one.close()
    content = (folder / "kept-inputs.npz").read_bytes()
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
        one._thread.shutdown()
        rows = means(one.content())
        one._changed = False
        one.close()  # the next one starts without a file
        assert len(rows) == len(set(rows)) == 20
        counts += np.bincount((np.array(rows) // 10).astype(int), minlength=40)
    expected = 60 * 20 / 40
    assert ((counts - expected) ** 2 / expected).sum() < 72


def test_a_server_that_starts_again_goes_on(kept, folder):
    first = kept(10)
    first.offer(numbered(30))
    first.close()
    second = kept(10)
    second.offer(numbered(1, 100))
    second.close()
    found = unpacked((folder / "kept-inputs.npz").read_bytes())
    assert found.about["periods"][0]["seen"] == 31
    assert len(found.periods[0][0]) == 10


def test_what_another_model_kept_is_not_taken(kept, folder, tmp_path):
    first = kept()
    first.offer(numbered(3))
    first.close()
    other = described(tmp_path / "other", {"image": photographs(40, 9)})
    (folder / "reference-inputs.npz").write_bytes(other.packed())
    assert unpacked(kept().content()).about["periods"][0]["seen"] == 0
    (folder / "kept-inputs.npz").write_bytes(b"no npz")
    assert unpacked(kept().content()).about["periods"][0]["seen"] == 0


def test_two_days_are_kept(kept, modules, monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(modules.keeping.time, "time", lambda: now[0])
    one = kept()
    for day in range(4):
        one.offer(numbered(2, 10 * day))
        now[0] += modules.keeping.PERIOD_S
    one._thread.shutdown()
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
    one.close()
    assert means(one.content()) == list(range(9))


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_file(kept, monkeypatch, tmp_path):
    monkeypatch.setenv("KEPT_INPUTS", str(tmp_path / "nowhere" / "kept.npz"))
    one = kept()
    one.offer(numbered(3))
    one.close()
    assert unpacked(one.content()).about["unwritten"] == "No such file or directory"
    assert means(one.content()) == [0, 1, 2]
    (tmp_path / "nowhere").mkdir()
    one.write()
    assert [each.name for each in (tmp_path / "nowhere").iterdir()] == ["kept.npz"]
    assert unpacked(one.content()).about["unwritten"] == ""


def test_an_empty_variable_writes_nothing(kept, folder, monkeypatch):
    monkeypatch.setenv("KEPT_INPUTS", "")
    one = kept()
    one.offer(numbered(3))
    one.close()
    assert [each.name for each in folder.iterdir()] == ["reference-inputs.npz"]
    assert means(one.content()) == [0, 1, 2]


def test_nothing_is_written_twice(kept, folder):
    one = kept()
    one.offer(numbered(3))
    one.close()
    before = (folder / "kept-inputs.npz").stat().st_ino
    one.write()
    assert (folder / "kept-inputs.npz").stat().st_ino == before
    assert {each.name for each in folder.iterdir()} == {"kept-inputs.npz", "reference-inputs.npz"}


def test_the_page_gives_the_file(kept):
    one = kept()
    one.offer(numbered(3))
    one._thread.shutdown()
    assert means(one.file()) == [0, 1, 2]


def test_of_several_replicas_one_keeps_a_sample_until_it_is_gone(kept):
    one, other = kept(), kept()
    one.offer(numbered(3))
    other.offer(numbered(2, 10))
    one.close()
    assert means(other.file()) == [0, 1, 2]  # what the other one wrote
    other._looked = -1.0  # a second later
    other.offer(numbered(2, 10))
    other._thread.shutdown()
    assert means(other.file()) == [0, 1, 2, 10, 11]
