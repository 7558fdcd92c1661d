"""Whether a percentile breaks a limit, or only looks so because other work disturbed some calls."""

from __future__ import annotations

from collections.abc import Mapping

from optcli.results import Estimate


def is_surely_over(percentiles: Mapping[float, Estimate | None], limit_ms: float, lost: float) -> bool:
    """Whether the artifact itself breaks the limit, whatever other work did.

    `percentiles` go by their share (0.99), up to the one that is judged. `lost` is the share of the
    time in which other work had the processors. The calls that it slowed are among the slowest ones.
    They may make up a whole tail that is no larger than that share, so a percentile with a larger tail
    must be over the limit too.
    """
    return any(
        estimate is not None
        and estimate.low is not None
        and estimate.low > limit_ms
        and 1 - share >= lost
        for share, estimate in percentiles.items()
    )
