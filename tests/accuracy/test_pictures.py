"""Pictures of what changed: which images are chosen, what is drawn, and how much room they take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from optcli.accuracy import pictures
from optcli.accuracy.drawing import BOTH, LOST, NEW, DrawnBox, colours_of, jpeg
from optcli.accuracy.evaluation import ABOUT, SAMPLES
from optcli.accuracy.pictures import MOST_BYTES, PicturesRequest
from optcli.data import DataSettings
from optcli.results.pictures import Picture, Pictures
from optcli.settings import TensorSpec

INPUT = TensorSpec(name="image", shape=("batch", 3, 8, 8))
Box = tuple[int, Sequence[float], float, int]


def evaluation(folder: Path, ids: Sequence[str], **arrays: Any) -> Path:
    folder.mkdir()
    about = {"samples": len(ids), "stored": 0, "metric": None, "value": None, "finite": True}
    (folder / ABOUT).write_text(
        json.dumps({**about, "outputs": [], "effective": {}, "stability": None})
    )
    np.savez(folder / SAMPLES, ids=np.array(ids), **arrays)
    return folder


def classified(folder: Path, ids: Sequence[str], predicted: list[int], sure: list[float]) -> Path:
    label = np.zeros(len(ids), int)
    return evaluation(
        folder, ids, predicted=np.array(predicted), confidence=np.array(sure), label=label
    )


def detected(folder: Path, ids: Sequence[str], found: Sequence[Box]) -> Path:
    samples, boxes, scores, labels = ([box[part] for box in found] for part in range(4))
    return evaluation(
        folder,
        ids,
        found_sample=np.array(samples, int),
        found_box=np.array(boxes, float).reshape(-1, 4),
        found_score=np.array(scores, float),
        found_label=np.array(labels, int),
    )


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    """Eight images of noise, 120 x 80 pixels, in two classes."""
    generator = np.random.default_rng(0)
    names = [f"{'cat' if index < 4 else 'dog'}/{index}.png" for index in range(8)]
    for name in names:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (80, 120, 3), np.uint8)).save(path)
    return names


def drawn(
    folder: Path,
    baseline: Path,
    variants: dict[str, Path],
    source: str = "imagefolder:images",
    class_map: str | None = None,
    **prepare: Any,
) -> dict[str, tuple[Picture, ...]]:
    (folder / "out" / "pictures").mkdir(parents=True)
    settings = DataSettings.model_validate({"source": source, "prepare": prepare or None})
    request = PicturesRequest(
        data=settings,
        folder=folder,
        inputs=(INPUT,),
        baseline=baseline,
        variants=variants,
        out=folder / "out" / "pictures",
        class_map=class_map,
    )
    found = pictures.draw(request, None)  # type: ignore[arg-type]
    assert isinstance(found, Pictures)
    return dict(found.variants)


def sizes(folder: Path) -> dict[str, int]:
    return {f"pictures/{p.name}": p.stat().st_size for p in (folder / "out" / "pictures").iterdir()}


def test_of_a_classifier_those_that_changed_are_shown_the_surest_first(
    tmp_path: Path, ids: list[str]
) -> None:
    sure = [0.5, 0.6, 0.7, 0.8, 0.9, 0.91, 0.92, 0.93]
    base = classified(tmp_path / "base", ids, [0] * 8, sure)
    changed = classified(tmp_path / "v", ids, [1, 0, 1, 1, 1, 0, 0, 0], [0.4] * 8)
    found = drawn(tmp_path, base, {"int8": changed, "same": base})
    worst = [each for each in found["int8"] if each.chosen == "worst"]
    assert [each.image for each in worst] == [ids[4], ids[3], ids[2]]
    first = worst[0]
    assert first.answer is not None
    assert first.baseline_answer is not None
    assert (first.answer.name, first.baseline_answer.name) == ("dog", "cat")
    assert (first.answer.confidence, first.baseline_answer.confidence) == (0.4, 0.9)
    assert first.target is not None
    assert first.target.name == "cat"
    assert first.file == first.baseline_file  # nothing is drawn on it
    # Those at random are the same for all variants, and drawn once.
    by_chance = {each.image for each in found["same"]}
    assert len(by_chance) == 2
    assert by_chance <= {each.image for each in found["int8"]}
    files = {each.file for of_variant in found.values() for each in of_variant}
    assert files == sizes(tmp_path).keys()
    with Image.open(tmp_path / "out" / first.file) as image:
        assert (image.format, image.size) == ("JPEG", (120, 80))


def test_of_a_detector_what_is_lost_new_or_of_another_class_counts_and_is_drawn(
    tmp_path: Path, ids: list[str]
) -> None:
    left, right, low = [5, 20, 40, 50], [60, 20, 110, 60], [20, 62, 90, 78]
    theirs = [
        (0, left, 0.9, 0),
        (0, right, 0.8, 1),
        (1, left, 0.9, 0),
        (2, left, 0.9, 0),
        (2, low, 0.1, 0),
    ]
    mine = [(0, right, 0.7, 0), (0, low, 0.6, 1), (1, left, 0.5, 1), (2, left, 0.8, 0)]
    base, variant = detected(tmp_path / "b", ids, theirs), detected(tmp_path / "v", ids, mine)
    found = {each.image: each for each in drawn(tmp_path, base, {"int8": variant})["int8"]}
    worst = [each for each in found.values() if each.chosen == "worst"]
    assert [each.image for each in worst] == [ids[0], ids[1]]
    first = worst[0]
    assert (first.of, first.lost, first.renamed, first.new) == (2, 1, 1, 1)
    assert (worst[1].of, worst[1].lost, worst[1].renamed, worst[1].new) == (1, 0, 1, 0)
    assert first.file != first.baseline_file
    with Image.open(tmp_path / "out" / first.file) as mine_drawn:
        assert all(_has(mine_drawn, colour) for colour in (LOST, NEW))
    with Image.open(tmp_path / "out" / first.baseline_file) as theirs_drawn:
        assert _has(theirs_drawn, BOTH)
        assert not any(_has(theirs_drawn, colour) for colour in (LOST, NEW))


def _has(image: Image.Image, colour: tuple[int, int, int]) -> bool:
    """Whether over a hundred pixels have about this colour: JPEG changes it a little."""
    apart = np.abs(np.asarray(image.convert("RGB"), int) - colour).max(axis=2)
    return bool((apart < 30).sum() > 100)


def test_equal_differences_show_images_that_other_variants_show(tmp_path: Path, ids: list[str]) -> None:
    base = classified(tmp_path / "base", ids, [0] * 8, [0.9] * 8)
    late = classified(tmp_path / "late", ids, [0, 0, 0, 0, 0, 1, 1, 1], [0.4] * 8)
    every = classified(tmp_path / "all", ids, [1] * 8, [0.4] * 8)
    found = drawn(tmp_path, base, {"late": late, "all": every})
    assert {each.image for each in found["all"]} == {each.image for each in found["late"]}


@pytest.mark.slow
def test_all_pictures_of_a_page_have_300_kb_at_most(tmp_path: Path, ids: list[str]) -> None:
    generator = np.random.default_rng(0)
    for name in ids:  # noise, of which JPEG makes most
        pixels = generator.integers(0, 256, (320, 320, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / name, compress_level=0)
    base = detected(tmp_path / "base", ids, [(i, [0, 0, 100, 100], 0.9, 0) for i in range(8)])
    variants = {}
    for number in range(6):
        found = [(i, [0, 0, 100, 100], 0.9, 1) for i in range(8) if i % 6 != number]
        variants[f"v{number}"] = detected(tmp_path / f"v{number}", ids, found)
    kept = drawn(tmp_path, base, variants)
    taken = sizes(tmp_path)
    assert sum(taken.values()) <= MOST_BYTES
    assert 4 * MOST_BYTES / 3 <= 300_000  # as base64
    assert kept.keys() == variants.keys()  # each variant has its worst
    named = {f for each in kept.values() for p in each for f in (p.file, p.baseline_file)}
    assert named == taken.keys()


def test_an_image_that_is_damaged_or_gone_has_no_picture(tmp_path: Path, ids: list[str]) -> None:
    base = classified(tmp_path / "base", ids, [0] * 8, [0.9] * 8)
    changed = classified(tmp_path / "v", ids, [1, 0, 0, 0, 0, 0, 0, 1], [0.4] * 8)
    (tmp_path / "images" / ids[0]).write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "images" / ids[7]).unlink()
    shown = {each.image for each in drawn(tmp_path, base, {"int8": changed})["int8"]}
    assert not shown & {ids[0], ids[7]}


def test_a_photograph_is_turned_where_the_preparation_turns_it(tmp_path: Path, ids: list[str]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (120, 80), "grey").save(tmp_path / "images" / ids[0], exif=exif)
    base = classified(tmp_path / "base", ids, [0] * 8, [0.9] * 8)
    changed = classified(tmp_path / "v", ids, [1] + [0] * 7, [0.4] * 8)
    for orient, size in ((True, (80, 120)), (False, (120, 80))):
        place = tmp_path / str(orient)
        place.mkdir()
        (place / "images").symlink_to(tmp_path / "images")
        first = drawn(place, base, {"int8": changed}, orient=orient)["int8"][0]
        with Image.open(place / "out" / first.file) as image:
            assert image.size == size


def test_boxes_of_a_photograph_lie_where_they_were_found(tmp_path: Path, ids: list[str]) -> None:
    Image.new("RGB", (2000, 1000), "grey").save(tmp_path / "images" / ids[0])
    base = detected(tmp_path / "base", ids, [(0, [1000, 500, 1500, 900], 0.9, 0)])
    first = drawn(tmp_path, base, {"none": detected(tmp_path / "none", ids, [])})["none"][0]
    with Image.open(tmp_path / "out" / first.baseline_file) as image:
        assert image.size == (320, 160)
        pixels = np.asarray(image, int)
    assert np.abs(pixels[90:140, 160:162] - BOTH).max() < 90
    assert np.abs(pixels[90:140, 170:230] - 128).max() < 40


@pytest.mark.parametrize(("dtype", "shown"), [("uint8", True), ("float32", False)])
def test_arrays_are_drawn_where_their_values_are_surely_pixels(
    tmp_path: Path, dtype: str, shown: bool
) -> None:
    rows = np.arange(4 * 3 * 8 * 8).reshape(4, 3, 8, 8).astype(dtype)
    np.savez(tmp_path / "data.npz", image=rows)
    names = [str(index) for index in range(4)]
    base = classified(tmp_path / "base", names, [0] * 4, [0.9] * 4)
    found = drawn(tmp_path, base, {"same": base}, "npz:data.npz", scale=0.5)
    assert bool(found) is shown
    if shown:
        with Image.open(tmp_path / "out" / found["same"][0].file) as image:
            assert image.size == (160, 160)  # of 8 pixels: enlarged by a whole number


@pytest.mark.parametrize(
    ("source", "prepare", "pixels"),
    [
        ("npz:data.npz", None, False),
        ("npz:data.npz", {"scale": 1}, True),
        ("python:data.py:samples", {"scale": 1}, False),
        ("coco:images", None, True),
    ],
)
def test_inputs_that_are_prepared_already_and_users_code_give_no_pictures(
    source: str, prepare: dict[str, float] | None, pixels: bool
) -> None:
    settings = DataSettings.model_validate({"source": source, "prepare": prepare})
    assert pictures.may_have(settings) is pixels


def test_outputs_that_are_no_answers_have_no_pictures(tmp_path: Path, ids: list[str]) -> None:
    base = evaluation(tmp_path / "base", ids)
    assert drawn(tmp_path, base, {"same": base}) == {}
    assert sizes(tmp_path) == {}


def mapped(folder: Path, ids: Sequence[str], rows: np.ndarray) -> Path:
    """Outputs `[stored, ...]` of the first samples."""
    evaluation(folder, ids)
    about = json.loads((folder / ABOUT).read_bytes())
    shape = list(rows.shape[1:])
    kept = {"name": "y", "file": "y.npy", "constant": False, "dtype": str(rows.dtype), "shape": shape}
    (folder / ABOUT).write_text(json.dumps({**about, "stored": len(rows), "outputs": [kept]}))
    np.save(folder / "y.npy", rows)
    return folder


@pytest.mark.parametrize("form", ["scores", "numbers", "one of two", "logits of one"])
def test_of_a_map_of_classes_both_are_drawn_where_most_pixels_changed(
    form: str, tmp_path: Path, ids: list[str]
) -> None:
    numbers = np.zeros((6, 40, 60), int)
    numbers[:, :, 30:] = 1
    changed = numbers.copy()
    changed[3, :10, 30:], changed[5, :20, 30:] = 0, 0
    makes = {
        "scores": lambda a: np.eye(4, dtype=np.float32)[a].transpose(0, 3, 1, 2),
        "numbers": lambda a: a.astype(np.int64),
        "one of two": lambda a: (0.2 + 0.6 * a[:, None]).astype(np.float32),
        "logits of one": lambda a: (6.5 * a[:, None] - 3).astype(np.float32),
    }
    base, variant = (
        mapped(tmp_path / name, ids, makes[form](each))
        for name, each in (("base", numbers), ("mine", changed))
    )
    # No code of the user's runs for it.
    shown = drawn(tmp_path, base, {"mine": variant}, "python:nowhere.py:images", class_map="y")["mine"]
    assert [(each.image, each.changed) for each in shown[:2]] == [(ids[5], 0.25), (ids[3], 0.125)]
    assert {each.image for each in shown[2:]} <= set(ids[:6])  # of those whose outputs are kept
    files = tmp_path / "out"
    with (
        Image.open(files / shown[0].file) as mine,
        Image.open(files / shown[0].baseline_file) as theirs,
    ):
        assert mine.size == theirs.size == (300, 200)
        pixels = [np.asarray(each, int)[50, 280] for each in (mine, theirs)]
    ground, disc = (np.asarray(colours_of(np.full((1, 1), n), 1), int)[0, 0] for n in (0, 1))
    assert np.abs(pixels[0] - ground).max() < 20
    assert np.abs(pixels[1] - disc).max() < 20
    assert len(np.unique(np.asarray(colours_of(np.arange(30)[None], 30))[0], axis=0)) == 30


def test_any_box_and_any_name_can_be_drawn() -> None:
    marked = [
        DrawnBox((float("nan"), -5, float("inf"), 900), "猫 0.9"),
        DrawnBox((50, 50, 10, 10), "x" * 300),
    ]
    assert jpeg(Image.new("RGB", (3000, 1)), marked, 320, 40)[:2] == b"\xff\xd8"


def _with_objects(folder: Path, ids: Sequence[str], **arrays: Any) -> Path:
    """One detection of a person in the first image, and what it has beside its box."""
    return evaluation(
        folder,
        ids,
        found_sample=np.array([0]),
        found_box=np.array([[20.0, 5, 100, 75]]),
        found_score=np.array([0.9]),
        found_label=np.array([0]),
        **arrays,
    )


def _mask(left: int, right: int) -> dict[str, np.ndarray]:
    from optcli.outputs import instances

    columns = np.arange(left, right)
    changes = np.stack([columns * 80 + 10, columns * 80 + 70], axis=1).reshape(-1)
    text = np.frombuffer(instances.run_lengths(changes, 80 * 120).encode(), np.uint8)
    return {
        "found_mask_size": np.array([[80, 120]]),
        "found_mask_length": np.array([len(text)]),
        "found_mask_text": text,
    }


PERSON = np.zeros((1, 17, 3), np.float32)
PERSON[0, :, 0] = 20 + 80 * np.linspace(0, 1, 17)
PERSON[0, :, 1] = 40 + 30 * np.sin(np.arange(17))
PERSON[0, :, 2] = 0.9


def _corners(angle: float) -> dict[str, np.ndarray]:
    from optcli.outputs import instances

    return {"found_corners": instances.corners_of(np.array([[60.0, 40, 70, 24]]), np.array([angle]))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        (_mask(25, 60), _mask(60, 95)),
        ({"found_keypoints": PERSON}, {"found_keypoints": PERSON + np.array([15, 0, 0])}),
        (_corners(0.2), _corners(0.5)),
    ],
    ids=["masks", "keypoints", "corners"],
)
def test_what_stands_beside_a_box_is_drawn_and_counts(
    tmp_path: Path, ids: list[str], theirs: dict[str, Any], mine: dict[str, Any]
) -> None:
    for name in ids:  # grey, so that colours are those of what is drawn
        Image.new("RGB", (120, 80), "grey").save(tmp_path / "images" / name)
    base = _with_objects(tmp_path / "b", ids, **theirs)
    variant = _with_objects(tmp_path / "v", ids, **mine)
    first = drawn(tmp_path, base, {"int8": variant})["int8"][0]
    assert (first.chosen, first.image) == ("worst", ids[0])
    assert (first.of, first.lost, first.moved) == (1, 0, 1)
    for file in (first.file, first.baseline_file):
        with Image.open(tmp_path / "out" / file) as image:
            pixels = np.asarray(image.convert("RGB"), int)
        blue = pixels[:, :, 2] - pixels[:, :, 0] > 60
        inside = blue[12:68, 24:96]
        assert inside.any(axis=0).mean() > 0.3
        if "found_mask_size" in theirs:  # half of the box is veiled, the other half is not
            halves = [inside[:, :35].mean(), inside[:, 38:].mean()]
            assert sorted(halves)[0] < 0.3
            assert sorted(halves)[1] > 0.9
