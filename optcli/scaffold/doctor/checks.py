"""One check of the doctor, and all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from optcli.errors import ExitCode
from optcli.settings import Settings

State = Literal["ok", "note", "absent", "broken"]
_MARKS: dict[State, str] = {"ok": "ok", "note": "note", "absent": "-", "broken": "BROKEN"}


class Check(Settings):
    """One thing that was looked at.

    `note` works but should be known; `absent` is not here and not needed by everybody; `broken` is
    here, or should be, and does not work. `core` marks what optcli cannot do without.
    """

    group: str
    name: str
    state: State
    found: str
    hint: str = ""
    core: bool = False


class Examination(Settings):
    """All checks; plain data, also what `optcli doctor --json` prints."""

    schema_version: Literal[1] = Field(1, alias="schema")
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 where the core works, 3 where something of it is broken or missing."""
        broken = any(check.core and check.state in ("absent", "broken") for check in self.checks)
        return ExitCode.MISSING if broken else ExitCode.DONE

    def lines(self) -> Iterator[str]:
        """To be read: one line a check, a hint below it."""
        group = ""
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            if check.group != group:
                yield check.group if not group else f"\n{check.group}"
                group = check.group
            yield f"  {_MARKS[check.state]:<7}{check.name:<{width}}  {check.found}".rstrip()
            if check.hint:
                yield f"{'':<9}{'':<{width}}  hint: {check.hint}"
        broken = [check.name for check in self.checks if check.state == "broken"]
        missing = [check.name for check in self.checks if check.core and check.state == "absent"]
        yield ""
        if self.exit_code == ExitCode.DONE:
            yield "the core works" + (f"; broken: {', '.join(broken)}" if broken else "")
        else:
            yield f"the core does not work: {', '.join(dict.fromkeys(broken + missing))}"
