"""Which priority a request has: by name, or by number as Triton counts them, 1 being the most urgent.

A request names it in the parameters of its JSON, `{"parameters": {"priority": "high"}}`, or in the
header `x-priority`. One that names none, or 0, has the least urgent.
"""

from __future__ import annotations

from collections.abc import Sequence

from oip import Refused, whole

HEADER = "x-priority"


def chosen(names: Sequence[str], header: str | None, named: object) -> str:
    """The priority of a request, one of `names`, of which the first is the most urgent.

    Raises `Refused` with 400 for another one, and where header and parameters differ.
    """
    asked = [_known(names, each) for each in (header, named) if each is not None]
    if len(set(asked)) > 1:
        raise Refused(
            400, f"the header {HEADER} asks for the priority {asked[0]}, the request for {asked[1]}"
        )
    return asked[0] if asked else names[-1]


def _known(names: Sequence[str], named: object) -> str:
    if isinstance(named, str) and named in names:
        return named
    number = whole(named) if isinstance(named, str) else named
    if type(number) is int and 0 <= number <= len(names):
        return names[number - 1]  # 0 is the last
    wanted = ", ".join(names)
    raise Refused(
        400, f"there is no priority {str(named)[:40]!r}: they are {wanted}, or 1 to {len(names)}"
    )
