from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated import picture, spec

from optcli.data import DataSettings, disjoint, ingredients
from optcli.data import open as open_data
from optcli.errors import InputError, TrustError
from optcli.files.digest import FileDigests
from optcli.sample import batches


def opened(folder: Path, *inputs: Any, **settings: Any) -> Any:
    return open_data(DataSettings.model_validate(settings), folder, inputs)


def key(folder: Path, **settings: Any) -> dict[str, Any]:
    return ingredients(DataSettings.model_validate(settings), folder, FileDigests())


def test_npz_by_name_with_targets_ids_and_splits(arrays: Path) -> None:
    samples = opened(arrays.parent, spec(8, 8), source="npz:rows.npz", split="test")
    content = np.load(arrays)
    assert [sample.id for sample in samples] == ["row-16", "row-17", "row-18", "row-19"]
    assert [sample.target for sample in samples] == [6, 7, 8, 9]
    np.testing.assert_array_equal(samples[0].inputs["image"], content["image"][16])


def test_npz_feeds_several_inputs(arrays: Path) -> None:
    inputs = (spec(1, 16, 16), spec(5, name="second", dtype="float16"))
    samples = opened(arrays.parent, *inputs, source="npz:rows.npz", prepare={"resize": 16})
    batch = next(batches(samples, 7))
    assert batch.inputs["image"].shape == (7, 1, 16, 16)
    assert batch.inputs["second"].shape == (7, 5)
    assert batch.inputs["second"].dtype == np.float16


def test_npz_with_names_of_its_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x_test=np.zeros((3, 4)), y_test=np.array([[1, 0]] * 3))
    settings = {"source": "npz:mnist.npz", "array": "x_test", "target": "y_test"}
    samples = opened(tmp_path, spec(4), **settings)
    np.testing.assert_array_equal(samples[2].target, [1, 0])
    assert samples[2].id == "2"


def test_roles_share_what_was_read(arrays: Path) -> None:
    one = opened(arrays.parent, spec(8, 8), source="npz:rows.npz", split="train")
    other = opened(arrays.parent, spec(8, 8), source="npz:rows.npz", split="test")
    assert one._items._arrays["image"] is other._items._arrays["image"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"picture": np.zeros((2, 4))}, "no array 'image' in the file, it has picture"),
        ({"image": np.zeros((2, 4)), "target": np.zeros(3)}, "'target' has 3 rows, the others 2"),
        ({"image": np.zeros(())}, "has no rows"),
        ({"image": np.zeros((0, 4))}, "no samples"),
    ],
)
def test_unfit_npz(tmp_path: Path, content: dict[str, np.ndarray], said: str) -> None:
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(InputError, match=said):
        opened(tmp_path, spec(4), source="npz:a.npz")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(TrustError, match="pickled"):
        opened(tmp_path, spec(4), source="npz:a.npz")


def test_a_truncated_npz(arrays: Path) -> None:
    arrays.write_bytes(arrays.read_bytes()[:-200])
    with pytest.raises(InputError, match="not an npz"):
        opened(arrays.parent, spec(8, 8), source="npz:rows.npz")


def test_folders_are_classes(classes: Path) -> None:
    samples = opened(classes.parent, spec(3, 12, 20), source="imagefolder:photos")
    assert [sample.target for sample in samples] == [0] * 4 + [1] * 4 + [2] * 4
    assert samples[5].id == "bee/05.png"
    np.testing.assert_array_equal(samples[5].inputs["image"], np.asarray(picture(5)).transpose(2, 0, 1))


def test_a_flat_folder_has_no_targets(classes: Path) -> None:
    samples = opened(classes.parent, spec(3, 12, 20), source="imagefolder:photos/bee")
    assert [sample.target for sample in samples] == [None] * 4


def test_a_named_subfolder_is_a_split(classes: Path) -> None:
    shutil.copytree(classes, classes.parent / "set" / "train")
    shutil.copytree(classes / "bee", classes.parent / "set" / "test" / "bee")
    samples = opened(classes.parent, spec(3, 12, 20), source="imagefolder:set", split="train")
    assert samples[11].id == "train/cat/11.png"
    assert samples[11].target == 2
    with pytest.raises(InputError, match="folders of folders") as raised:
        opened(classes.parent, spec(3, 12, 20), source="imagefolder:set")
    assert "split: test" in raised.value.hint


