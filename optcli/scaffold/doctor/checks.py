"""One check of the doctor, and all of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optcli.errors import ExitCode
from optcli.results.document import Cell, Column, Document, Section, Table
from optcli.settings import Settings

State = Literal["ok", "note", "absent", "broken"]
_TONES = {"ok": "accept", "note": "inconclusive", "absent": "none", "broken": "reject"}


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


def document(examination: Examination) -> Document:
    """What `optcli doctor` shows: a row for each check, a hint below what was seen."""
    columns = [
        Column[Check]("part", lambda check: Cell(check.group), align="left"),
        Column[Check]("what", lambda check: Cell(check.name), align="left"),
        Column[Check]("state", lambda check: Cell(check.state, tone=_TONES[check.state]), align="left"),
        Column[Check](
            "found",
            lambda check: Cell(check.found + (f"\nhint: {check.hint}" if check.hint else "")),
            align="wrapped",
        ),
    ]
    checks = examination.checks
    broken = [check.name for check in checks if check.state == "broken"]
    missing = [check.name for check in checks if check.core and check.state == "absent"]
    works = examination.exit_code == ExitCode.DONE
    answer = "the core works" + (f"; broken: {', '.join(broken)}" if broken else "")
    if not works:
        answer = f"the core does not work: {', '.join(dict.fromkeys(broken + missing))}"
    return Document(
        title="optcli doctor",
        sections=[Section("", [Table(columns, checks)])],
        answer=answer,
        outcome="accept" if works else "reject",
    )
