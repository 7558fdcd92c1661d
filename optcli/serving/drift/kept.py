"""What a server has kept of its inputs: from the folder of its bundle, or asked over HTTP."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from optcli.errors import InputError, UsageError
from optcli.files import regular_files
from optcli.results.drift import DriftReference, Line
from optcli.results.outcomes import Result
from optcli.serving import bundle as bundles
from optcli.serving.loadtest import endpoint

if TYPE_CHECKING:
    from optcli.serving.drift.input_statistics import Statistics

_MOST_BYTES = 256 * 1024**2
# Beyond the year 5000, and as many rows, it is no server of ours.
_MOST_SEEN = 10**15
Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
_DEPLOY = "deploy it with --target ray --sample-inputs 512"


class Tensor(Result):
    """How the rows of one input are summarised, as `input_statistics` has it."""

    name: Line
    varies: bool
    axis: int | None = None
    channels: int = Field(1, ge=1)
    single: bool = False
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def raw(self) -> dict[str, Any]:
        """As `input_statistics` takes it."""
        return self.model_dump()


class Period(Result):
    """When a sample was begun (seconds since the epoch), and of how many rows it is."""

    begun: Seconds
    seen: int = Field(ge=0, le=_MOST_SEEN)


class About(Result):
    """What a file of statistics says of itself; `unwritten`: why the server could not write it."""

    model: Line
    inputs: tuple[Tensor, ...]
    reference: DriftReference
    periods: tuple[Period, ...]
    written: Seconds = 0.0
    unwritten: Line = ""


def of_folder(folder: Path) -> tuple[About, Statistics]:
    """What the server of a bundle wrote beside it.

    Raises `UsageError` for a folder that is no bundle, for a bundle that keeps nothing and for a server
    that saw nothing yet, `InputError` for a broken file.
    """
    from optcli.serving.drift.input_statistics import KEPT

    if not bundles.read(folder).sample_inputs:
        raise UsageError(
            "the bundle's server keeps no statistics of its inputs", place=str(folder), hint=_DEPLOY
        )
    path = folder / KEPT
    try:
        content = regular_files.read(path, _MOST_BYTES)
    except FileNotFoundError as error:
        raise UsageError(
            "the bundle's server has kept nothing of its inputs yet",
            place=str(path),
            hint="start it with `optcli serve` and let traffic through; if it runs elsewhere, name its"
            " URL",
        ) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise InputError(message, place=str(path), hint="look at the file, or name the URL") from error
    return _read(content, str(path))


def of_url(url: str, model: str | None) -> tuple[About, Statistics]:
    """What a running server gives. Raises as `endpoint.asked`, and as `of_folder` does."""
    served = endpoint.asked(url, model).served
    path = f"/v2/models/{urllib.parse.quote(served.model, safe='')}/inputs"
    status, content = endpoint.fetched(served.url, path, most_bytes=_MOST_BYTES)
    place = served.url + path
    if status == 404:
        raise UsageError("the server keeps no statistics of its inputs", place=place, hint=_DEPLOY)
    if status != 200:
        what = content.decode(errors="replace") if status is None else f"it says {status}"
        raise InputError(
            f"the server does not give its statistics: {what}", place=place, hint="try again"
        )
    return _read(content, place)


def _read(content: bytes, place: str) -> tuple[About, Statistics]:
    from optcli.serving.drift.input_statistics import unpacked

    again = "deploy the variant again with --sample-inputs, and start its server"
    try:
        stored = unpacked(content)
        about = About.model_validate(stored.about)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"this holds no statistics of inputs: {where}: {first['msg']}"
        raise InputError(message, place=place, hint=again) from error
    except ValueError as error:
        raise InputError(str(error), place=place, hint=again) from error
    return about, stored
