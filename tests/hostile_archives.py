"""Files that try to run code: archives of torch that touch a file when they are opened."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def pickled(marker: Path, kind: str = "torch.save") -> bytes:
    """A pickle that makes the marker, plain or as `torch.save` writes it."""
    import torch

    if kind == "pickle":
        return pickle.dumps(Touch(marker), protocol=2)
    stream = io.BytesIO()
    torch.save({"a": torch.ones(2), "b": Touch(marker)}, stream)
    return stream.getvalue()


def members(path: Path) -> dict[str, bytes]:
    """The members of an archive without their top folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def written(path: Path, files: dict[str, bytes] | list[tuple[str, bytes]], top: str = "model/") -> Path:
    """An archive of these members, in their order; a list may name one twice."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zipfile, about duplicates
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items() if isinstance(files, dict) else files:
                archive.writestr(top + name, data)
    return path


def with_program(files: dict[str, bytes], change: Callable[[Any], None]) -> dict[str, bytes]:
    """The members of an exported program with its graph changed."""
    program = json.loads(files["models/model.json"])
    change(program)
    return {**files, "models/model.json": json.dumps(program).encode()}


def opening(payload: dict[str, str], channel: Any) -> list[str]:
    """In a worker: open the file in a folder and run it; gives the error there was."""
    import torch

    from optcli.artifact import Format
    from optcli.models import formats

    try:
        model = formats.module(Format(payload["format"])).open(Path(payload["folder"]))
        (model.module() if hasattr(model, "module") else model)(torch.ones(3, 8))
    except Exception as error:
        return [f"{type(error).__name__} {error}"]
    return []


def run_opening(module: Any, folder: Path, monkeypatch: Any, *, confined: bool) -> list[str]:
    """Open the file of a format's module in a worker of its own."""
    from optcli import workers

    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{Path(__file__).parents[1]}")
    payload = {"format": module.__name__.rpartition(".")[2], "folder": str(folder)}
    wall = () if confined else None
    return workers.run("hostile_archives:opening", payload, list[str], timeout_s=60, confined=wall)
