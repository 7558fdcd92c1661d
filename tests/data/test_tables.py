"""Labels that stand in tables beside images: text, CSV, JSON, Hugging Face's metadata and Parquet."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from generated import picture, spec

from optcli.data import DataSettings, class_names, ingredients, layouts, problems
from optcli.data import open as open_data
from optcli.environment import Needs
from optcli.errors import InputError, MissingError
from optcli.files.digest import FileDigests

NAMES = ("b.JPEG", "a.JPEG", "c.JPEG")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Three images in one folder."""
    (tmp_path / "val").mkdir()
    for number, name in enumerate(NAMES):
        picture(number).save(tmp_path / "val" / name)
    return tmp_path


def labels(folder: Path, **more):
    settings = DataSettings.model_validate({"source": "imagefolder:val", **more})
    samples = open_data(settings, folder, [spec(3, 12, 20)])
    return {sample.id: sample.target for sample in (samples[n] for n in range(len(samples)))}


TABLES = {
    "val.txt": "b.JPEG 1\r\na.JPEG 0\r\nc.JPEG 2\r\n",
    "map.txt": "val/b.JPEG\t1\nval/a.JPEG\t0\nval/c.JPEG\t2\n",
    "boxes.txt": "b.JPEG\t1\t0\t0\t5\t5\na.JPEG\t0\t1\t1\t5\t5\nc.JPEG\t2\t1\t1\t5\t5\n",
    "order.txt": "0\n1\n2\n",
    "val.csv": "\ufefffilename;class\nb.JPEG;1\na.JPEG;0\nc.JPEG;2\n",
    "bare.csv": "b.JPEG,1\na.JPEG,0\nc.JPEG,2\n",
    "more.csv": "id,label,width\nb,1,20\na,0,20\nc,2,20\n",
    "val.json": '{"b.JPEG": 1, "a.JPEG": 0, "c.JPEG": 2}',
    "pairs.json": '{"labels": [["./b.JPEG", 1], ["a.JPEG", 0], ["c.JPEG", 2]]}',
    "rows.json": json.dumps([{"path": name, "label": n} for n, name in enumerate("abc")]),
    "val.jsonl": '{"f": "b.JPEG", "y": "1"}\n{"f": "a.JPEG", "y": "0"}\n{"f": "c.JPEG", "y": "2"}\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_every_form_of_a_table(flat, name):
    (flat / name).write_text(TABLES[name])
    found = labels(flat, table=name)
    expected = {"a.JPEG": 0, "b.JPEG": 1, "c.JPEG": 2}
    assert found == expected
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("1.0,0.0", "0.0,1.0", "0.0,1.0"), [1, 0, 1]),
        (("1,1", "0,1", "0,0"), [[0, 1], [1, 1], [0, 0]]),
        (("1,", "0,1", "0,0"), [[0, 1], [1, -1], [0, 0]]),
        (("1,1", "-1,1", "-1,-1"), [[0, 1], [1, 1], [0, 0]]),
    ],
)
def test_a_column_for_each_class(flat, rows, expected):
    lines = [f"{name},{row}" for name, row in zip(NAMES, rows, strict=True)]
    (flat / "hot.csv").write_text("\n".join(["image,nevus,melanoma", *lines]))
    assert list(labels(flat, table="hot.csv").values()) == expected
    settings = DataSettings(source="imagefolder:val", table="hot.csv")
    assert class_names(settings, flat) == ("nevus", "melanoma")
    moved = labels(flat, table="hot.csv", labels={"offset": 1})["b.JPEG"]
    assert moved == 1 if isinstance(expected[1], int) else moved["labels"][0] == 1


