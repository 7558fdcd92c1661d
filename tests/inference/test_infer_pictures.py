"""Pictures of answers: the first images of a run, whatever can be read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from optcli.errors import UsageError
from optcli.results import Report
from optcli.serving.inference import InferenceSettings, infer, pictures
from optcli.serving.inference.listing import Listing, Shard, Stored
from optcli.serving.inference.output import Output

STEPS: dict[str, Any] = {"channel_order": None, "orient": False}
IMAGES = {
    "schema": 1,
    "input": "image",
    "dtype": "float32",
    "shape": [3, 40, 60],
    "ranges": {},
    "layout": "chw",
    "formats": ["PNG"],
    "most_pixels": 10_000,
    "steps": STEPS,
}
BOX = {"label": 1, "name": "cat", "score": 0.9, "box": [5, 20, 50, 35]}


@pytest.fixture
def listed(tmp_path: Path) -> Listing:
    """Two shards of two images; the second image is damaged."""
    shards = []
    for shard in "ab":
        stored = []
        for index in range(2):
            path = tmp_path / f"{shard}{index} é.png"
            Image.new("RGB", (60, 40), "grey").save(path)
            stored.append(Stored(f"in/{path.name}", str(path)))
        shards.append(Shard(f"part-{shard}", tuple(stored)))
    Path(shards[0].images[1].path).write_bytes(b"no image")
    return Listing(str(tmp_path), tuple(shards), "digest")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures.workers, "run", lambda _, request, kind: pictures.draw(request, None))


def answers(folder: Path, listed: Listing, answer: dict[str, Any]) -> Output:
    output = Output(str(folder / "out"), "jsonl", {}, ("boxes",))
    output.begin(listed)
    for shard in listed.shards:
        output.keep(shard.name, [{"id": each.id, **answer} for each in shard.images], {})
    return output


def test_the_first_images_are_drawn_with_their_boxes(tmp_path: Path, listed: Listing) -> None:
    faint = {**BOX, "score": 0.1, "box": [0, 0, 60, 5]}
    output = answers(tmp_path, listed, {"boxes": [BOX, faint]})
    assert pictures.write(3, listed, output, str(tmp_path), IMAGES) == 2
    folder = tmp_path / "out" / "pictures"
    assert sorted(path.name for path in folder.iterdir()) == ["0001-a0-.jpg", "0003-b0-.jpg"]
    with Image.open(folder / "0003-b0-.jpg") as image:
        assert image.size == (300, 200)  # of 60 x 40: enlarged by a whole number
        pixels = np.asarray(image, int)
    assert (abs(pixels[:60] - 128).max() < 40) is np.True_  # the faint box is not drawn
    assert abs(pixels[100:175, 25:27] - (0, 114, 178)).max() < 90
    # A run that goes on draws them anew, and leaves the files of others.
    (folder / "notes.txt").write_text("mine")
    assert pictures.write(1, listed, output, str(tmp_path), IMAGES) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["0001-a0-.jpg", "notes.txt"]
    assert output.begin(listed) == {"part-a", "part-b"}


def test_classes_stand_below_the_image(tmp_path: Path, listed: Listing) -> None:
    best = [{"label": 1, "name": None, "score": 0.9}, {"label": 0, "name": "dog", "score": 0.1}]
    output = answers(tmp_path, listed, {"classes": best})
    assert pictures.write(1, listed, output, str(tmp_path), IMAGES) == 1
    with Image.open(tmp_path / "out" / "pictures" / "0001-a0-.jpg") as image:
        assert image.size == (300, 230)
        assert np.asarray(image)[200:].min() < 60  # there is text


def test_raw_outputs_are_refused_before_anything_runs() -> None:
    nothing: Any = None
    report: Report = nothing
    with pytest.raises(UsageError, match="raw outputs cannot be drawn"):
        infer("v", report, Path(), "in", "out", settings=InferenceSettings(raw=True, pictures=1))
