"""Networks of timm: `timm:resnet18`, or with a tag, `timm:resnet18.a1_in1k`.

`weights` is `DEFAULT`, a tag of timm's own weights or a local file; without it the network is drawn at
random, from a fixed seed. `arguments` go to `timm.create_model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.environment import Needs
from optcli.errors import InputError, MissingError, first_line
from optcli.models.formats import torch_build, torch_libraries, torch_weights
from optcli.models.sources import SourceFacts, _network
from optcli.models.sources._network import RANDOM, LibrarySource, not_here
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch

_FILES = ("model.safetensors", "pytorch_model.bin")


class TimmSource(LibrarySource):
    """A network of timm, by name."""

    needs: ClassVar[Needs] = Needs(("torch", "timm"))
    library: ClassVar[str] = "timm"
    names: ClassVar[str] = r"\w+(\.\w+)?"
    wanted: ClassVar[str] = "timm:NAME or timm:NAME.TAG, such as timm:resnet18 or timm:resnet18.a1_in1k"

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        torch_libraries.require_timm_name(self._tagged, "model.source")
        source = {"kind": "timm", "name": self.target.partition(".")[0], "arguments": self.arguments}
        model = torch_build.build(source, out)
        weights = RANDOM
        if (path := self._file()) is not None:
            key = torch_weights.read_checkpoint(path, self.weights_key).load_into(model, "num_classes")
            weights = _network.named_weights(path, key)
        elif self.weights is not None:
            pretrained = _pretrained(self._tagged, self.arguments)
            torch_weights.load_into(model, dict(pretrained.state_dict()), self._tagged)
            weights = str(pretrained.pretrained_cfg.get("tag") or self.weights)
        facts = {"source": f"timm:{self.target}", "weights": weights, "imports": ["timm"]}
        return _network.write(model, out, source, inputs, facts)

    def class_names(self) -> tuple[str, ...] | None:
        config = torch_libraries.library("timm").get_pretrained_cfg(self._tagged)
        if self.weights is None or self._has_file() or config is None:
            return None
        from timm.data import ImageNetInfo, infer_imagenet_subset

        subset = infer_imagenet_subset(config.to_dict())
        names = tuple(ImageNetInfo(subset).label_names()) if subset else ()
        return names if self.arguments.get("num_classes", len(names)) == len(names) > 0 else None

    @property
    def _tagged(self) -> str:
        """The name with the tag of the weights that are wanted."""
        if self.weights in (None, "DEFAULT") or self._has_file():
            return self.target
        return f"{self.target.partition('.')[0]}.{self.weights}"

    def _of_entry(self, weights: str) -> dict[str, Any]:
        return {"tag": weights}


def _pretrained(name: str, arguments: dict[str, Any]) -> torch.nn.Module:
    """The network with timm's own weights, from the hub's cache or downloaded into it.

    timm fits them to other numbers of classes and channels; the file itself is read without running
    anything in it.
    """
    timm = torch_libraries.library("timm")
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise InputError(
            f"timm has no pretrained weights for {name}",
            place="model.weights",
            hint="leave `weights` out, or name a local file",
        )
    overlay = {}
    if config.hf_hub_id:
        path = _fetched(config)
        torch_weights.tensors_in(path)  # refuses a pickle
        overlay = {"file": str(path), "source": "", "hf_hub_id": None}
    try:
        model: torch.nn.Module = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments
        )
    except OSError as error:
        raise _offline(name, str(config.url), error) from error
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(
            f"timm cannot load {name}'s weights: {first_line(error)}",
            place="model.weights",
            hint="correct model.arguments, or name a local file",
        ) from error
    return model


def _fetched(config: Any) -> Path:
    """The file of timm's weights in the hub's own cache, downloaded where it is not there yet."""
    import huggingface_hub

    names = (config.hf_hub_filename,) if config.hf_hub_filename else _FILES
    for name in names:
        cached = huggingface_hub.try_to_load_from_cache(config.hf_hub_id, name)
        if isinstance(cached, str):
            return Path(cached)
    try:
        return Path(huggingface_hub.hf_hub_download(config.hf_hub_id, names[0]))
    except Exception as error:  # the hub's errors differ by version and by what is wrong
        raise _offline(config.hf_hub_id, f"https://huggingface.co/{config.hf_hub_id}", error) from error


def _offline(name: str, place: str, error: Exception) -> MissingError:
    return not_here(name, error, f"download them from {place} and name the file as model.weights")
