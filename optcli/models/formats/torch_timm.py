"""timm, imported so that nothing is reported anywhere, and its networks without their weights."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from optcli import environment
from optcli.environment import Needs
from optcli.errors import InputError, MissingError, did_you_mean

if TYPE_CHECKING:
    import torch


def library(name: str = "timm") -> ModuleType:
    """A package that reads the hub. Raises `MissingError` with the command that installs it."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        package = importlib.import_module(name)
    except ImportError as error:
        lacking = environment.missing(Needs((name,)))
        hint = lacking[0].hint if lacking else f"pip install --force-reinstall {name}"
        raise MissingError(f"{name} cannot be imported: {error}", hint=hint) from error
    return package


def require_name(name: str, place: str) -> None:
    """Raise `InputError` for a name, with or without a tag behind a dot, that timm does not know."""
    timm = library()
    base, _, tag = name.partition(".")
    if not timm.is_model(base):
        raise InputError(
            f"timm {environment.version('timm')} has no model {base!r}",
            place=place,
            hint=did_you_mean(base, timm.list_models(), "names: timm.list_models()"),
        )
    tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{base}.*")]
    if tag and tag not in tags:
        hint = did_you_mean(tag, tags) or "it has none: leave the tag out"
        raise InputError(f"timm's {base} has no pretrained weights {tag!r}", place=place, hint=hint)


def build(name: str, arguments: dict[str, Any]) -> torch.nn.Module:
    """The network with untrained weights. Raises `InputError` for arguments that it does not take."""
    timm = library()
    try:
        model: torch.nn.Module = timm.create_model(name, pretrained=False, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError) as error:
        raise InputError(
            f"timm cannot build {name} with {arguments or 'its defaults'}: {error}",
            hint=f"see the arguments of timm.create_model({name!r}, ...), and correct model.arguments",
        ) from error
    return model
