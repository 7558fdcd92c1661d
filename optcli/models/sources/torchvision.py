"""Networks of torchvision: `torchvision:resnet50`.

`weights` is `DEFAULT`, an entry's name (`IMAGENET1K_V2` or `ResNet50_Weights.IMAGENET1K_V2`) or a local
file; without it the network is drawn at random, from a fixed seed. `arguments` go to the builder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from optcli import environment
from optcli.artifact import EXPECTED
from optcli.environment import Needs
from optcli.errors import InputError, did_you_mean
from optcli.models.formats import torch_build, torch_weights
from optcli.models.sources import SourceFacts, _network
from optcli.models.sources._network import RANDOM, LibrarySource, not_here
from optcli.settings import TensorSpec

# Our metrics by what torchvision calls them.
_METRICS = {
    "acc@1": "top1",
    "acc@5": "top5",
    "box_map": "map",
    "mask_map": "mask_map",
    "kp_map": "keypoint_map",
    "miou": "miou",
}


class TorchvisionSource(LibrarySource):
    """A network of `torchvision.models`, by name."""

    needs: ClassVar[Needs] = Needs(("torch", "torchvision"))
    library: ClassVar[str] = "torchvision"
    names: ClassVar[str] = r"[^\W\d]\w*"
    wanted: ClassVar[str] = "torchvision:NAME, such as torchvision:resnet18"

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        self._check_name()
        file = self._file()
        entry = self._entry(file)
        source = {
            "kind": "torchvision",
            "name": self.target,
            "weights": str(entry) if entry is not None else None,
            "arguments": self.arguments,
        }
        model = torch_build.build(source, out)
        if file is None and entry is not None:
            file = _fetched(entry)
        loaded = RANDOM
        if file is not None:
            checkpoint = torch_weights.read_checkpoint(file, self.weights_key)
            if self.target.startswith("densenet"):
                checkpoint = checkpoint.renamed(_newer_name)
            loaded = _network.named_weights(file, checkpoint.load_into(model, "num_classes"))
        named = str(entry) if self.weights and entry is not None else None
        facts: dict[str, Any] = {
            "source": f"torchvision:{self.target}",
            "weights": named or loaded,
            "imports": ["torchvision"],
        }
        if entry is not None:
            facts[EXPECTED] = {"by": "torchvision publishes for these weights", **_published(entry)}
        return _network.write(model, out, source, inputs, facts)

    def class_names(self) -> tuple[str, ...] | None:
        self._check_name()
        entry = self._entry(self._file())
        names = () if entry is None else tuple(entry.meta.get("categories", ()))
        return names if self.arguments.get("num_classes", len(names)) == len(names) > 0 else None

    def _of_entry(self, weights: str) -> dict[str, Any]:
        return {"entry": weights}

    def _of_file(self, file: Path) -> dict[str, Any]:
        # A file named as in torchvision's list is built as that entry: see _entry.
        listed = re.search(r"-[0-9a-f]{8}\.pth$", file.name)
        return {"named": file.name if listed else None}

    def _check_name(self) -> None:
        from torchvision import models

        names = models.list_models()
        if self.target not in names or self.target.startswith("quantized_"):
            raise InputError(
                f"torchvision {environment.version('torchvision')} has no model {self.target!r}",
                place="model.source",
                hint=did_you_mean(self.target, names, "names: torchvision.models.list_models()"),
            )

    def _entry(self, file: Path | None) -> Any:
        """The entry of torchvision's list that `weights` names, or that a local file is a copy of."""
        from torchvision import models

        if self.weights is None:
            return None
        entries = models.get_model_weights(self.target)
        if file is not None:
            return next((entry for entry in entries if Path(entry.url).name == file.name), None)
        name = self.weights.split(".")[-1]
        if name not in entries.__members__:
            choices = [*entries.__members__]
            raise InputError(
                f"torchvision's {self.target} has no weights {self.weights!r}",
                place="model.weights",
                hint=did_you_mean(name, choices) or "it has none: name a local file",
            )
        return entries[name]


def _published(entry: Any) -> dict[str, float]:
    """The accuracy of weights as torchvision gives it, by our metrics, as fractions."""
    figures = [each for metrics in entry.meta.get("_metrics", {}).values() for each in metrics.items()]
    return {_METRICS[name]: percent / 100 for name, percent in figures if name in _METRICS}


def _newer_name(name: str) -> str:
    """The name that today's DenseNets have for a tensor: torchvision's files are older than these."""
    return re.sub(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)$", r"\1\2", name)


def _fetched(entry: Any) -> Path:
    """The file of an entry in torch.hub's own cache, downloaded where it is not there yet."""
    import socket

    import torch

    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = path.stem.rpartition("-")[2]
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        torch.hub.download_url_to_file(entry.url, str(path), prefix, progress=False)
    except (OSError, RuntimeError) as error:
        hint = f"download {entry.url} to {path}, or name a local file as model.weights"
        raise not_here(entry, error, hint) from error
    finally:
        socket.setdefaulttimeout(before)
    return path
