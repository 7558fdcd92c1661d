"""Building a network from what `model.json` says of its source, with untrained weights.

The same seed is set around every build, so that whatever a network draws at random and does not
keep in its state comes out the same each time.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, did_you_mean, first_line
from optcli.models.formats import torch_libraries, torch_modules
from optcli.settings import user_code

if TYPE_CHECKING:
    import torch

SEED = 0


def build(source: dict[str, Any], code: Path) -> torch.nn.Module:
    """The network of a source, on the CPU in evaluation mode. Raises `InputError`.

    `code` is the folder that a reference of kind `python` is relative to.
    """
    return torch_modules.evaluating(_built(source, code))


def _built(source: dict[str, Any], code: Path) -> torch.nn.Module:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        if source["kind"] == "torchvision":
            return _torchvision(source["name"], source.get("weights"), source["arguments"])
        if source["kind"] == "timm":
            return torch_libraries.build_timm(source["name"], source["arguments"])
        if source["kind"] == "hf":
            return torch_libraries.build(source)
        if source["kind"] == "python":
            return _python(source["reference"], code, source["arguments"])
    raise InputError(
        f"the artifact comes from an unknown kind of source, {source['kind']!r}",
        hint="it was written by a newer optcli: update, or build again",
    )


def _torchvision(name: str, weights: str | None, arguments: dict[str, Any]) -> torch.nn.Module:
    """A torchvision network. `weights` names an entry whose variant of the network is wanted.

    Some builders make another network for pretrained weights (frozen batch norms in detectors, input
    scaling in Inception), so the entry is passed on while nothing is fetched.
    """
    from torchvision import models

    builder = models.get_model_builder(name)
    options = dict(arguments)
    if "weights_backbone" in inspect.signature(builder).parameters:
        options.setdefault("weights_backbone", None)
    entry = models.get_model_weights(name)[weights.split(".")[-1]] if weights else None
    try:
        with _without_weights():
            model: torch.nn.Module = builder(weights=entry, **options)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise InputError(
            f"torchvision cannot build {name} with {arguments or 'its defaults'}: {first_line(error)}",
            hint=f"see the arguments of torchvision.models.{name}, and correct model.arguments",
        ) from error
    return model


@contextmanager
def _without_weights() -> Iterator[None]:
    """Let torchvision's builders think that they load pretrained weights, and load nothing."""
    import torch
    from torchvision.models import WeightsEnum

    fetch, load = WeightsEnum.get_state_dict, torch.nn.Module.load_state_dict
    WeightsEnum.get_state_dict = lambda *_, **__: {}
    torch.nn.Module.load_state_dict = lambda *_, **__: None
    try:
        yield
    finally:
        WeightsEnum.get_state_dict, torch.nn.Module.load_state_dict = fetch, load


def _python(reference: str, folder: Path, arguments: dict[str, Any]) -> torch.nn.Module:
    """What the user's callable returns, if it is a network; every other outcome is explained."""
    import torch

    network = user_code.load(reference, folder)
    origin = user_code.closure(reference, folder)
    if not isinstance(network, torch.nn.Module):
        if not callable(network):
            raise InputError(
                f"{reference} is {_what(network)}, wanted a class or function that makes an nn.Module",
                hint="name the class of the network, or a function that returns one",
            )
        _check_arguments(network, reference, arguments)
        try:
            network = network(**arguments)
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{reference} raises {type(error).__name__}: {first_line(error)}",
                place=user_code.place_of(error, origin.files) or reference,
                hint="it runs from a copy of the code: give files through model.weights, not in it",
            ) from error
    if not isinstance(network, torch.nn.Module):
        raise InputError(
            f"{reference} returns what is {_what(network)}, wanted an nn.Module",
            hint="return the network itself; weights go into model.weights",
        )
    if any(
        tensor.is_meta
        for tensor in (*torch_modules.parameters(network), *torch_modules.buffers(network))
    ):
        raise InputError(
            f"{reference} returns a network on the meta device, which holds no values",
            hint="build it on the CPU",
        )
    return torch_modules.on(network, "cpu")


def _check_arguments(builder: Any, reference: str, arguments: dict[str, Any]) -> None:
    """Raise `InputError` where the callable does not take the recipe's arguments."""
    try:
        signature = inspect.signature(builder)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        names = list(signature.parameters)
        unknown = [name for name in arguments if name not in names]
        hint = f"it takes {', '.join(names) or 'no arguments'}: correct model.arguments"
        if unknown:
            hint = f"{did_you_mean(unknown[0], names)} ({hint})" if names else hint
        raise InputError(f"{reference}: {error}", hint=hint) from error


def _what(value: Any) -> str:
    return "a dict (a state dict?)" if isinstance(value, dict) else f"of type {type(value).__name__}"
