"""optcli: build, measure and judge optimized variants of a vision model.

>>> import optcli
>>> report = optcli.build("recipe.yaml")
>>> report.recommended
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optcli.pipeline.building import build as build
    from optcli.pipeline.execute import BuildSettings as BuildSettings
    from optcli.results import Report as Report
    from optcli.serving.planning import plan as plan
    from optcli.tuning import tune as tune

__all__ = ["BuildSettings", "Report", "__version__", "build", "plan", "tune"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that ``import optcli`` stays instant."""
    if name == "build":
        from optcli.pipeline.building import build

        return build
    if name == "BuildSettings":
        from optcli.pipeline.execute import BuildSettings

        return BuildSettings
    if name == "tune":
        from optcli.tuning import tune

        return tune
    if name == "plan":
        from optcli.serving.planning import plan

        return plan
    if name == "Report":
        from optcli.results import Report

        return Report
    raise AttributeError(f"module 'optcli' has no attribute {name!r}")
