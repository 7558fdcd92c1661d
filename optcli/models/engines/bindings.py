"""Which TensorRT this interpreter has, and what it can do: asked of the module, not of its version."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optcli.models.engines import TITLES, EngineError


@dataclass(frozen=True)
class Bindings:
    """The Python module of one product: `tensorrt` or `tensorrt_rtx`.

    TensorRT-RTX is a product of its own; nothing here ever passes one off as the other.
    """

    module: Any
    product: str

    @property
    def version(self) -> str:
        """Such as `10.16.1.11`."""
        return str(self.module.__version__)

    @property
    def title(self) -> str:
        """How people call it, with its version."""
        return f"{TITLES[self.product]} {self.version}"

    @property
    def rtx(self) -> bool:
        """Whether it is TensorRT-RTX, whose builder needs no GPU."""
        return self.product == "tensorrt_rtx"

    @property
    def weak_typing(self) -> bool:
        """Whether precision can be asked for by builder flags: up to 10; gone from 11 on."""
        return self.has("BuilderFlag", "FP16")

    @property
    def strong_typing(self) -> bool:
        """Whether the types of the network can be those of the ONNX model: from 10 on."""
        return not self.weak_typing or self.has("NetworkDefinitionCreationFlag", "STRONGLY_TYPED")

    def has(self, kind: str, *names: str) -> bool:
        """Whether a class or enum of the module has all these members."""
        owner = getattr(self.module, kind, None)
        return owner is not None and all(hasattr(owner, name) for name in names)

    def members(self, enum: str) -> tuple[str, ...]:
        """The names in an enum; none where the module has no such enum."""
        return tuple(getattr(getattr(self.module, enum, None), "__members__", ()))

    def member(self, enum: str, name: str) -> Any:
        """One member of an enum. Raises `EngineError` where this version has none of that name."""
        if not self.has(enum, name):
            names = ", ".join(self.members(enum)) or "none"
            raise EngineError(
                f"{self.title} has no {enum}.{name}",
                hint=f"it has: {names}" if len(names) < 400 else "",
            )
        return getattr(getattr(self.module, enum), name)


def load(product: str) -> Bindings:
    """The bindings of `tensorrt` or `tensorrt_rtx`. Raises `EngineError` where they do not load."""
    if product not in TITLES:
        raise EngineError(f"there is no product {product!r}", hint=f"one of: {', '.join(TITLES)}")
    try:
        module = importlib.import_module(product)
    except ImportError as error:
        raise EngineError(
            f"{TITLES[product]} cannot be loaded: {error}",
            hint=f"install it for this interpreter, or see why `import {product}` fails there",
        ) from error
    return Bindings(module, product)


def enum_name(value: Any) -> str:
    """The bare name of an enum's member: `HALF` for `DataType.HALF`."""
    return str(getattr(value, "name", value)).rpartition(".")[2]


def dimensions(shape: Sequence[int]) -> list[int] | None:
    """A shape as numbers, -1 where a size varies; None where not even the rank is known."""
    try:
        return [int(size) for size in shape]
    except ValueError:  # len() of an unknown rank is negative
        return None


def describe(job: dict[str, Any], talk: Any) -> dict[str, Any]:
    """What a job's product is: `product`, `version`, `title`, `strong_typing`, `python`."""
    bindings = load(job["product"])
    return {
        "product": bindings.product,
        "version": bindings.version,
        "title": bindings.title,
        "strong_typing": bindings.strong_typing,
        "python": sys.version.split()[0],
    }
