"""Networks of timm: `timm:resnet18`, or with a tag, `timm:resnet18.a1_in1k`.

`weights` is `DEFAULT`, a tag of timm's own weights or a local file; without it the network is drawn at
random, from a fixed seed. `arguments` go to `timm.create_model`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from optcli import environment
from optcli.artifact import Format
from optcli.digest import FileDigests
from optcli.environment import Needs
from optcli.errors import InputError, MissingError, first_line
from optcli.formats import torch_build, torch_timm, torch_weights
from optcli.settings import TensorSpec
from optcli.settings.references import is_weights_file
from optcli.sources import Source, SourceFacts, _network

if TYPE_CHECKING:
    import torch

_FILES = ("model.safetensors", "pytorch_model.bin")


class TimmSource(Source):
    """A network of timm, by name."""

    format: ClassVar[Format] = Format.TORCH
    needs: ClassVar[Needs] = Needs(("torch", "timm"))

    def problems(self) -> list[tuple[str, str, str]]:
        found = []
        if not re.fullmatch(r"\w+(\.\w+)?", self.target):
            hint = "wanted timm:NAME or timm:NAME.TAG, such as timm:resnet18 or timm:resnet18.a1_in1k"
            found.append(("source", f"{self.target!r} is not the name of a timm model", hint))
        if self.weights is not None and is_weights_file(self.weights, self.folder):
            problem = _network.weights_problem(self.folder, self.weights)
            found.extend([problem] if problem else [])
        return found

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        weights: dict[str, Any] = {"random": torch_build.SEED}
        if self.weights is not None and is_weights_file(self.weights, self.folder):
            weights = {"file": digests.of(_network.weights_path(self.folder, self.weights))}
        elif self.weights is not None:
            weights = {"tag": self.weights}
        return {
            "kind": "timm",
            "name": self.target,
            "arguments": self.arguments,
            "weights": weights,
            "versions": environment.versions(["torch", "timm"]),
        }

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        torch_timm.require_name(self._tagged, "model.source")
        source = {"kind": "timm", "name": self.target.partition(".")[0], "arguments": self.arguments}
        model = torch_build.build(source, out)
        said = f"random (seed {torch_build.SEED})"
        if self.weights is not None and is_weights_file(self.weights, self.folder):
            path = _network.weights_path(self.folder, self.weights)
            torch_weights.load_into(model, torch_weights.read(path), str(path), classes="num_classes")
            said = path.name
        elif self.weights is not None:
            pretrained = _pretrained(self._tagged, self.arguments)
            torch_weights.load_into(model, dict(pretrained.state_dict()), self._tagged)
            said = str(pretrained.pretrained_cfg.get("tag") or self.weights)
        facts = {"source": f"timm:{self.target}", "weights": said, "imports": ["timm"]}
        return _network.write(model, out, source, inputs, facts)

    @property
    def _tagged(self) -> str:
        """The name with the tag of the weights that are wanted."""
        if self.weights in (None, "DEFAULT") or is_weights_file(str(self.weights), self.folder):
            return self.target
        return f"{self.target.partition('.')[0]}.{self.weights}"


def _pretrained(name: str, arguments: dict[str, Any]) -> torch.nn.Module:
    """The network with timm's own weights, from the hub's cache or downloaded into it.

    timm fits them to other numbers of classes and channels; the file itself is read without running
    anything in it.
    """
    timm = torch_timm.library()
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
        torch_weights.read(path)  # refuses a pickle
        overlay = {"file": str(path), "source": "", "hf_hub_id": None}
    try:
        made: torch.nn.Module = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments
        )
    except OSError as error:
        raise _offline(name, str(config.url), error) from error
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(
            f"timm cannot load {name}'s weights: {first_line(error)}",
            place="model.weights",
            hint="mend model.arguments, or name a local file",
        ) from error
    return made


def _fetched(config: Any) -> Path:
    """The file of timm's weights in the hub's own cache, downloaded where it is not there yet."""
    import huggingface_hub

    names = (config.hf_hub_filename,) if config.hf_hub_filename else _FILES
    for name in names:
        known = huggingface_hub.try_to_load_from_cache(config.hf_hub_id, name)
        if isinstance(known, str):
            return Path(known)
    try:
        return Path(huggingface_hub.hf_hub_download(config.hf_hub_id, names[0]))
    except Exception as error:  # the hub's errors differ by version and by what is wrong
        raise _offline(config.hf_hub_id, f"https://huggingface.co/{config.hf_hub_id}", error) from error


def _offline(name: str, place: str, error: Exception) -> MissingError:
    return MissingError(
        f"the weights {name} are not on this machine and cannot be downloaded: {first_line(error)}",
        place="model.weights",
        hint=f"download them from {place} and name the file as model.weights",
    )
