"""Whether `pip install -c constraints.txt '.[all]'` finds versions: by what each package asks for."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
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


# What optcli does with networks of PyTorch, and NNCF, which is only wanted where it quantizes.
WITH_TORCH = {"torch", "torchvision", "torchao", "torch-pruning", "onnxscript", "nncf"}
RUNTIMES = {"onnxruntime", "onnxruntime-gpu"}


def requirements(name: str) -> set[str]:
    """The names in a file of `requirements/`, and in those that it reads."""
    names = set()
    for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            names |= requirements(line.removeprefix("-r "))
        elif line and not line.startswith(("#", "-c ")):
            names.add(canonicalize_name(Requirement(line).name))
    return names


@pytest.mark.parametrize(
    ("file", "runtime"), [("onnx.txt", "onnxruntime"), ("onnx-gpu.txt", "onnxruntime-gpu")]
)
def test_requirements_without_pytorch_are_those_of_the_project(file, runtime):
    everything = {canonicalize_name(each.name) for each in own("")}
    assert requirements(file) == (everything - WITH_TORCH - RUNTIMES) | {runtime}
    shared = (ROOT / "requirements" / "without-torch.txt").read_text(encoding="utf-8")
    assert "\n-c ../constraints.txt\n" in shared
    assert requirements(file) <= pins().keys()


def test_both_packages_of_onnx_runtime_are_pinned_to_one_version():
    assert pins()["onnxruntime"] == pins()["onnxruntime-gpu"]


def test_nothing_that_is_required_without_pytorch_brings_it():
    waiting, seen = list(requirements("onnx-gpu.txt")), set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [canonicalize_name(each.name) for each in asked(Requirement(name))]
    assert seen & WITH_TORCH == set()
    assert {"protobuf", "sympy"} <= seen


# The name of a distribution, where it is not the name to import by.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "ruamel": "ruamel-yaml",
    "yaml": "pyyaml",
    "pydantic_core": "pydantic",
}
# A line that imports at once: what functions import, and what is only for types, is indented.
AT_ONCE = re.compile(r"^(?:from (\w+)[\w.]* import |import (\w+)[\w.]*(?: as \w+)?$)", re.MULTILINE)


def test_what_is_imported_at_once_is_required_and_needs_no_pytorch():
    """The files that are copied beside a server import each other, and what the server has."""
    required = requirements("onnx.txt")
    imported = {
        (name, str(file.relative_to(ROOT)))
        for file in (ROOT / "optcli").rglob("*.py")
        if not file.parent.name.endswith("_files") and file.name != "postprocess.py"
        for name in map("".join, AT_ONCE.findall(file.read_text(encoding="utf-8")))
        if name not in sys.stdlib_module_names and name != "optcli"
    }
    assert len(imported) > 100
    assert {
        (name, file)
        for name, file in imported
        if canonicalize_name(DISTRIBUTIONS.get(name, name)) not in required
    } == set()
