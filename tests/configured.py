"""What is asked of every pass and of every runner: both are classes whose fields are their options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from optcli.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = (
    "torch", "torchvision", "torchao", "torch_pruning", "onnx", "onnx_ir", "onnxruntime", "onnxscript",
    "onnxslim", "openvino", "nncf", "tensorrt", "tensorrt_rtx", "timm", "ray", "scipy", "matplotlib",
    "transformers", "numpy", "PIL", "sklearn",
)  # fmt: skip


def undocumented(kind: type[Settings]) -> list[str]:
    """The options without a description, and the class itself where it has no docstring of its own."""
    found = [name for name, field in kind.model_fields.items() if not field.description]
    return found if kind.__dict__.get("__doc__") else [kind.__name__, *found]


def variations(kind: type[Settings]) -> Iterator[Settings]:
    """One object per choice of each option, the others at their defaults; refused ones left out.

    Required options take their values from a ready recipe.
    """
    base = _required(kind)
    yield kind(**base)
    for name, field in kind.model_fields.items():
        for value in _choices(field.annotation):
            try:
                yield kind(**{**base, name: value})
            except ValidationError:
                continue


def _required(kind: type[Settings]) -> dict[str, Any]:
    missing = [name for name, field in kind.model_fields.items() if field.is_required()]
    name = kind.__module__.rpartition(".")[2]
    used = options_in_recipes().get(name, [])
    given = next((options for options in used if all(option in options for option in missing)), None)
    assert given is not None or not missing, f"no recipe gives {name} its options {missing}"
    return {option: given[option] for option in missing} if given else {}


def _choices(annotation: Any) -> list[Any]:
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


@cache
def options_in_recipes() -> dict[str, list[dict[str, Any]]]:
    """The passes and runners that the ready recipes name, each with the options it is given there."""
    from ruamel.yaml import YAML

    found: dict[str, list[dict[str, Any]]] = {}

    def look(value: Any) -> None:
        if isinstance(value, str):
            found.setdefault(value, []).append({})
        elif isinstance(value, list):
            for item in value:
                look(item)
        elif isinstance(value, dict):
            if "name" in value:
                options = {key: item for key, item in value.items() if key != "name"}
                found.setdefault(str(value["name"]), []).append(options)
            for key, item in value.items():
                if isinstance(item, dict):
                    found.setdefault(str(key), []).append(item)
                look(item)

    for path in sorted((REPOSITORY / "recipes").rglob("*.yaml")):
        recipe = YAML(typ="safe").load(path) or {}
        look([recipe.get("variants"), recipe.get("matrix")])
    return found


@cache
def loaded_by(*modules: str) -> dict[str, list[str]]:
    """The heavy libraries that importing each module loads, in a fresh interpreter."""
    program = (
        "import importlib, json, sys\n"
        f"heavy, found = set({HEAVY!r}), {{}}\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    found[name] = sorted(heavy & set(sys.modules))\n"
        "    heavy -= set(found[name])\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *modules], stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout))
