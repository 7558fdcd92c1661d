"""Counts in texts agree with their nouns: one function says both."""

from __future__ import annotations

from optcli.errors import counted, plural


def test_one_thing_is_no_plural() -> None:
    assert [counted(n, "image") for n in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert counted(12_000, "image") == "12,000 images"
    assert counted(1, "image has no mask", "images have no mask") == "1 image has no mask"
    assert counted(3, "class", "classes") == "3 classes"
    assert [plural(n, "is", "are") for n in (1, 2)] == ["is", "are"]
