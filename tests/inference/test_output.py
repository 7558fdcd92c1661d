"""Answers on disk: whole files, a manifest, and nothing of somebody else's lost."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optcli.errors import InputError, StoreError, UsageError
from optcli.serving.inference.listing import Listing, Shard, Stored
from optcli.serving.inference.output import Output
from optcli.serving.prediction import storage
from optcli.serving.prediction.storage import MANIFEST, recorded

LISTING = Listing(
    "in",
    tuple(Shard(f"part-{n:06d}-abc", (Stored(f"{n}a", ""), Stored(f"{n}b", ""))) for n in range(3)),
    "digest",
)
FIRST = LISTING.shards[0].name


def row(id: str) -> dict[str, Any]:
    best = {"label": 1, "name": "cat", "score": 0.5}
    return {"id": id, **best, "classes": [best]}


def output(
    folder: Path, form: Any = "jsonl", columns: tuple[str, ...] = ("classes",), **more: Any
) -> Output:
    return Output(str(folder), form, {"artifact": "a", "batch_size": 8, **more}, columns)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_finished_shards_are_told_from_missing_ones(tmp_path: Path) -> None:
    out = output(tmp_path / "out")
    assert out.begin(LISTING) == set()
    out.keep(FIRST, [row("0a")], {"0b": "damaged"})
    assert out.begin(LISTING) == {FIRST}
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["finished"] == [FIRST]
    assert manifest["missing"] == [shard.name for shard in LISTING.shards[1:]]
    assert manifest["images"] == 6
    assert recorded(str(tmp_path / "out"))["batch_size"] == 8
    errors = (tmp_path / "out" / f"{FIRST}.errors.jsonl").read_text()
    assert json.loads(errors) == {"id": "0b", "reason": "damaged"}
    assert names(tmp_path / "out") == [MANIFEST, f"{FIRST}.errors.jsonl", f"{FIRST}.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_boxes_have_their_masks_keypoints_and_corners(tmp_path: Path, form: Any) -> None:
    more = {
        "mask": {"size": [480, 640], "counts": "PPYo1"},
        "keypoints": [[1.5, 2.5, 0.5], [3.0, 4.0, 1.0]],
        "corners": [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]],
    }
    out = replace(output(tmp_path, form, ("boxes",)), further_outputs=tuple(more))
    out.begin(LISTING)
    box = {"label": 1, "name": "cat", "score": 0.5, "box": [0.0, 1.0, 2.0, 3.0], **more}
    rows = [{"id": "0a", "height": 480, "width": 640, "boxes": [box]}]
    out.keep(FIRST, [*rows, {**rows[0], "id": "0b", "boxes": []}], {})
    (written,) = tmp_path.glob(f"{FIRST}.*")
    if form == "parquet":
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(written).to_pylist()
    else:
        found = [json.loads(line) for line in written.read_text().splitlines()]
    assert [row["boxes"] for row in found] == [[box], []]


def test_what_was_half_written_does_not_count(tmp_path: Path) -> None:
    out = output(tmp_path)
    out.begin(LISTING)
    (tmp_path / f".{FIRST}.jsonl.0123").write_text("{")
    (tmp_path / f"{FIRST}.errors.jsonl").write_text("{}\n")
    assert out.begin(LISTING) == set()
    out.tidy()
    assert names(tmp_path) == [MANIFEST, f"{FIRST}.errors.jsonl"]


def test_a_write_that_fails_leaves_nothing_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    out = output(tmp_path)
    out.begin(LISTING)
    monkeypatch.setattr(storage, "_PAUSE_S", 0.0)

    def full(self: Any, path: str, value: bytes, **_: Any) -> None:
        Path(path).write_bytes(value[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "pipe_file", full)
    with pytest.raises(StoreError, match="No space left") as caught:
        out.keep(FIRST, [row("0a")], {})
    assert "continues" in caught.value.hint
    assert f"{FIRST}.jsonl" not in names(tmp_path)


def test_answers_of_another_run_are_not_mixed_with(tmp_path: Path) -> None:
    output(tmp_path).begin(LISTING)
    with pytest.raises(UsageError, match="differs in artifact, batch_size") as caught:
        output(tmp_path, artifact="b", batch_size=16).begin(LISTING)
    assert "--restart" in caught.value.hint
    output(tmp_path).keep(FIRST, [row("0a")], {})
    (tmp_path / "mine.txt").write_text("stays")
    assert output(tmp_path, artifact="b").begin(LISTING, restart=True) == set()
    assert names(tmp_path) == [MANIFEST, "mine.txt"]
    assert recorded(str(tmp_path))["artifact"] == "b"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("stays")
    with pytest.raises(UsageError, match="not empty and has no manifest"):
        output(tmp_path).begin(LISTING)
    (tmp_path / "mine.txt").unlink()
    (tmp_path / MANIFEST).write_text("[1]")
    with pytest.raises(InputError, match="cannot be read"):
        output(tmp_path).begin(LISTING)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "one"),
    [
        (("classes",), row("a")),
        (
            ("boxes",),
            {
                "id": "a",
                "height": 3,
                "width": 4,
                "boxes": [{"label": 1, "name": "cat", "score": 0.5, "box": [0.0, 1.0, 2.0, 3.0]}],
            },
        ),
        (("logits",), {"id": "a", "logits": {"shape": [2], "values": [0.5, 1.0]}}),
    ],
)
def test_every_shard_has_the_same_columns(
    tmp_path: Path, columns: tuple[str, ...], one: dict[str, Any]
) -> None:
    import pyarrow.parquet as parquet

    out = output(tmp_path, "parquet", columns)
    out.begin(LISTING)
    out.keep(FIRST, [one], {})
    out.keep(LISTING.shards[1].name, [], {"1a": "damaged", "1b": "damaged"})
    first, second = (parquet.read_table(tmp_path / f"{s.name}.parquet") for s in LISTING.shards[:2])
    assert first.to_pylist() == [{**one, "sha256": None}]
    assert first.schema == second.schema
    assert second.num_rows == 0
