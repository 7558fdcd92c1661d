"""What `optcli infer` wrote, read as the answers that a server gives."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optcli.errors import InputError, StoreError, UsageError
from optcli.serving.inference.listing import Listing, Shard, Stored
from optcli.serving.inference.output import Output
from optcli.serving.prediction import storage
from optcli.serving.prediction.of_recipe import ImageServing
from optcli.serving.prediction.storage import deciding, open_answers

BUILT: Any = SimpleNamespace(
    name="plain",
    artifact=SimpleNamespace(digest="0123"),
    runner_name="onnxruntime",
    options={"threads": 1},
)
SERVING = ImageServing({"input": "image", "formats": ["JPEG", "PNG"]}, {"kind": "classes"})
SHARDS = tuple(Shard(f"part-{n:06d}-abc", (Stored(f"{n}", ""),)) for n in range(2))
ANSWERS: dict[str, Any] = {
    "classes": {"classes": [{"label": 1, "name": "cat", "score": 1 / 3}, {"label": 0, "score": 1e-9}]},
    "boxes": {
        "image": {"height": 3, "width": 4},
        "boxes": [
            {"label": 1, "name": "cat", "score": 0.1 + 0.2, "box": [0.1, -1.0, 2.0, 1e3]},
            {"label": 7, "score": 0.25, "box": [0.0, 0.0, 1.0, 1.0]},
        ],
    },
}


def row(kind: str, id: str) -> dict[str, Any]:
    answer = ANSWERS[kind]
    digest = hashlib.sha256(id.encode()).hexdigest()
    if kind == "classes":
        return {"id": id, "sha256": digest, "name": None, **answer["classes"][0], **answer}
    return {"id": id, "sha256": digest, **answer["image"], "boxes": answer["boxes"]}


def written(folder: Path, kind: str = "classes", form: Any = "jsonl", **others: Any) -> str:
    """Answers of one of two shards."""
    identity = {**deciding(BUILT, SERVING), "format": form, **others}
    out = Output(str(folder), form, identity, (kind,))
    listing = Listing("in", SHARDS, "digest")
    out.begin(listing)
    out.keep(SHARDS[0].name, [row(kind, "a"), row(kind, "b")], {"c": "damaged"})
    out.note(listing, {SHARDS[0].name})
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["classes", "boxes"])
def test_rows_are_the_answers_of_a_server_to_the_last_byte(
    tmp_path: Path, kind: str, form: str
) -> None:
    found = open_answers(written(tmp_path, kind, form), BUILT, SERVING, "--known-answers")
    assert (len(found.shards), found.missing) == (1, 1)
    rows = list(found.rows())
    assert [digest for digest, _ in rows] == [hashlib.sha256(id).digest() for id in (b"a", b"b")]
    assert {json.dumps(answer) for _, answer in rows} == {json.dumps(ANSWERS[kind])}


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"artifact": "4567"}, "answers of another artifact"),
        ({"runner": "other", "artifact": "4567"}, "answers of another artifact and another runner"),
        ({"preparation": "other"}, "answers of another preparation"),
        (
            {"preparation": deciding(BUILT, replace(SERVING, postprocess={}))["preparation"]},
            "outputs of the model, not answers",
        ),
    ],
)
def test_answers_of_something_else_are_refused(
    tmp_path: Path, others: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        open_answers(written(tmp_path, **others), BUILT, SERVING, "--known-answers")
    assert caught.value.message == f"these are {message}"
    assert caught.value.place == "--known-answers"
    assert "optcli infer plain" in caught.value.hint


def test_what_decides_answers_does_not_hold_the_formats_that_a_server_takes() -> None:
    wide = storage.taking_stored(SERVING)
    assert "BMP" in wide.images["formats"]
    assert deciding(BUILT, wide) == deciding(BUILT, SERVING)
    other = ImageServing({**SERVING.images, "input": "x"}, SERVING.postprocess)
    assert deciding(BUILT, other) != deciding(BUILT, SERVING)


def test_a_folder_without_answers_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        open_answers(str(tmp_path), BUILT, SERVING, "--known-answers")


def test_a_broken_file_and_one_that_is_gone_are_named(tmp_path: Path) -> None:
    found = open_answers(written(tmp_path), BUILT, SERVING, "--known-answers")
    path = tmp_path / f"{SHARDS[0].name}.jsonl"
    path.write_text('{"id": "a"}\n')
    with pytest.raises(InputError, match="no answers of `optcli infer`") as caught:
        list(found.rows())
    assert caught.value.place == str(path)
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        list(found.rows())
