"""Whether `pip install -c constraints.txt '.[all]'` finds versions: by what each package asks for."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def asked(requirement: Requirement) -> list[Requirement]:
    """What an installed package asks for with the extras of a requirement."""
    texts = metadata.requires(requirement.name) or []
    wanted = map(Requirement, texts)
    extras = ("", *requirement.extras)
    return [
        each
        for each in wanted
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def own(extra: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = project["dependencies"] if not extra else project["optional-dependencies"][extra]
    requirements = [Requirement(text) for text in texts]
    return [each for each in requirements if each.marker is None or each.marker.evaluate()]


def test_all_extras_fit_the_constraints():
    pinned, waiting, seen = pins(), [*own(""), *own("all")], set()
    problems = []
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == "optcli":
            waiting += [each for extra in requirement.extras for each in own(extra)]
            continue
        if name in pinned and not requirement.specifier.contains(pinned[name], prereleases=True):
            problems.append(f"{requirement} against {pinned[name]}")
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            waiting += asked(requirement)
        except metadata.PackageNotFoundError:
            assert name in {"nvidia-ml-py", "pillow-heif"}, f"{name} is not installed"
    assert problems == []
    assert {"executorch", "coremltools", "ai-edge-litert", "jax"} <= {name for name, _ in seen}


def test_the_converter_of_litert_still_asks_for_an_older_torch():
    """Once it does not, the extra can have it: docs/decisions/edge-converters.md."""
    (torch,) = [each for each in asked(Requirement("litert-torch")) if each.name == "torch"]
    assert not torch.specifier.contains(pins()["torch"])
