"""Why two artifacts differ: from the ingredients of the steps that made them, and what runs them.

Only what a person changed is a cause. A step whose parent differs follows from that, and is not named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optcli.store.why import ABSENT, differing, shown

# Follows from other ingredients, or says nothing about the artifact.
_CONSEQUENCES = ("key", "step", "parent", "kind", "model.kind", "model.versions")


def of_making(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """What differs between the steps that made the baseline's artifact and the candidate's.

    Each is a record with `step` and the ingredients of its key. Empty where nothing differs.
    """
    names = [step["step"] for step in before], [step["step"] for step in after]
    differences = (
        [] if names[0] == names[1] else [f"passes: {_chain(names[0])}, now {_chain(names[1])}"]
    )
    own: list[str] = []
    by_name = {step["step"]: step for step in before}
    for step in after:
        old = by_name.get(step["step"])
        if old is not None:
            for name, was, now in differing(dict(old), dict(step)):
                # A pass from the user's own file is called after it: `./passes.py:Clip`.
                ours = name.startswith("code") and not (name == "code.pass" and ":" in step["step"])
                target = own if ours else differences
                target.extend(_words(step["step"], name, was, now))
    # A new version of optcli changes the code of many passes: one cause, and the weakest.
    if own:
        differences.append(f"optcli's own code: {', '.join(dict.fromkeys(own))}")
    return list(dict.fromkeys(differences))


def of_running(
    before: Mapping[str, Any], after: Mapping[str, Any], packages: Sequence[str]
) -> list[str]:
    """What differs between the interpreters that ran the two: versions of the runner's packages."""
    return [
        f"{name} {was}, now {now}"
        for name in packages
        if (was := before.get(name)) != (now := after.get(name))
    ]


def merged(making: Sequence[str], running: Sequence[str]) -> list[str]:
    """Both together: a library that runs the artifact and had a part in making it is one cause."""
    own = [
        cause for cause in making if not any(cause.startswith(f"{change}, in ") for change in running)
    ]
    return [*own, *running]


def of_options(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between the runners' settings."""
    return [
        f"runner setting {name}: {_value(was)}, now {_value(now)}"
        for name, was, now in differing(dict(before), dict(after))
    ]


def _words(step: str, name: str, was: Any, now: Any) -> Iterator[str]:
    head, _, rest = name.partition(".")
    if name in _CONSEQUENCES or name.startswith("model.versions"):
        return
    if head == "code":
        yield f"the code of {step}" if ":" in step else step
    elif head == "data":
        yield f"{step}: other {rest or 'data'} samples"
    elif head == "options":
        yield f"{step}: {rest} {_value(was)}, now {_value(now)}"
    elif head == "versions":
        yield f"{rest} {_value(was)}, now {_value(now)}, in {step}"
    elif name == "model.code" or head in ("user_code", "files"):
        yield "the network's own code"
    elif name.startswith("model.weights"):
        yield "the weights"
    elif name.startswith(("model.file", "model.data")):
        yield "the model's file"
    elif head == "inputs":
        yield "the inputs' shapes or types"
    elif step == "source":
        yield f"the model: {rest or name} {_value(was)}, now {_value(now)}"
    else:
        yield f"{step}: {name} {_value(was)}, now {_value(now)}"


def _value(value: Any) -> str:
    return "not set" if value is None or value is ABSENT else shown(value)


def _chain(names: Sequence[str]) -> str:
    return " → ".join(name for name in names if name != "source") or "none"