def test_a_box_a_row(flat):
    (flat / "boxes.csv").write_text(
        "filename,width,height,class,xmin,ymin,xmax,ymax\n"
        "b.JPEG,20,12,dog,1,2,4,8\nb.JPEG,20,12,cat,0,0,20,12\nc.JPEG,20,12,,,,,\n"
    )
    found = labels(flat, table="boxes.csv")
    assert found["b.JPEG"]["boxes"].tolist() == [[1, 2, 4, 8], [0, 0, 20, 12]]
    assert found["b.JPEG"]["labels"].tolist() == [1, 0]
    assert [len(found[name]["boxes"]) for name in ("a.JPEG", "c.JPEG")] == [0, 0]
    (flat / "boxes.csv").write_text("path,label,x1,y1,x2,y2\nb,dog,0.1,0.2,0.5,1.0\n")
    with pytest.raises(InputError, match=r"0.1, 0.2, 0.5, 1.0, wanted left, top, right and bottom"):
        labels(flat, table="boxes.csv")


def test_names_are_numbered_in_sorted_order(flat):
    rows = "b,n02 1 2 3 4\na,n01440764 5 6 7 8 n01440764 1 2 3 4\nc,n01440765 1 2 3 4\n"
    (flat / "solution.csv").write_text(f"ImageId,PredictionString\n{rows.replace('n02', 'n02000000')}")
    assert labels(flat, table="solution.csv") == {"a.JPEG": 0, "b.JPEG": 2, "c.JPEG": 1}
    settings = DataSettings(source="imagefolder:val", table="solution.csv")
    assert class_names(settings, flat) == ("n01440764", "n01440765", "n02000000")


def test_it_is_said_once_from_where_numbers_count(flat):
    (flat / "val.txt").write_text("b.JPEG 2\na.JPEG 1\nc.JPEG 3\n")
    with pytest.raises(InputError, match="1 to 3: it is not known"):
        labels(flat, table="val.txt")
    assert labels(flat, table="val.txt", first_label=1) == {"a.JPEG": 0, "b.JPEG": 1, "c.JPEG": 2}
    assert labels(flat, table="val.txt", first_label=0) == {"a.JPEG": 1, "b.JPEG": 2, "c.JPEG": 3}
    with pytest.raises(InputError, match="found the label 1, wanted at least 2"):
        labels(flat, table="val.txt", first_label=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("b.JPEG 1\na.JPEG 0\n", "1 image has no row"),
        ("b.JPEG 1\na.JPEG 0\nc.JPEG 2\nd.JPEG 2\n", "row 4 'd.JPEG'"),
        ("b.JPEG 1\nb.JPEG 0\na.JPEG 0\nc.JPEG 2\n", "two rows with different labels"),
        ("x 1\ny 2\n", "no column names images"),
        ("b.JPEG 0.5\na.JPEG 0\nc.JPEG 2\n", "found the label 0.5"),
        ("", "the table is empty"),
    ],
)
def test_rows_and_images_must_go_together(flat, text, said):
    (flat / "val.txt").write_text(text)
    with pytest.raises(InputError, match=said):
        labels(flat, table="val.txt")


def test_rows_without_an_image_can_be_left_out(flat):
    (flat / "val.txt").write_text("b.JPEG 1\na.JPEG 0\nc.JPEG 2\nd.JPEG 2\n")
    said = {"source": "imagefolder:val", "table": "val.txt", "missing": "skip"}
    assert len(labels(flat, **said)) == 3
    found = layouts.find("imagefolder")(DataSettings.model_validate(said), flat).remarks(False)
    assert found == ["1 row of the table names no image, and is left out (missing: skip)"]


def test_the_column_of_the_labels_is_named(flat):
    (flat / "val.csv").write_text("file,hour,size\nb.JPEG,1,0\na.JPEG,0,1\nc.JPEG,2,0\n")
    with pytest.raises(InputError, match="not known which column"):
        labels(flat, table="val.csv")
    assert labels(flat, table="val.csv", target="size")["a.JPEG"] == 1
    with pytest.raises(InputError, match="no column 'sizes'"):
        labels(flat, table="val.csv", target="sizes")


def test_a_missing_table_is_a_problem(flat):
    (finding,) = problems(DataSettings(source="imagefolder:val", table="val.txt"), flat)
    assert finding[0] == "table"


