"""`optcli loadtest FIRST SECOND`: a second server gets a share of the first one's requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.cli import options
from optcli.cli.loadtest import load
from optcli.cli.progress import Progress
from optcli.errors import UsageError

if TYPE_CHECKING:
    from optcli.serving.loadtest import Options


@dataclass(frozen=True)
class ShadowOptions:
    """How the second server is compared; None: as by default."""

    shadow: str | None = options.option(
        "--shadow",
        metavar="SHARE",
        help="Share of the requests that SECOND gets as well.  [default: 10%]",
    )
    agreement: str | None = options.option(
        "--agreement",
        metavar="SHARE",
        help="Share of the samples on which SECOND must give the same answer.  [default: 90%]",
    )


def require_no_shadow(shadow: ShadowOptions) -> None:
    """Raise `UsageError` for what needs a second server."""
    for option, value in (("--shadow", shadow.shadow), ("--agreement", shadow.agreement)):
        if value is not None:
            raise UsageError("there is no second server", place=option, hint="name two servers")


def compared(target: str, second: str, shadow: ShadowOptions, asked: Options) -> load.Answer:
    """Send traffic to both servers and compare them."""
    from optcli.report.loadtest import canary as forms
    from optcli.serving.loadtest import Shadow, canary_test

    split = Shadow(
        share=load.positive(load.share(shadow.shadow or "10%", "--shadow"), "--shadow"),
        agreement=load.share(shadow.agreement or "90%", "--agreement"),
    )
    with Progress() as progress:
        canary = canary_test(target, second, split, asked, progress)
    return load.Answer(canary.to_json(), forms.document(canary), forms.junit(canary), canary.outcome)
