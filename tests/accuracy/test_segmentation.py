"""A segmentation network of the test's own: its mIoU is the library's, in two runtimes."""

import numpy as np
import pytest

from optcli import accuracy
from optcli.accuracy import EvaluationRequest
from optcli.accuracy.metrics._maps import resized
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.observer import Silent
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings

CLASSES = 3


def shapes(count, seed):
    """Images of discs (1) and squares (2) on a noisy ground (0), with a border that does not count."""
    generator = np.random.default_rng(seed)
    images = generator.normal(0, 0.3, (count, 3, 32, 32)).astype(np.float32)
    labels = np.zeros((count, 32, 32), np.uint8)
    rows, columns = np.indices((32, 32))
    for index in range(count):
        y, x, size = [*generator.integers(6, 26, 2).tolist(), int(generator.integers(4, 8))]
        disc = (rows - y) ** 2 + (columns - x) ** 2 < size**2
        y, x = generator.integers(6, 26, 2)
        square = (abs(rows - y) < size) & (abs(columns - x) < size)
        labels[index][disc] = 1
        labels[index][square] = 2
        for channel, label in ((0, 1), (1, 2)):
            images[index, channel][labels[index] == label] += 0.8
    labels[:, 0, :] = 255
    return images, labels


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small fully convolutional network, trained for seconds, as ONNX; and its samples."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(12, CLASSES, 2, stride=2),
    )
    images, labels = shapes(96, 0)
    inputs, targets = torch.tensor(images), torch.tensor(labels).long()
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for step in range(60):
        part = slice(16 * (step % 6), 16 * (step % 6) + 16)
        loss = nn.functional.cross_entropy(network(inputs[part]), targets[part], ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("segmentation")
    images, labels = shapes(24, 1)
    np.savez(folder / "shapes.npz", image=images, target=labels)
    (folder / "artifact").mkdir()
    torch.onnx.export(
        network.eval(),
        (torch.zeros(2, 3, 32, 32),),
        folder / "artifact" / "model.onnx",
        input_names=["image"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    return network, folder, images, labels


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["onnxruntime", "openvino"])
def test_miou_is_the_librarys_own_evaluation(trained, tmp_path, runner):
    import torch
    from torchmetrics.classification import MulticlassJaccardIndex

    network, folder, images, labels = trained
    request = EvaluationRequest(
        artifact=Artifact("k", Format.ONNX, folder / "artifact", "fp32", 1, "d"),
        runner=runner,
        options={"threads": 1},
        inputs=(TensorSpec(name="image", shape=("batch", 3, 32, 32)),),
        data=DataSettings(source="npz:shapes.npz"),
        folder=folder,
        settings=AccuracySettings(metric="miou", batch_size=5),
        out=tmp_path / "out",
        feeds=(TensorSpec(name="image", shape=("batch", 3, 32, 32)),),
        jobs=2,
    )
    found = accuracy.evaluate(request, Silent(), log=tmp_path / "log")
    library = MulticlassJaccardIndex(num_classes=CLASSES, ignore_index=255)
    with torch.no_grad():
        library.update(network(torch.tensor(images)).argmax(1), torch.tensor(labels).long())
    assert found.value == pytest.approx(float(library.compute()), abs=1e-6)
    assert found.value > 0.35
    assert found.array("resampled").std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(7, 5), (3, 4), (1, 1), (20, 2), (13, 31)])
def test_scores_are_resized_between_the_centres_of_pixels_as_pytorch_does(shape):
    import torch

    maps = np.random.default_rng(0).standard_normal((3, 7, 9)).astype(np.float32)
    usual = torch.nn.functional.interpolate(
        torch.from_numpy(maps)[None], size=shape, mode="bilinear", align_corners=False
    )
    before = maps.copy()
    np.testing.assert_allclose(resized(maps, shape), usual[0].numpy(), atol=1e-5)
    np.testing.assert_array_equal(maps, before)
    assert resized(maps.astype(np.float64), shape).dtype == np.float32
