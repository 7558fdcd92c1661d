"""Answers for the images of a shard, with a model that adds up pixels."""

import hashlib
import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from optcli.data.images import Images
from optcli.errors import InputError
from optcli.outputs.postprocess import Postprocess
from optcli.serving.inference.answering import Answered, Answering
from optcli.serving.inference.listing import Stored
from optcli.settings import TensorSpec
from optcli.settings.postprocess import BoxDecoding, RowDecoding

STEPS = {
    "orient": False,
    "resize": None,
    "interpolation": "bilinear",
    "resize_in": "uint8",
    "longest": None,
    "multiple_of": None,
    "crop_rounding": "even",
    "crop": None,
    "letterbox": None,
    "channel_order": "rgb",
    "scale": 1.0,
    "mean": [0.0],
    "std": [1.0],
}
CLASSES = {
    "schema": 1,
    "kind": "classes",
    "classes": {"output": None, "activation": "none", "top": 2},
    "names": ["dark", "light"],
    "size": [2, 2],
}


class Sums:
    """Gives each row the scores [-sum, sum - 1000], and notes the sizes of its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.outputs = "row"

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (array,) = feed.values()
        self.batches.append(len(array))
        total = array.reshape(len(array), -1).sum(1).astype(np.float32)
        if self.outputs == "flat":
            return {"scores": total.sum().reshape(1)}
        if self.outputs == "nan":
            total = total * np.nan
        return {"scores": np.stack([-total, total - 1000], axis=1)}


def spec(batch: Any = "batch", size: Any = 2) -> TensorSpec:
    ranges = {"batch": {"min": 1, "opt": 2, "max": 8}} if batch == "batch" else {}
    return TensorSpec.model_validate(
        {"name": "image", "dtype": "float32", "shape": [batch, 3, size, size], **ranges}
    )


def images(shape: list[Any] | None = None) -> Images:
    return Images(
        {
            "schema": 1,
            "input": "image",
            "dtype": "float32",
            "shape": shape or [3, 2, 2],
            "ranges": {"h": [1, 9], "w": [1, 9]},
            "layout": "chw",
            "formats": ["PNG"],
            "most_pixels": 100,
            "steps": STEPS,
        }
    )


def png(value: int, size: tuple[int, int] = (2, 2)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(out, "PNG")
    return out.getvalue()


def answered(
    bodies: dict[str, bytes | Exception],
    model: Sums,
    *,
    batch_size: int = 4,
    batch: Any = "batch",
    prepare: Images | None = None,
    raw: bool = False,
) -> Answered:
    def read(image: Stored) -> bytes:
        body = bodies[image.id]
        if isinstance(body, Exception):
            raise body
        return body

    follows = None if raw else Postprocess(CLASSES)
    answering = Answering(
        model, (spec(batch),), prepare or images(), follows, batch_size=batch_size, readers=3
    )
    return answering.answer([Stored(name, name) for name in bodies], read)


def test_answers_come_in_the_order_of_the_images() -> None:
    model = Sums()
    bodies = {f"{index:02d}": png(200 if index % 3 else 5) for index in range(30)}
    found = answered(bodies, model)
    assert [row["id"] for row in found.rows] == list(bodies)
    assert [row["name"] for row in found.rows] == ["light" if n % 3 else "dark" for n in range(30)]
    assert model.batches == [4] * 7 + [2]
    assert found.rows[0]["classes"][0] == {"label": 0, "name": "dark", "score": -60.0}
    assert not found.failures


def test_what_cannot_be_read_is_named_and_the_others_are_answered() -> None:
    bodies: dict[str, bytes | Exception] = {f"{index}": png(5) for index in range(6)}
    bodies |= {"text": b"no image", "empty": b"", "wide": png(5, (3, 2))}
    bodies |= {"gone": FileNotFoundError(2, "No such file"), "cut": png(5)[:40]}
    found = answered(dict(sorted(bodies.items())), Sums())
    assert sorted(found.failures) == ["cut", "empty", "gone", "text", "wide"]
    assert len(found.rows) == 6
    assert all(reason and "\n" not in reason for reason in found.failures.values())


def test_storage_that_fails_ends_the_shard() -> None:
    with pytest.raises(TimeoutError):
        answered({"a": png(5), "b": TimeoutError("the network is gone")}, Sums())


def test_a_fixed_batch_size_is_filled_and_the_copies_are_left_out() -> None:
    model = Sums()
    found = answered({f"{n}": png(5 + n) for n in range(5)}, model, batch_size=4, batch=4)
    assert model.batches == [4, 4]
    assert [row["id"] for row in found.rows] == ["0", "1", "2", "3", "4"]


def test_images_of_several_sizes_do_not_share_a_batch() -> None:
    model = Sums()
    sizes = [(2, 2), (2, 2), (3, 2), (2, 2)]
    bodies = {f"{n}": png(9, size) for n, size in enumerate(sizes)}
    found = answered(bodies, model, prepare=images([3, "h", "w"]))
    assert model.batches == [2, 1, 1]
    assert len(found.rows) == 4


def test_boxes_are_brought_back_where_the_size_of_the_input_varies() -> None:
    """Rows of [left, top, right, bottom, score], as shares of the input: its size decides."""

    class Boxes:
        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            (array,) = feed.values()
            return {
                "rows": np.tile(np.array([0.0, 0.0, 0.5, 1.0, 0.9], np.float32), (len(array), 1, 1))
            }

    decoding = BoxDecoding(normalized=True).model_dump(mode="json")
    follows = {
        "schema": 1,
        "kind": "boxes",
        "boxes": decoding,
        "names": None,
        "size": None,
    }
    answering = Answering(
        Boxes(),
        (spec(),),
        images([3, "h", "w"]),
        Postprocess(follows),
        batch_size=4,
        readers=1,
    )
    bodies = {"small": png(5, (2, 2)), "wide": png(5, (8, 4))}
    found = answering.answer([Stored(name, name) for name in bodies], lambda image: bodies[image.id])
    assert not found.failures
    assert [row["boxes"][0]["box"] for row in found.rows] == [
        [0.0, 0.0, 1.0, 2.0],
        [0.0, 0.0, 4.0, 4.0],
    ]


@pytest.mark.parametrize("raw", [False, True])
def test_detections_of_a_model_of_one_image_are_as_many_as_there_are(raw: bool) -> None:
    class Rows:
        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            (array,) = feed.values()
            rows = [[0, 0, 1, 1, 0.9 - 0.1 * row, row] for row in range(int(array.max()))]
            return {"rows": np.array(rows, np.float32).reshape(-1, 6)}

    how = RowDecoding().model_dump(mode="json")
    follows = Postprocess(
        {"schema": 1, "kind": "rows", "rows": how, "names": ["a", "b", "c"], "size": [2, 2]}
    )
    whole = ["rows"] if raw else []
    answering = Answering(
        Rows(), (spec(1),), images(), None if raw else follows, batch_size=1, readers=1, whole=whole
    )
    counts = [1, 0, 3]
    stored = [Stored(str(count), str(count)) for count in counts]
    found = answering.answer(stored, lambda image: png(int(image.id)))
    assert not found.failures
    if raw:
        assert [row["rows"]["shape"] for row in found.rows] == [[count, 6] for count in counts]
        return
    names = [[box["name"] for box in row["boxes"]] for row in found.rows]
    assert names == [["a"], [], ["a", "b", "c"]]


def test_raw_answers_are_the_outputs() -> None:
    found = answered({"a": png(5)}, Sums(), raw=True)
    assert found.rows == [
        {
            "id": "a",
            "sha256": hashlib.sha256(png(5)).hexdigest(),
            "scores": {"shape": [2], "values": [-60.0, -940.0]},
        }
    ]


@pytest.mark.parametrize("raw", [True, False])
def test_scores_that_are_no_numbers_are_a_failure(raw: bool) -> None:
    model = Sums()
    model.outputs = "nan"
    found = answered({"a": png(5)}, model, raw=raw)
    assert not found.rows
    assert "NaN" in found.failures["a"]


def test_outputs_that_do_not_follow_the_batch_are_refused() -> None:
    model = Sums()
    model.outputs = "flat"
    with pytest.raises(InputError, match="shape \\[1\\] for 2 images"):
        answered({"a": png(5), "b": png(5)}, model)


def test_nothing_is_read_that_is_not_needed_soon() -> None:
    read: list[str] = []

    class Stops(Sums):
        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            raise RuntimeError("broken")

    def reading(image: Stored) -> bytes:
        read.append(image.id)
        return png(5)

    many = [Stored(f"{n}", "") for n in range(1000)]
    answering = Answering(Stops(), (spec(),), images(), Postprocess(CLASSES), batch_size=4, readers=2)
    with pytest.raises(RuntimeError):
        answering.answer(many, reading)
    assert len(read) < 30, Path(__file__).name


class Watched:
    """Prepares as usual; counts how many images it has begun and ended."""

    def __init__(self) -> None:
        self._images = images()
        self.feed, self.size_of = self._images.feed, self._images.size_of
        self.begun = self.ended = 0
        self._lock = threading.Lock()

    def prepared(self, body: bytes) -> Any:
        with self._lock:
            self.begun += 1
        row = self._images.prepared(body)
        with self._lock:
            self.ended += 1
        return row


@pytest.mark.slow
def test_in_turns_nothing_is_prepared_while_the_model_computes() -> None:
    watched, read = Watched(), []
    begun: list[int] = []
    waiting: list[int] = []

    class Slow(Sums):
        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            before = watched.begun
            time.sleep(0.05)  # without turns all that is read ahead would be prepared in that time
            begun.append(watched.begun - before)
            waiting.append(len(read) - watched.ended)
            return super().run(feed)

    def reading(image: Stored) -> bytes:
        read.append(image.id)
        return png(5)

    answering = Answering(
        Slow(),
        (spec(),),
        watched,
        Postprocess(CLASSES),
        batch_size=4,
        readers=3,
        preparers=2,
        in_turns=True,
    )
    found = answering.answer([Stored(f"{n:02d}", "") for n in range(40)], reading)
    assert [row["id"] for row in found.rows] == [f"{n:02d}" for n in range(40)]
    assert max(begun) <= 2, "those that each thread had in hand"
    assert max(waiting) <= 4 + 3 + 2, "so many bodies wait at most"


def test_after_a_model_that_fails_nobody_waits_for_its_turn() -> None:
    class Stops(Sums):
        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            raise RuntimeError("broken")

    for _ in range(3):
        answering = Answering(
            Stops(), (spec(),), images(), None, batch_size=4, readers=2, preparers=2, in_turns=True
        )
        with pytest.raises(RuntimeError, match="broken"):
            answering.answer([Stored(f"{n}", "") for n in range(100)], lambda _: png(5))
