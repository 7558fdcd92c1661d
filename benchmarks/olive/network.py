"""What the workflow of Olive's in this folder runs on: the network, and images to calibrate with."""

import numpy as np
import torch
import torchvision
from olive.data.registry import Registry


def resnet50(model_path=None):
    """The network of `benchmarks/cold_build.py`."""
    torch.manual_seed(0)
    return torchvision.models.resnet50(weights=None).eval()


def example(model):
    """What the exporter traces: two images, for a batch of one would stay one."""
    return {"x": torch.zeros(2, 3, 224, 224)}


class Images(torch.utils.data.Dataset):
    """Random images, as those of `benchmarks/cold_build.py`."""

    def __init__(self, count):
        images = np.random.default_rng(0).standard_normal((count, 3, 224, 224), dtype=np.float32)
        self.images = torch.from_numpy(images)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"x": self.images[index]}, 0


@Registry.register_dataset()
def random_images(data_dir=None, count=32, **_):
    """Known to Olive by this name."""
    return Images(count)
