"""Vision models of transformers: `hf:FOLDER`, or `hf:OWNER/NAME` in Hugging Face's cache.

Nothing is downloaded unless `download` is true, and no code of a repository ever runs. `revision` is a
branch, a tag or a commit. `weights` is a local file, or `random` for a folder that holds a config
alone. `arguments` take the place of entries of the config. `hf:OWNER/NAME/onnx/model.onnx` is an ONNX
file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from optcli import environment
from optcli.artifact import Format
from optcli.environment import Needs
from optcli.errors import InputError
from optcli.files.digest import FileDigests
from optcli.models.formats import exporter_metadata, torch_build, torch_libraries, torch_weights
from optcli.models.formats.torch_calls import example_inputs, flatten_outputs
from optcli.models.sources import Source, SourceFacts, _network, find
from optcli.models.sources._network import RANDOM as DRAWN
from optcli.settings import TensorSpec

RANDOM = "random"  # as `weights`: drawn, from a fixed seed
_FILES = ("*.json", "*.safetensors")


class HfSource(Source):
    """A vision model of transformers, from its folder or from the cache."""

    format: ClassVar[Format] = Format.TORCH
    needs: ClassVar[Needs] = Needs(("torch", "transformers"))
    pinned: ClassVar[bool] = True

    @classmethod
    def format_of(cls, target: str) -> Format:
        return Format.ONNX if target.endswith(".onnx") else cls.format

    def concrete(self) -> Source:
        """An ONNX file of the repository is one of the source `onnx`, wherever it lies."""
        if self.format_of(self.target) != Format.ONNX:
            return self
        file = self.folder / Path(self.target).expanduser()
        if not file.exists() and self.target.count("/") > 1 and not self.target.startswith((".", "/")):
            owner, name, path = self.target.split("/", 2)
            patterns = (path, f"{path}_data*", f"{path}.data*")
            file = self._snapshot(f"{owner}/{name}", patterns) / path
        return find("onnx")(
            target=str(file), weights=self.weights, arguments=self.arguments, folder=self.folder
        )

    def problems(self) -> list[tuple[str, str, str]]:
        if self.weights in (None, RANDOM):
            return []
        return _network.weights_problems(self.folder, str(self.weights))

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        folder = self._here()
        weights: dict[str, Any] = {RANDOM: torch_build.SEED}
        if self.weights is None:
            files = torch_libraries.weights_of(folder)
            weights = {file.name: digests.of(file) for file in files}
        elif self.weights != RANDOM:
            weights = _network.weights_ingredients(self, digests)
        config = folder / torch_libraries.CONFIG
        torch_libraries.read_json(config)
        return {
            "kind": "hf",
            "config": digests.of(config),
            "arguments": self.arguments,
            "weights": weights,
            "versions": environment.versions(["torch", "transformers"]),
        }

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        folder = self._here()
        config = torch_libraries.read_json(folder / torch_libraries.CONFIG)
        architecture, task = torch_libraries.architecture_of(config, str(folder))
        weights = torch_libraries.weights_of(folder)
        if self.weights is None and not weights:
            raise InputError(
                "the folder holds no weights",
                place=str(folder),
                hint="copy model.safetensors into it; `model: {weights: random}` draws them",
            )
        if self.weights is None:
            model, config = torch_libraries.pretrained(architecture, folder, self.arguments)
        else:
            config = torch_libraries.config_of(architecture, folder, self.arguments)
            model = torch_build.build(
                {"kind": "hf", "architecture": architecture, "config": config}, out
            )
        named = weights[0].name if self.weights is None else DRAWN
        if self.weights not in (None, RANDOM):
            path = _network.weights_path(self.folder, str(self.weights))
            key = torch_weights.read_checkpoint(path, self.weights_key).load_into(model.network)
            named = _network.named_weights(path, key)
        source = {"kind": "hf", "architecture": architecture, "config": config}
        known = torch_libraries.metadata(task, config, _last_sizes(model, inputs))
        facts = {
            "source": f"hf:{self.target}",
            "weights": named,
            "architecture": architecture,
            **({"revision": folder.name} if folder.parent.name == "snapshots" else {}),
            **exporter_metadata.fact(known),
        }
        return _network.write(model, out, source, inputs, facts)

    def class_names(self) -> tuple[str, ...] | None:
        config = torch_libraries.read_json(self._here() / torch_libraries.CONFIG)
        return torch_libraries.class_names({**config, **self.arguments}) or None

    def _here(self) -> Path:
        return self._snapshot(self.target, _FILES)

    def _snapshot(self, target: str, files: Sequence[str]) -> Path:
        return torch_libraries.snapshot(
            target, self.folder, revision=self.revision, download=self.download, files=files
        )


def _last_sizes(model: Any, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """The size of each output's last dimension; nothing where the network does not take the inputs."""
    import torch

    feed = example_inputs(inputs, 1)
    try:
        with torch.no_grad():
            outputs = flatten_outputs(model.eval()(*feed.values()))
    except Exception:  # `_network.write` says what is wrong
        return {}
    return {name: int(value.shape[-1]) for name, value in outputs.items() if value.ndim}
