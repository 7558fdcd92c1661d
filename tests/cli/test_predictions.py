"""`verify-accuracy --predictions`: what another machine answered, and the inputs that it got."""

import json

import numpy as np
import pytest
from tiny_project import DATA


@pytest.fixture
def answered(place, optcli):
    """The inputs as they are written for another machine, and what ONNX Runtime answers there."""
    import onnxruntime

    place.recipe("  plain: []\n", data=DATA)
    said = optcli("verify-accuracy", "--write-inputs", "inputs.npz", "--recipe", "recipe.yaml")
    assert said.code == 0, said.err
    with np.load("inputs.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    ids = arrays.pop("ids")
    session = onnxruntime.InferenceSession("model.onnx")
    (output,) = [each.name for each in session.get_outputs()]
    ((name, images),) = arrays.items()
    rows = np.concatenate([session.run(None, {name: image[None]})[0] for image in images])
    np.savez("phone.npz", ids=ids, **{output: rows})
    return ids, output, rows


def judged(optcli, *arguments, code=0):
    line = ("verify-accuracy", "--recipe", "recipe.yaml", "--json", "--predictions", *arguments)
    said = optcli(*line)
    assert said.code == code, said.err
    return json.loads(said.out)


@pytest.mark.slow
def test_the_same_answers_lose_nothing(answered, optcli):
    report = judged(optcli, "phone.npz")
    assert (report["baseline"], list(report["variants"])) == ("plain", ["plain", "phone"])
    found = report["variants"]["phone"]
    assert (found["accuracy"]["regressed"], found["accuracy"]["agreement"]) == (0, 1)
    assert found["accuracy"]["isa"] is None  # this machine computed nothing of it
    verdicts = {each["name"]: each for each in found["verdicts"]}
    assert verdicts["accuracy"]["outcome"] == "accept"
    assert "samples" not in verdicts


@pytest.mark.slow
def test_worse_answers_are_rejected_and_found_in_the_store(answered, optcli):
    ids, output, rows = answered
    np.savez("npu.npz", ids=ids, **{output: -rows})
    strict = ("--set", "accuracy.max_drop=0")
    report = judged(optcli, "npu.npz", "--name", "the NPU", *strict, code=1)
    assert list(report["variants"]) == ["plain", "the NPU"]
    assert report["variants"]["the NPU"]["accuracy"]["agreement"] == 0
    line = ("verify-accuracy", "--recipe", "recipe.yaml", "--predictions", "npu.npz", *strict)
    again = optcli(*line, "--markdown")
    assert "answers of npu.npz" in again.out
    assert "built" not in again.err  # the name is in no key
    optcli(*line, "--junit", "junit.xml")


@pytest.mark.slow
def test_a_part_is_said_in_words(answered, optcli):
    ids, output, rows = answered
    np.savez("part.npz", ids=ids[:4], **{output: rows[:4]})
    said = optcli("verify-accuracy", "--predictions", "part.npz", "--recipe", "recipe.yaml")
    assert said.code == 2
    assert f"{len(ids) - 4} of {len(ids)} samples have no answer" in said.err
    report = judged(optcli, "part.npz", "--partial", code=5)  # so few cannot tell
    found = report["variants"]["part"]
    assert found["accuracy"]["samples"] == report["variants"]["plain"]["accuracy"]["samples"] == 4
    (told,) = [each for each in found["verdicts"] if each["name"] == "samples"]
    assert told["reason"] == f"judged on 4 of {len(ids)} samples, those that the file answers"
    assert not told["blocking"]


@pytest.mark.slow
def test_what_a_build_left_is_not_computed_again(answered, optcli):
    assert optcli("build", "recipe.yaml").code == 0
    said = optcli("verify-accuracy", "--predictions", "phone.npz", "--recipe", "recipe.yaml")
    assert said.code == 0
    assert "cached  plain › accuracy" in said.err


@pytest.mark.slow
def test_answers_in_another_order_of_classes_are_no_accuracy(answered, optcli):
    with open("shifted.csv", "w", encoding="utf-8") as file:
        file.write("id,class\n")
        for name, row in zip(answered[0], answered[2], strict=True):
            file.write(f"{name},{int(row.argmax())}x\n")
    said = optcli("verify-accuracy", "--predictions", "shifted.csv", "--recipe", "recipe.yaml")
    assert said.code == 2
    assert "wanted a class number or a class name of the data" in said.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("--predictions", "a.npz"), "answers and inputs of another machine go with --recipe"),
        (("--write-inputs", "a.npz"), "answers and inputs of another machine go with --recipe"),
        (("b.onnx", "--predictions", "a.npz", "--recipe", "recipe.yaml"), "and with no files"),
        (("--name", "phone"), "found --name without --predictions"),
        (("--partial", "--recipe", "recipe.yaml"), "found --partial without --predictions"),
        (("--predictions", "gone.npz", "--recipe", "recipe.yaml"), "no such file: gone.npz"),
    ],
)
def test_options_that_do_not_go_together_are_said(place, optcli, line, message):
    place.recipe("  plain: []\n", data=DATA)
    said = optcli("verify-accuracy", *line)
    assert said.code == 2
    assert message in said.err


def test_answers_need_a_name_of_their_own_and_data(place, optcli):
    place.recipe("  plain: []\n", data=DATA)
    (place.folder / "plain.npz").write_bytes(b"PK")
    said = optcli("verify-accuracy", "--predictions", "plain.npz", "--recipe", "recipe.yaml")
    assert (said.code, "has the name 'plain', too" in said.err) == (2, True)
    place.recipe("  plain: []\n", data="")
    for option in ("--predictions", "--write-inputs"):
        said = optcli("verify-accuracy", option, "plain.npz", "--recipe", "recipe.yaml")
        assert said.code == 2
        assert "the recipe names no" in said.err
    assert (place.folder / "plain.npz").read_bytes() == b"PK"
