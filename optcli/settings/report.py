"""What a recipe may say under `report`."""

from __future__ import annotations

from pydantic import Field

from optcli.settings import Settings


class ReportSettings(Settings):
    """What the report of a build shows beside its figures."""

    pictures: bool = Field(
        True,
        description="false: no evaluation image is drawn into the report, and pictures of earlier"
        " builds are removed",
    )
