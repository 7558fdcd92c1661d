from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from optcli.data import DataSettings
from optcli.data.selection import choose
from optcli.errors import InputError

IDS = [f"{label}/{number:03d}.png" for label in "abcdefghij" for number in range(100)]


def chosen(
    ids: list[str] = IDS, folder: Path = Path(), root: str = "photos", **settings: Any
) -> list[str]:
    declared = DataSettings.model_validate({"source": "npz:x", **settings})
    return [ids[position] for position in choose(declared, folder, ids, root)]


def test_everything_without_a_choice() -> None:
    assert chosen() == IDS


def test_samples_are_even_across_classes_and_repeatable() -> None:
    some = chosen(samples=50)
    assert Counter(name[0] for name in some) == dict.fromkeys("abcdefghij", 5)
    assert some == chosen(samples=50)
    assert some != chosen(samples=50, seed=1)
    assert len(set(chosen(samples=333))) == 333


def test_samples_do_not_fall_in_step_with_a_period() -> None:
    """Labels that go round with the same period as the choice must not give one class."""
    cyclic = [f"{number % 10}-{number}" for number in range(1000)]
    assert len({name[0] for name in chosen(cyclic, samples=100)}) > 5


def test_more_than_there_are() -> None:
    with pytest.raises(InputError, match="found 1000 samples, wanted 1001"):
        chosen(samples=1001)


def test_seeded_parts_are_disjoint_and_complete() -> None:
    low = chosen(split={"seed": 3, "to": 0.2})
    high = chosen(split={"seed": 3, "from": 0.2})
    assert len(low) == 200
    assert sorted(low + high) == IDS
    assert low != chosen(split={"seed": 4, "to": 0.2})
    assert len({name[0] for name in low}) == 10


def test_a_new_sample_moves_few_others() -> None:
    before = set(chosen(split={"seed": 3, "to": 0.2}))
    after = set(chosen([*IDS, "k/000.png"], split={"seed": 3, "to": 0.2}))
    assert len(before ^ after) <= 2


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("ids.txt", "b/002.png\n\na/001.png\n", None),
        ("ids.json", json.dumps(["a/001.png", "photos/b/002.png"]), None),
        ("ids.json", json.dumps({"one": ["./b/002.png", "photos/a/001.png"], "two": []}), "one"),
    ],
)
def test_ids_from_a_file(tmp_path: Path, file: str, text: str, name: str | None) -> None:
    (tmp_path / file).write_text(text)
    split = {"file": file, "name": name} if name else {"file": file}
    assert chosen(folder=tmp_path, split=split) == ["a/001.png", "b/002.png"]


@pytest.mark.parametrize(
    ("file", "text", "name", "said"),
    [
        ("ids.txt", "a/001.png\nz/9.png\n", None, "1 listed ids are not in the data.*'z/9.png'"),
        ("ids.txt", "a/001.png\n", "one", "no part 'one'"),
        ("ids.json", "{", None, "not JSON"),
        ("ids.json", '{"one": []}', None, "none is named"),
        ("ids.json", '{"one": []}', "on", "no part 'on'"),
        ("ids.json", '{"one": []}', "one", "holds no samples"),
        ("ids.json", '{"one": 3}', "one", "wanted a list"),
    ],
)
def test_wrong_files_of_ids(tmp_path: Path, file: str, text: str, name: str | None, said: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=said):
        chosen(folder=tmp_path, split={"file": file, "name": name})
