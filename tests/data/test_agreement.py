"""Whether images and their annotations agree: sizes, EXIF orientation, boxes outside."""

import pytest
from generated import picture
from PIL import Image

from optcli.data.layouts._annotated import AnnotatedImage, disagreements


def image(folder, name, size, annotated, orientation=None, boxes=()):
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    picture(0, size=size).save(folder / name, exif=exif)
    return AnnotatedImage(name, folder / name, annotated, boxes)


def test_images_that_agree_leave_nothing_to_say(tmp_path):
    same = image(tmp_path, "a.jpg", (20, 12), (20, 12), boxes=[(0, 0, 20, 12), (19, 11, 1.5, 1)])
    unknown = image(tmp_path, "b.png", (20, 12), None)
    broken = AnnotatedImage("c.jpg", tmp_path / "c.jpg", (1, 1))
    (tmp_path / "c.jpg").write_bytes(b"no image")
    assert disagreements([same, unknown, broken], orient=False) == []


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_images_that_were_annotated_as_turned(tmp_path, orientation):
    images = [
        image(tmp_path, "a.jpg", (20, 12), (12, 20), orientation),
        image(tmp_path, "b.jpg", (12, 20), (12, 20)),
    ]
    (said,) = disagreements(images, orient=False)
    assert said.startswith("1 of 2 images is annotated as turned by the EXIF orientation")
    assert "a.jpg, has 20 x 12 pixels, and 12 x 20 in the annotations" in said
    assert "prepare: {orient: true}" in said
    assert disagreements(images, orient=True) == []


def test_images_that_were_annotated_as_stored_and_are_turned(tmp_path):
    turned = image(tmp_path, "a.jpg", (20, 12), (20, 12), 6)
    assert disagreements([turned], orient=False) == []
    (said,) = disagreements([turned], orient=True)
    assert "take `orient: true` out of `prepare`" in said


@pytest.mark.parametrize(("size", "orientation"), [((20, 12), 3), ((12, 12), 6), ((20, 12), 2)])
def test_turns_that_sizes_do_not_tell(tmp_path, size, orientation):
    (said,) = disagreements([image(tmp_path, "a.jpg", size, size, orientation)], orient=False)
    assert said.startswith("1 of 1 image has an EXIF orientation")
    assert disagreements([image(tmp_path, "a.jpg", size, size, orientation)], orient=True) == []


def test_images_that_were_resized_after_they_were_annotated(tmp_path):
    (said,) = disagreements([image(tmp_path, "a.png", (20, 12), (40, 24))], orient=False)
    assert "another size than the annotations say" in said


def test_boxes_beyond_their_image_are_counted(tmp_path):
    boxes = [(15, 2, 10, 4), (-3, 0, 5, 5), (1, 1, 2, 2)]
    (said,) = disagreements([image(tmp_path, "a.png", (20, 12), (20, 12), boxes=boxes)], orient=False)
    assert said.startswith("2 boxes reach beyond their image, in 1 of 1 image, the first in a.png")