def test_a_single_folder_of_classes_is_entered(classes: Path) -> None:
    samples = opened(classes.parent, spec(3, 12, 20), source=f"imagefolder:{classes.parent}")
    assert samples[11].id == "photos/cat/11.png"
    assert samples[11].target == 2


def test_images_beside_class_folders(classes: Path) -> None:
    picture(1).save(classes / "loose.png")
    with pytest.raises(InputError, match="both images and folders"):
        opened(classes.parent, spec(3, 12, 20), source="imagefolder:photos")


def test_a_corrupt_image_is_named_when_it_is_read(classes: Path) -> None:
    whole = (classes / "bee" / "05.png").read_bytes()
    samples = opened(classes.parent, spec(3, 12, 20), source="imagefolder:photos")
    for broken in (whole[: len(whole) // 2], b"", b"no image at all"):
        (classes / "bee" / "05.png").write_bytes(broken)
        with pytest.raises(InputError, match="not a readable image") as raised:
            samples[5]
        assert raised.value.place.endswith("bee/05.png")
    assert samples[4].target == 1


def test_keys_hang_on_the_chosen_content_alone(classes: Path) -> None:
    folder = classes.parent
    settings: dict[str, Any] = {"source": "imagefolder:photos", "samples": 6}
    before = key(folder, **settings)
    chosen = [sample.id for sample in opened(folder, spec(3, 12, 20), **settings)]
    others = [f"{p.parent.name}/{p.name}" for p in classes.glob("*/[0-9]*.png")]
    picture(99).save(classes / next(name for name in others if name not in chosen))
    assert key(folder, **settings) == before
    shutil.copytree(classes, folder / "moved" / "photos")
    assert key(folder / "moved", **settings) == before
    picture(99).save(classes / chosen[0])
    assert key(folder, **settings) != before


def test_keys_hang_on_the_steps_and_on_labels(classes: Path, arrays: Path) -> None:
    source = {"source": "imagefolder:photos"}
    assert key(classes.parent, **source) != key(classes.parent, **source, prepare={"resize": 8})
    before = key(classes.parent, **source, samples=2)
    (classes / "aardvark").mkdir()
    picture(50).save(classes / "aardvark" / "50.png")
    assert key(classes.parent, **source, samples=2)["content"] != before["content"]
    (arrays.parent / "ids.txt").write_text("row-1\n")
    split = {"source": "npz:rows.npz", "split": {"file": "ids.txt"}}
    one = key(arrays.parent, **split)
    (arrays.parent / "ids.txt").write_text("row-2\n")
    assert key(arrays.parent, **split) != one


def test_evaluation_must_be_new(classes: Path, arrays: Path) -> None:
    folder = classes.parent
    image = spec(3, 12, 20)
    (folder / "copy" / "dog").mkdir(parents=True)
    shutil.copy(classes / "bee" / "05.png", folder / "copy" / "dog" / "renamed.png")
    picture(77).save(folder / "copy" / "dog" / "new.png")
    photos = opened(folder, image, source="imagefolder:photos")
    copied = opened(folder, image, source="imagefolder:copy")
    with pytest.raises(
        InputError, match=r"evaluation and training share 1 of 2.*dog/renamed.png = bee/05.png"
    ):
        disjoint(
            {"calibration": photos, "training": photos, "evaluation": copied}
            | {"calibration": copied_new(folder)}
        )
    rows = {
        name: opened(folder, spec(8, 8), source="npz:rows.npz", split=name)
        for name in ("train", "test")
    }
    disjoint({"training": rows["train"], "calibration": rows["train"], "evaluation": rows["test"]})
    with pytest.raises(InputError, match="share 4 of 4"):
        disjoint({"calibration": rows["test"], "evaluation": rows["test"]})


def copied_new(folder: Path) -> Any:
    (folder / "fresh").mkdir()
    picture(78).save(folder / "fresh" / "a.png")
    return opened(folder, spec(3, 12, 20), source="imagefolder:fresh")


def test_labels_do_not_make_a_row_another(tmp_path: Path) -> None:
    image = np.random.default_rng(0).normal(size=(4, 3))
    image[3] = image[0]
    np.savez(tmp_path / "a.npz", image=image, y=np.arange(4), split=np.array(["a", "a", "b", "b"]))
    roles = {
        name: opened(tmp_path, spec(3), source="npz:a.npz", split=part)
        for name, part in (("training", "a"), ("evaluation", "b"))
    }
    with pytest.raises(InputError, match="share 1 of 2"):
        disjoint(roles)


def test_two_inputs_want_arrays(classes: Path) -> None:
    with pytest.raises(InputError, match="feeds one input") as raised:
        opened(classes.parent, spec(3, 12, 20), spec(4, name="more"), source="imagefolder:photos")
    assert "npz" in raised.value.hint


@pytest.mark.slow
def test_imagenet_by_its_split_file(shared: Path) -> None:
    folder = shared / "datasets" / "imagenet_1000"
    image = spec(3, 224, 224)
    common = {"prepare": {"crop": 224}, "source": "imagefolder:images"}
    evaluation = opened(folder, image, **common, split={"file": "split.json", "name": "evaluation"})
    calibration = opened(
        folder, image, **common, split={"file": "split.json", "name": "calibration"}, samples=50
    )
    assert (len(evaluation), len(calibration)) == (500, 50)
    disjoint({"evaluation": evaluation, "calibration": calibration})
    assert evaluation[499].target == 999
    assert calibration[0].inputs["image"].shape == (3, 224, 224)
    whole = opened(
        folder.parent,
        image,
        source="imagefolder:imagenet_1000",
        prepare={"crop": 224},
        split={"file": "imagenet_1000/split.json", "name": "evaluation"},
    )
    assert whole[499].target == 999


@pytest.mark.slow
def test_cifar_by_folder(shared: Path) -> None:
    parts = {
        role: opened(
            shared / "datasets", spec(3, 32, 32), source="imagefolder:cifar10_subset", split=part
        )
        for role, part in (("training", "train"), ("evaluation", "test"))
    }
    assert len(parts["training"]) == 10_000
    assert parts["evaluation"][1999].target == 9


@pytest.mark.slow
def test_fashion_mnist_by_name(shared: Path) -> None:
    from torchvision.datasets import FashionMNIST

    root = str(shared / "datasets")
    settings: dict[str, Any] = {"source": "torchvision:FashionMNIST", "root": root, "split": "test"}
    samples = opened(Path(), spec(1, 28, 28), **settings)
    image, target = FashionMNIST(root, train=False)[7]
    assert len(samples) == 10_000
    np.testing.assert_array_equal(samples[7].inputs["image"][0], np.asarray(image))
    assert (samples[7].id, samples[7].target) == ("7", target)
    part = opened(
        Path(), spec(1, 28, 28), **{**settings, "split": {"seed": 1, "to": 0.1, "of": "train"}}
    )
    assert len(part) == 6000
    with pytest.raises(InputError, match="wants 3 channels") as raised:
        opened(Path(), spec(3, 28, 28), **settings)[0]
    assert "channel_order: rgb" in raised.value.hint
    assert key(Path(), **settings) != key(Path(), **{**settings, "split": "train"})


@pytest.mark.slow
def test_the_digits_are_disjoint_and_stratified() -> None:
    folder = Path(__file__).parents[2] / "calibration_data"
    parts = {
        name: opened(folder, spec(8, 8), source="npz:digits.npz", split=name)
        for name in ("calibration", "training", "validation", "evaluation")
    }
    assert {name: len(part) for name, part in parts.items()} == {
        "calibration": 260, "training": 837, "validation": 200, "evaluation": 500,
    }  # fmt: skip
    for name in parts:
        disjoint(
            {
                **{other: part for other, part in parts.items() if other != name},
                "evaluation": parts[name],
            }
        )
    assert np.bincount([sample.target for sample in parts["evaluation"]]).tolist() == [50] * 10


@pytest.mark.long
@pytest.mark.slow
def test_the_digits_are_rebuilt_byte_for_byte() -> None:
    import subprocess
    import sys

    script = Path(__file__).parents[2] / "calibration_data" / "build_digits.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True)
