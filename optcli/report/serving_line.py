"""How to serve at the rate that a recipe promises, in one line beside the recommendation."""

from __future__ import annotations

from optcli.errors import counted
from optcli.report import wording
from optcli.results import Report
from optcli.results.serving import ServingChoice


def serving_line(report: Report) -> str:
    """The plan of a build in one line; empty where its recipe names no rate."""
    choice = report.serving
    if choice is None:
        return ""
    again = f"`optcli plan {report.recipe.path or report.recipe.name} --variant {choice.variant}"
    more = f"{again} --rate {choice.rate_per_s:g} {_slo(choice)}` says more"
    begin = f"Serving {choice.variant} at {wording.number(choice.rate_per_s)} requests a second"
    if not choice.fit:
        return f"{begin}: its latency was measured on a busy machine, so that nothing is planned."
    if not choice.kept:
        return f"{begin}: no configuration keeps {_promised(choice)}; {more} and what would."
    figures = ", ".join(
        f"{name} {choice.figures_ms[name]:.3g} of {limit:g} ms" for name, limit in choice.slo_ms.items()
    )
    count = counted(choice.instances or 0, "instance")
    how = "one request at a time"
    if choice.batch is not None and choice.batch > 1:
        how = f"batches of at most {choice.batch}, waiting at most {choice.wait_ms:g} ms"
        if choice.padded_from:
            how += f" (the server pads {wording.padded(choice.padded_from)})"
    return (
        f"{begin}: {how}, {count} with 20 % headroom ({choice.instances_without_headroom} without),"
        f" {figures}, queue included; {more}."
    )


def _promised(choice: ServingChoice) -> str:
    return " and ".join(f"{name} {limit:g} ms" for name, limit in choice.slo_ms.items())


def _slo(choice: ServingChoice) -> str:
    return " ".join(f"--slo {name}={limit:g}ms" for name, limit in choice.slo_ms.items())
