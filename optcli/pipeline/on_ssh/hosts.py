"""Where devices are: the user says it. A recipe names a device, and cannot say how to reach it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optcli.errors import MissingError, UsageError, did_you_mean
from optcli.files import configuration

VARIABLE = "OPTCLI_DEVICES"
# ssh would take a word that begins with a hyphen for an option, and run what an option says.
_TARGET = re.compile(r"[^\s-]\S*")
_TEXT, _LIST = "text", "a list of texts"
_WANTED = {"ssh": _TEXT, "options": _LIST, "python": _TEXT, "folder": _TEXT}


@dataclass(frozen=True)
class Host:
    """A machine that ssh reaches: `target` is `user@host` or a name of the user's `~/.ssh/config`.

    `options` are further options of ssh. `python` is the interpreter there that has the runtimes, or
    `venv` for an environment that optcli makes there. `folder` is where files go meanwhile; empty: the
    system's folder for temporary files.
    """

    target: str
    options: tuple[str, ...] = ()
    python: str = "python3"
    folder: str = ""


def host_of(device: str) -> Host:
    """Where a device is: by OPTCLI_DEVICES, else by the user's configuration.

    Raises `MissingError` where neither names it, `UsageError` for what cannot be understood.
    """
    listed = _of_variable()
    configured: dict[str, Any] = configuration.read().get(configuration.DEVICES, {})
    about = configured.get(device, {})
    if device not in configured and device not in listed:
        raise MissingError(
            f"the device {device!r} has no address here",
            place=f"devices.{device}",
            hint=f"{VARIABLE}={device}=user@host, or {_example(device)} in {configuration.file()}",
        )
    if not isinstance(about, dict):
        raise configuration.wrong(
            f"devices.{device}: found {about!r}, wanted a table", f"write {_example(device)}"
        )
    return _read(device, {**about, **({"ssh": listed[device]} if device in listed else {})})


def host_named(text: str) -> tuple[str, Host]:
    """The host of a command line: a device of the configuration, or user@host; with its name."""
    if "@" in text:
        return text, Host(_target(text, "--on"))
    return text, host_of(text)


def _of_variable() -> dict[str, str]:
    listed = {}
    for word in os.environ.get(VARIABLE, "").split():
        name, equals, target = word.partition("=")
        if not (name and equals):
            raise UsageError(
                f"found {word!r}, wanted NAME=user@host", place=VARIABLE, hint="a space between devices"
            )
        listed[name] = _target(target, VARIABLE)
    return listed


def _read(device: str, about: Mapping[str, Any]) -> Host:
    place = f"devices.{device}"
    for key, value in about.items():
        if key not in _WANTED:
            raise configuration.wrong(
                f"{place}: found the unknown key {key!r}", did_you_mean(key, list(_WANTED))
            )
        texts = value if isinstance(value, list) and _WANTED[key] == _LIST else [value]
        if not all(isinstance(text, str) and text for text in texts) or (
            isinstance(value, list) and _WANTED[key] == _TEXT
        ):
            raise configuration.wrong(
                f"{place}.{key}: found {value!r}, wanted {_WANTED[key]}", f"write {_example(device)}"
            )
    if "ssh" not in about:
        raise configuration.wrong(f"{place} has no `ssh`", f"write {_example(device)}")
    options = about.get("options", [])
    return Host(
        _target(about["ssh"], f"{configuration.file()}: {place}.ssh"),
        tuple([options] if isinstance(options, str) else options),
        about.get("python", Host.python),
        about.get("folder", Host.folder),
    )


def _target(text: str, place: str) -> str:
    if not _TARGET.fullmatch(text):
        raise UsageError(
            f"found {text!r}, wanted user@host",
            place=place,
            hint="or the name of a Host in ~/.ssh/config",
        )
    return text


def _example(device: str) -> str:
    return f'devices.{device} = {{ssh = "user@host"}}'
