"""The data sets of torchvision by name: `torchvision:CIFAR10` with `root` and `split`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from optcli.data.collection import Collection, Finding, RawSample, RawSamples
from optcli.data.selection import choose, digest_of, split_digest
from optcli.environment import Needs
from optcli.errors import InputError, did_you_mean, first_line
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.settings import TensorSpec


@dataclass(frozen=True)
class _Layout:
    """Where a data set lies below its root, its splits, and whether it takes `train=True`."""

    folder: str
    splits: tuple[str, ...] = ("train", "test")
    train_flag: bool = False


_WITH_VAL = ("train", "val", "test")

# Written down here because a check must not import torchvision to know them. Only data sets of one
# image and one class; none runs code on loading (CIFAR's pickles are read after their MD5 is checked).
DATASETS = {
    "MNIST": _Layout("MNIST/raw", train_flag=True),
    "FashionMNIST": _Layout("FashionMNIST/raw", train_flag=True),
    "KMNIST": _Layout("KMNIST/raw", train_flag=True),
    "CIFAR10": _Layout("cifar-10-batches-py", train_flag=True),
    "CIFAR100": _Layout("cifar-100-python", train_flag=True),
    "STL10": _Layout("stl10_binary"),
    "GTSRB": _Layout("gtsrb"),
    "Flowers102": _Layout("flowers-102", _WITH_VAL),
    "OxfordIIITPet": _Layout("oxford-iiit-pet", ("trainval", "test")),
    "Food101": _Layout("food-101"),
    "DTD": _Layout("dtd", _WITH_VAL),
    "EuroSAT": _Layout("eurosat", ()),
    "Imagenette": _Layout("imagenette2", ("train", "val")),
    "FGVCAircraft": _Layout("fgvc-aircraft-2013b", ("train", "val", "trainval", "test")),
    "Country211": _Layout("country211", ("train", "valid", "test")),
    "RenderedSST2": _Layout("rendered-sst2", _WITH_VAL),
}


class TorchvisionDataset(Collection):
    """A data set that torchvision can load from `root`; ids are positions in the split.

    Nothing is fetched unless `download: true`.
    """

    reads = "name"
    needs = Needs(("torchvision",))

    def problems(self) -> list[Finding]:
        layout = DATASETS.get(self.settings.place)
        if layout is None:
            message = f"unknown torchvision data set {self.settings.place!r}"
            return [("source", message, did_you_mean(self.settings.place, [*DATASETS]))]
        findings: list[Finding] = []
        if layout.splits and self.part is None:
            field = "split.of" if self.settings.split else "split"
            findings.append((field, "the split is missing", f"one of: {', '.join(layout.splits)}"))
        elif self.part is not None and self.part not in layout.splits:
            message = f"{self.settings.place} has no split {self.part!r}"
            findings.append(("split", message, did_you_mean(self.part, layout.splits)))
        if self.settings.root is None:
            findings.append(("root", "the folder that holds the data set is missing", "root: FOLDER"))
        elif not self.settings.download and not regular_files.is_folder(self._files):
            message = f"{self.settings.place} is not in {self.settings.root}: no folder {layout.folder}"
            findings.append(("root", message, "download: true fetches it"))
        return findings

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        if not regular_files.is_folder(self._files):
            message = f"{self.settings.place} is not in {self.settings.root} yet"
            raise self.wrong(message, "fetch it once, then build")
        return {
            "files": digests.of_folder(self._files),
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        self.require()
        hint = "use an npz with one array per input"
        name = self.only_input(inputs, "a torchvision data set", hint)
        dataset = self._load()
        ids = [str(index) for index in range(len(dataset))]
        return TorchvisionItems(
            f"{self.settings.place} {self.part or ''}".strip(),
            name,
            dataset,
            choose(self.settings, self.folder, ids),
        )

    def class_names(self) -> tuple[str, ...] | None:
        from torchvision import datasets

        self.require()
        # Where the names are the same for all copies of the set, no sample need be read for them.
        names = getattr(getattr(datasets, self.settings.place), "classes", None)
        if not isinstance(names, list | tuple):
            names = getattr(self._load(), "classes", None)
        # Some data sets have several names for a class.
        return tuple(names) if names and all(isinstance(name, str) for name in names) else None

    @property
    def _root(self) -> Path:
        return self.folder / regular_files.expanded(self.settings.root or ".")

    @property
    def _files(self) -> Path:
        return self._root / DATASETS[self.settings.place].folder

    def _load(self) -> Any:
        from PIL import EpsImagePlugin
        from torchvision import datasets

        # torchvision opens any format, and Pillow starts Ghostscript on an image that is EPS.
        EpsImagePlugin.gs_binary = False
        layout = DATASETS[self.settings.place]
        options: dict[str, Any] = {"root": str(self._root), "download": self.settings.download}
        if layout.train_flag:
            options["train"] = self.part == "train"
        elif layout.splits:
            options["split"] = self.part
        try:
            return getattr(datasets, self.settings.place)(**options)
        except (RuntimeError, OSError, ValueError) as error:
            hint = "download: true fetches it" if not self.settings.download else ""
            raise self.wrong(f"torchvision cannot load it: {first_line(error)}", hint) from error


class TorchvisionItems(RawSamples):
    """The chosen items of a torchvision data set."""

    parallel: ClassVar[bool] = True

    def __init__(self, place: str, name: str, dataset: Any, chosen: Sequence[int]) -> None:
        self._place, self._name, self._dataset, self._chosen = place, name, dataset, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> RawSample:
        number = self._chosen[index]
        place = f"{self._place}, item {number}"
        try:
            image, target = self._dataset[number]
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(
                f"not a readable image: {first_line(error)}",
                place=place,
                hint="fetch the data set again",
            ) from error
        return RawSample(str(number), place, {self._name: image}, int(target))

    def identity(self, index: int) -> tuple[str, str]:
        item = self.read(index)
        return item.id, digest_of(item.raw)