def test_metadata_of_hugging_face(flat):
    (flat / "val" / "metadata.csv").write_text("file_name,label\nb.JPEG,dog\na.JPEG,cat\nc.JPEG,dog\n")
    assert labels(flat) == {"a.JPEG": 0, "b.JPEG": 1, "c.JPEG": 1}
    first = ingredients(DataSettings(source="imagefolder:val"), flat, FileDigests())["content"]
    (flat / "val" / "metadata.csv").write_text("file_name,label\nb.JPEG,dog\na.JPEG,dog\nc.JPEG,cat\n")
    again = ingredients(DataSettings(source="imagefolder:val"), flat, FileDigests())["content"]
    assert first != again


def test_boxes_in_metadata(flat):
    rows = [
        {"file_name": "a.JPEG", "objects": {"bbox": [[1, 2, 3, 4]], "categories": [1]}},
        {"file_name": "b.JPEG", "objects": {"bbox": [], "categories": []}},
        {"file_name": "c.JPEG", "objects": [{"bbox": [0, 0, 5, 5], "category": 0}]},
    ]
    (flat / "val" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    targets = labels(flat)
    assert targets["a.JPEG"]["boxes"].tolist() == [[1, 2, 4, 6]]
    assert targets["a.JPEG"]["labels"].tolist() == [1]
    assert len(targets["b.JPEG"]["labels"]) == 0
    rows[0]["objects"]["bbox"] = [[1, 2, 3]]
    (flat / "val" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="wanted a bbox and a category"):
        labels(flat)


def parquet(file: Path, numbers: range, *, feature: dict | None = None, **columns) -> None:
    """Images and other columns, as `Dataset.to_parquet` of Hugging Face writes them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = []
    for number in numbers:
        stream = io.BytesIO()
        picture(number).save(stream, "PNG")
        cells.append({"bytes": stream.getvalue(), "path": f"{number}.png"})
    table = pa.table({"image": cells, **columns})
    if feature is not None:
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": feature}})}
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=2)


@pytest.mark.slow
def test_parquet_of_hugging_face(tmp_path):
    named = {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}}
    data = tmp_path / "set" / "data"
    parquet(data / "train-00000-of-00001.parquet", range(9, 12), label=[0, 0, 0], feature=named)
    parquet(data / "test-00000-of-00002.parquet", range(3), label=[1, 0, 1], feature=named)
    parquet(data / "test-00001-of-00002.parquet", range(3, 5), label=[1, 1], feature=named)
    settings = DataSettings.model_validate({"source": "parquet:set", "split": "test"})
    samples = open_data(settings, tmp_path, [spec(3, 12, 20)])
    assert [samples[n].target for n in range(5)] == [1, 0, 1, 1, 1]
    assert class_names(settings, tmp_path) == ("cat", "dog", "emu")
    assert (samples[4].inputs["image"].transpose(1, 2, 0) == picture(4)).all()
    assert len({samples.identity(n) for n in range(5)}) == 5
    (finding,) = problems(
        settings.model_copy(update={"split": settings.split.model_copy(update={"name": "tset"})}),
        tmp_path,
    )
    assert "'test'" in finding[2]


@pytest.mark.slow
def test_parquet_of_names_and_boxes_and_without_labels(tmp_path):
    def targets(**columns):
        parquet(tmp_path / "a.parquet", range(2), **columns)
        samples = open_data(DataSettings(source="parquet:a.parquet"), tmp_path, [spec(3, 12, 20)])
        return [samples[n].target for n in range(2)]

    assert targets(label=["dog", "cat"]) == [1, 0]
    assert targets() == [None, None]
    boxes = [{"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [0]}, {"bbox": [], "category": []}]
    first, second = targets(objects=boxes)
    assert first["boxes"].tolist() == [[1, 2, 4, 6]]
    assert len(second["boxes"]) == 0
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        open_data(DataSettings(source="parquet:a.parquet"), tmp_path, [spec(3, 12, 20)])


def test_what_a_missing_library_asks_for(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setattr("optcli.environment.version", lambda name: None)
    with pytest.raises(MissingError) as raised:
        ingredients(DataSettings(source="parquet:a.parquet"), tmp_path, FileDigests())
    assert raised.value.hint == "pip install pyarrow"
    assert layouts.find("parquet").needs == Needs(("pyarrow",))
