"""Fine-tuning on mirrored and shifted images: which views are harmless, and when they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from tiny_networks import Heard, artifact

from optcli.artifact import Artifact, Format
from optcli.models.sources.python import PythonSource
from optcli.passes import Job
from optcli.passes._torch.examples import Examples, ExampleSet, Views, harmless
from optcli.passes._torch.learning import Loss
from optcli.passes.finetune import Finetune
from optcli.sample import Sample
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

SIDE = 16
LOSS = Loss("output", 0.5, 2.0, 0.0)
IMAGE = (TensorSpec(name="image", shape=["batch", 1, SIDE, SIDE]),)
CODE = """
    import torch
    from torch import nn

    class Brightness(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 4, 3, padding=1)
            self.head = nn.Linear(4, 2)
            nn.init.constant_(self.stem.weight, 0.1)
            nn.init.constant_(self.head.bias, 0.0)

        def forward(self, image):
            return self.head(torch.relu(self.stem(image)).mean((2, 3)))
    """


@dataclass
class Halves:
    """Images whose one half is bright: the class says which."""

    count: int = 64
    labelled: bool = True
    channels: int = 1
    side: int = SIDE

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        image = np.zeros((self.channels, self.side, self.side), np.float32)
        half = slice(0, self.side // 2) if index % 2 == 0 else slice(self.side // 2, None)
        image[:, :, half] = 1.0
        return Sample(f"{index}", {"image": image}, index % 2 if self.labelled else None)


def by_half(batch: Examples) -> dict[str, torch.Tensor]:
    """A teacher that sees which half is brighter."""
    (images,) = batch.feed.values()
    width = images.shape[3]
    halves = [images[..., : width // 2], images[..., width // 2 :]]
    return {"output": torch.stack([half.flatten(1).sum(1) for half in halves], dim=1)}


def batch_of(images: torch.Tensor) -> Examples:
    return Examples(tuple(range(len(images))), {"image": images}, None)


def test_a_view_mirrors_some_images_and_leaves_the_others() -> None:
    images = torch.arange(64 * 16 * 16, dtype=torch.float32).reshape(64, 1, 16, 16)
    torch.manual_seed(0)
    seen = Views("image", mirrors=True, shift=0)(batch_of(images)).feed["image"]
    same = (seen == images).flatten(1).all(1)
    mirrored = (seen == images.flip(3)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 10 < int(same.sum()) < 54
    torch.manual_seed(0)
    again = Views("image", mirrors=True, shift=0)(batch_of(images)).feed["image"]
    assert torch.equal(again, seen), "the seed decides"


def test_a_view_moves_images_and_repeats_their_edge() -> None:
    images = torch.arange(16 * 16, dtype=torch.float32).reshape(1, 1, 16, 16).repeat(64, 1, 1, 1)
    torch.manual_seed(0)
    seen = Views("image", mirrors=False, shift=2)(batch_of(images)).feed["image"]
    assert seen.shape == images.shape
    places = {(int(each[0, 8, 8]) // 16 - 8, int(each[0, 8, 8]) % 16 - 8) for each in seen}
    assert places <= {(row, column) for row in range(-2, 3) for column in range(-2, 3)}
    assert len(places) > 10
    one = seen[0, 0]
    row = int(one[8, 8]) // 16 - 8
    clamped = [min(15, max(0, line + row)) for line in range(16)]
    assert [int(each) // 16 for each in one[:, 8]] == clamped


def test_what_changes_the_class_is_not_shown() -> None:
    found = harmless(by_half, LOSS, ExampleSet(Halves(), "training"), 16)
    assert found == Views("image", mirrors=False, shift=SIDE // 8)


def test_without_labels_the_teacher_s_own_answers_decide() -> None:
    found = harmless(by_half, LOSS, ExampleSet(Halves(labelled=False), "training"), 16)
    assert found == Views("image", mirrors=False, shift=SIDE // 8)


def test_where_nothing_is_harmless_the_reason_is_said() -> None:
    calls: list[int] = []

    def fickle(batch: Examples) -> dict[str, torch.Tensor]:
        """Right on the images as they are, which come first, and wrong on all others."""
        calls.append(len(batch.positions))
        right = len(calls) <= 4
        answers = torch.tensor([(p % 2) if right else 1 - (p % 2) for p in batch.positions])
        return {"output": torch.nn.functional.one_hot(answers, 2).float()}

    found = harmless(fickle, LOSS, ExampleSet(Halves(), "training"), 16)
    assert isinstance(found, str)
    assert "mirrored" in found


@pytest.mark.parametrize("data", [Halves(side=8), Halves(channels=5)])
def test_what_is_no_image_has_no_views(data: Halves) -> None:
    found = harmless(by_half, LOSS, ExampleSet(data, "training"), 16)
    assert isinstance(found, str)
    assert "one image" in found


def source_in(folder: Path) -> Artifact:
    (folder / "nets.py").write_text(dedent(CODE))
    out = folder / "source"
    out.mkdir()
    outputs = PythonSource(target="nets.py:Brightness", folder=folder).write(out, IMAGE).outputs
    return artifact(out, Format.TORCH, outputs=list(outputs))


@pytest.mark.parametrize(("epochs", "shown"), [(5, True), (4, False)])
def test_views_are_shown_in_a_long_training(tmp_path: Path, epochs: int, shown: bool) -> None:
    source, data = source_in(tmp_path), Halves()
    out = tmp_path / "out"
    out.mkdir()
    job = Job(
        out, IMAGE, source, Heard(), seed=3, scratch=None,
        calibration=data, training=data, validation=data,
    )  # fmt: skip
    options = {"batch_size": 16, "threads": 1, "autocast": "off", "validate_epochs": False}
    made = Finetune(epochs=epochs, augment="auto", **options).run(source, job)
    facts = made.facts["finetuning"]
    # The network sums all places up, to each side alike: its answers to mirrored images are the same.
    assert facts.get("augmentation", {}).get("mirrored", False) is shown


def test_views_need_a_teacher(tmp_path: Path) -> None:
    source, data = source_in(tmp_path), Halves()
    out = tmp_path / "out"
    out.mkdir()
    heard = Heard()
    job = Job(
        out, IMAGE, source, heard, seed=3, scratch=None,
        calibration=data, training=data, validation=data,
    )  # fmt: skip
    options = {"batch_size": 16, "threads": 1, "autocast": "off", "validate_epochs": False}
    made = Finetune(epochs=5, augment="auto", distillation_weight=0, **options).run(source, job)
    assert "augmentation" not in made.facts["finetuning"]
    assert heard.warnings == ["augment: without a teacher nothing says which views are harmless"]
