"""What a converter refuses, with the layer of the network that calls the operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from optcli.errors import OptcliError, StepError, first_line

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

# Of an error, those that may say which operator it is about.
_LINES = 3


@contextmanager
def by_layer(refused: str, trace: Callable[[], ExportedProgram], hint: str) -> Iterator[None]:
    """What a converter raises becomes a `StepError`: `refused`, its reason, and where that comes from.

    `trace` gives the network as a program, in which the operators that the reason names are looked for.
    """
    try:
        yield
    except OptcliError:
        raise
    except Exception as error:
        reason, callers = first_line(error).rstrip(".:"), dict[str, set[str]]()
        said = "\n".join(list(filter(None, str(error).splitlines()))[:_LINES])
        with suppress(Exception):  # what cannot be converted may be impossible to trace as well
            program = trace()
            callers = _callers(said, program) or _callers(said, program.run_decompositions())
        named = [
            f"{operator} is called by {', '.join(sorted(modules)) or 'the network itself'}"
            for operator, modules in sorted(callers.items())
        ]
        raise StepError("; ".join([f"{refused}: {reason}", *named]), hint=hint) from error


def module_of(node: torch.fx.Node) -> str:
    """The module of the network that a node comes from; empty for the network itself."""
    paths = [str(path) for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return paths[-1].removeprefix("L['self'].") if paths else ""


def _callers(said: str, program: ExportedProgram) -> dict[str, set[str]]:
    """The modules that call operators which are named in an error, by operator."""
    callers: dict[str, set[str]] = {}
    for node in program.graph.nodes:
        # `aten.grid_sampler.default`; errors write `aten::grid_sampler` or 'grid_sampler' as well.
        parts = str(node.target).split(".")
        if node.op != "call_function" or len(parts) != 3:
            continue
        if re.search(rf"[.:'\"`]{re.escape(parts[1])}(?!\w)", said):
            modules = callers.setdefault(f"{parts[0]}.{parts[1]}", set())
            modules.update(filter(None, [module_of(node)]))
    return callers
