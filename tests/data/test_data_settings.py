from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from optcli.data import DataSettings, problems


def test_short_forms_are_the_long_ones() -> None:
    short = DataSettings(source="npz:a.npz", split="train", prepare="torchvision:resnet50")
    full = DataSettings(
        source="npz:a.npz", split={"name": "train"}, prepare={"preset": "torchvision:resnet50"}
    )
    assert short == full
    assert DataSettings.model_validate("npz:a.npz") == DataSettings(source="npz:a.npz")


def test_scale_may_be_a_fraction() -> None:
    assert DataSettings(source="npz:a", prepare={"scale": "1/255"}).prepare.scale == 1 / 255
    assert DataSettings(source="npz:a", prepare={"scale": "1/127.5"}).prepare.scale == 1 / 127.5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"splt": "train"}, "Extra inputs"),
        ({"source": "digits.npz"}, "KIND:PLACE"),
        ({"split": {}}, "wanted name, file or seed"),
        ({"split": {"seed": 1, "name": "a"}}, "found several"),
        ({"split": {"seed": 1, "from": 0.5, "to": 0.2}}, "from < to"),
        ({"split": {"name": "a", "from": 0.5}}, "seed beside"),
        ({"prepare": "resnet50"}, "pattern"),
        ({"prepare": {"std": 0}}, "divided by"),
        ({"prepare": {"scale": "1/0"}}, "fraction"),
        ({"prepare": {"resize": 8, "letterbox": {"size": 8}}}, "its own size"),
        ({"prepare": {"resise": 8}}, "Extra inputs"),
        ({"samples": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DataSettings.model_validate({"source": "npz:a.npz", **wrong})


def test_paths_of_errors_are_keys_of_the_recipe() -> None:
    """The recipe finds line and column by these."""
    with pytest.raises(ValidationError) as raised:
        DataSettings.model_validate(
            {"source": "npz:a", "split": {"nmae": "x", "name": "y"}, "prepare": {"crop": "wide"}}
        )
    places = [error["loc"][:2] for error in raised.value.errors()]
    assert places == [("split", "nmae"), ("prepare", "crop")]


@pytest.mark.parametrize(
    "settings",
    [
        {"split": "train", "samples": 3},
        {"split": {"seed": 1, "from": 0.2}, "prepare": "torchvision:resnet50"},
        {"prepare": {"preset": "torchvision:resnet50", "crop": 8, "scale": 1}},
        {"prepare": {"letterbox": {"size": 8}}},
    ],
)
def test_settings_survive_the_way_to_a_worker(settings: dict[str, Any]) -> None:
    """As plain data and back; what was not set stays unset, or it would hide a preset."""
    before = DataSettings.model_validate({"source": "npz:a.npz", **settings})
    after = DataSettings.model_validate(json.loads(json.dumps(before.model_dump(mode="json"))))
    assert after == before
    if before.prepare and after.prepare:
        assert after.prepare.model_fields_set == before.prepare.model_fields_set


def test_that_steps_are_guessed_changes_no_sample() -> None:
    guessed = {"source": "npz:a.npz", "prepare": {"scale": "1/255", "guessed": True}}
    known = {"source": "npz:a.npz", "prepare": {"scale": "1/255"}}
    one, other = (DataSettings.model_validate(each).without_paths() for each in (guessed, known))
    assert one == other


def test_the_schema_knows_the_short_forms() -> None:
    schema = json.dumps(DataSettings.model_json_schema())
    assert '"from"' in schema
    assert "^(torchvision|timm|hf):" in schema


@pytest.mark.parametrize(
    ("settings", "field", "said", "hint"),
    [
        ({"source": "nzp:a"}, "source", "unknown data source 'nzp'", "npz"),
        ({"source": "npz:none.npz"}, "source", "no such file", ""),
        ({"source": "npz:README"}, "source", "not an npz", ""),
        ({"source": "npz:rows.npz", "target": "targt"}, "target", "no array", "target"),
        ({"source": "npz:rows.npz", "array": "imag"}, "array", "no array", "image"),
        ({"source": "npz:rows.npz", "split": {"file": "no.txt"}}, "split.file", "no such file", ""),
        ({"source": "imagefolder:phtos"}, "source", "no such folder", "photos"),
        ({"source": "imagefolder:photos", "split": "bea"}, "split", "no folder", "bee"),
        ({"source": "imagefolder:empty"}, "source", "no images", "suffix"),
        ({"source": "torchvision:CIFAR11"}, "source", "unknown torchvision", "CIFAR10"),
        ({"source": "torchvision:CIFAR10"}, "split", "split is missing", "train, test"),
        ({"source": "torchvision:CIFAR10", "split": "tset"}, "split", "no split", "test"),
        ({"source": "torchvision:CIFAR10", "split": {"seed": 1}}, "split.of", "missing", "train"),
        ({"source": "torchvision:CIFAR10", "split": "test"}, "root", "missing", "root"),
        ({"source": "torchvision:CIFAR10", "split": "test", "root": "."}, "root", "not in", "download"),
    ],
)
def test_problems_name_the_field_and_mend_it(
    arrays: Path, classes: Path, settings: dict[str, Any], field: str, said: str, hint: str
) -> None:
    (arrays.parent / "README").write_text("text")
    (arrays.parent / "empty").mkdir()
    found = problems(DataSettings.model_validate(settings), arrays.parent)
    matching = [item for item in found if item[0] == field]
    assert matching, found
    assert said in matching[0][1]
    assert hint in matching[0][2]


def test_sound_data_has_no_problems(arrays: Path, classes: Path) -> None:
    for source in ("npz:rows.npz", "imagefolder:photos", f"npz:{arrays}"):
        assert problems(DataSettings(source=source), arrays.parent) == []


@pytest.mark.slow
def test_checking_and_keys_import_nothing_heavy(arrays: Path, classes: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from optcli.data import *; from optcli.files.digest import FileDigests\n"
        "for source in ('npz:rows.npz', 'imagefolder:photos'):\n"
        "    settings = DataSettings(source=source, samples=4); folder = Path(sys.argv[1])\n"
        "    assert problems(settings, folder) == []; ingredients(settings, folder, FileDigests())\n"
        "assert not {'numpy', 'torch', 'torchvision', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(arrays.parent)], check=True)
