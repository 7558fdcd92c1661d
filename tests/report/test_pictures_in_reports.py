"""Pictures on the page of a build: each file once, in words for who cannot see it, safe."""

from __future__ import annotations

import base64
from pathlib import Path

from example import report, variant
from report_forms import page as page_of
from test_html_report import Parsed

from optcli.pipeline import report_files
from optcli.results import Report
from optcli.results.pictures import Answer, Picture

JPEG = b"\xff\xd8\xff\xe0 a picture"
A, B, C = (f"pictures/{name * 16}.jpg" for name in "abc")


def boxes(file: str, baseline: str = A, **counts: int) -> Picture:
    about = {"image": "<b>.jpg", "chosen": "worst", "score": 0.25, "of": 4, "lost": 0, "renamed": 0}
    return Picture.model_validate(about | {"new": 0, "file": file, "baseline_file": baseline, **counts})


def told(**pictures: Picture) -> Report:
    variants = {"eager": variant(1, [])} | {
        name: variant(1, [], pictures=(each,)) for name, each in pictures.items()
    }
    return report(variants=variants)


def shown(given: Report, images: dict[str, bytes]) -> Parsed:
    parsed = Parsed(page_of(given, images=images))
    policy = next(each for each in parsed.all("meta") if each.get("http-equiv"))
    assert ("img-src data:" in str(policy["content"])) is bool(parsed.all("img"))
    return parsed


def test_the_baseline_stands_once_beside_all_variants_that_show_the_image() -> None:
    given = told(int8=boxes(B, lost=1, new=2), fp16=boxes(C))
    page = shown(given, {A: JPEG, B: JPEG + b"b", C: JPEG + b"c"})
    sources = [str(each["src"]) for each in page.all("img")]
    assert [base64.b64decode(each.partition(",")[2]) for each in sources] == [
        JPEG,
        JPEG + b"b",
        JPEG + b"c",
    ]
    assert all(each.startswith("data:image/jpeg;base64,") for each in sources)
    assert [each["alt"] for each in page.all("img")] == [
        "<b>.jpg. eager: 4 detections with a score of 0.25 or more.",
        "<b>.jpg. int8: 1 of 4 not found, 2 new.",
        "<b>.jpg. fp16: the same detections.",
    ]
    assert "<b>.jpg (differs most)" in page.said("figcaption")


def test_a_classifier_has_one_picture_with_all_answers() -> None:
    cat, dog = Answer(label=0, name="cat", confidence=0.913), Answer(label=1, confidence=0.5)
    one = Picture(
        image="7", chosen="random", file=A, baseline_file=A, answer=dog, baseline_answer=cat, target=cat
    )
    page = shown(told(int8=one), {A: JPEG})
    assert [each["alt"] for each in page.all("img")] == ["7. eager: cat (91 %). int8: class 1 (50 %)."]
    assert "7, label cat (chosen at random)" in page.said("figcaption")


def test_a_page_without_the_files_has_no_section_of_pictures() -> None:
    page = shown(told(int8=boxes(B)), {A: JPEG})
    assert "pictures" not in {each.get("id") for each in page.all("section")}


def test_a_report_from_elsewhere_shows_pictures_of_its_own_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "pictures").mkdir(parents=True)
    (folder / A).write_bytes(JPEG)
    (folder / B).write_bytes(b"<svg/>")
    outside = "../secret.jpg"
    (tmp_path / "secret.jpg").write_bytes(JPEG)
    given = told(int8=boxes(B), fp16=boxes(outside), other=boxes(C))
    assert report_files.images_of(folder, given) == {A: JPEG}
