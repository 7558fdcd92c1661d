"""Compiling a network with torch.compile, and the cache that makes a second start a warm one.

    inductor/             in a torch artifact: the seed of the cache, as torch wrote it

torch looks kernels up in the folder that TORCHINDUCTOR_CACHE_DIR names, and writes new ones there. So
whoever runs an artifact works on a copy of its seed. The seed holds native code and torch's own
pickles: like an AOTInductor package it is used from the own store only, whose digests are checked.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optcli.errors import MissingError
from optcli.files import folders
from optcli.models.formats import torch_devices
from optcli.settings import Settings, TensorSpec, batch_range

if TYPE_CHECKING:
    import torch

NAME = "compile"
SEED = "inductor"
# More sizes than this would be compiled by mistake; torch itself falls back to eager, silently, at 8.
_MOST_GRAPHS = 64

Mode = Literal["default", "reduce-overhead", "max-autotune"]


class Compilation(Settings):
    """How a network is compiled: what the record of the transform `compile` holds.

    `dynamic` compiles one graph for all sizes (a size of 1 has its own), else one for each size.
    `batch_sizes` are those that were compiled when the seed was made.
    """

    mode: Mode = "default"
    dynamic: bool = True
    freezing: bool = False
    batch_sizes: tuple[int, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """The transform that a torch artifact keeps; `of` reads it back."""
        return {"name": NAME, **self.model_dump(mode="json")}

    @staticmethod
    def of(transforms: Sequence[dict[str, Any]]) -> Compilation | None:
        """The last compilation among an artifact's transforms, None where there is none."""
        records = [record for record in transforms if record["name"] == NAME]
        if not records:
            return None
        return Compilation(**{key: value for key, value in records[-1].items() if key != "name"})

    def apply(self, model: torch.nn.Module) -> Callable[..., Any]:
        """The network as a function that compiles itself on its first call. Call it in `compiling`."""
        import torch

        # `dynamic=True` would make every size vary; those that may are marked by `mark` instead.
        mode = None if self.mode == "default" else self.mode
        compiled: Callable[..., Any] = torch.compile(
            model, mode=mode, dynamic=None if self.dynamic else False
        )
        return compiled

    def sizes(self, inputs: Sequence[TensorSpec]) -> tuple[int, ...]:
        """The batch sizes to compile at, the most usual first.

        A graph for all sizes is tried at the ends of their range: some operators, such as
        convolutions, choose their kernel by the batch and split the range there.
        """
        span = batch_range(inputs)
        sizes = {size for size in self.batch_sizes if span.min <= size <= span.max}
        if self.dynamic or not sizes:
            sizes |= {span.min, span.opt, span.max}
        return tuple(sorted(sizes, key=lambda size: (size == 1, size != span.opt, size)))

    def mark(self, inputs: Sequence[TensorSpec], feed: dict[str, torch.Tensor]) -> None:
        """Mark the sizes that vary, so that what this feed compiles runs the others too."""
        from torch._dynamo import maybe_mark_dynamic

        if not self.dynamic:
            return
        for spec in inputs:
            for index, size in enumerate(spec.shape):
                varies = isinstance(size, str) and spec.ranges[size].min < spec.ranges[size].max
                if varies and feed[spec.name].shape[index] > 1:
                    maybe_mark_dynamic(feed[spec.name], index)


@contextmanager
def compiling(cache: Path, freezing: bool, *, quantized: bool = False) -> Iterator[None]:
    """Let torch.compile keep its cache in a folder, in this process alone and quietly.

    `quantized`: the network is one of torchao's graphs of integers. All calls of a compiled network
    belong inside: new sizes compile. Raises `MissingError` where there is no C++ compiler.
    """
    with caching_in(cache), _configured(freezing, quantized=quantized):
        yield


@contextmanager
def caching_in(folder: Path) -> Iterator[None]:
    """Let the compiler cache in a folder. Importing any of it makes the folder: enter this before.

    Raises `MissingError` for a path with a space, where PyTorch splits the compiler's command line
    (pytorch issue 148271), and for a folder from which nothing can run.
    """
    folders.require_executable(folder)
    if len(str(folder).split()) > 1:
        raise MissingError(
            f"compiling needs a temporary folder without a space in its path, and got {str(folder)!r}",
            hint="set the variable TMPDIR to another folder, such as /tmp",
        )
    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    with torch_devices.variables(**places):
        yield


@contextmanager
def _configured(freezing: bool, *, quantized: bool) -> Iterator[None]:
    """The compiler's settings, and no kernel in it that was loaded from elsewhere."""
    import torch._dynamo.config
    import torch._inductor.config
    from torch._inductor.utils import clear_caches

    require_compiler()
    settings: dict[str, Any] = {
        # Given as an option of torch.compile it would be read too late, and do nothing.
        "freezing": freezing,
        "compile_threads": 1,  # no workers that outlive this process
        # These would stay behind in the system's temporary folder; without them it takes no longer.
        "cpp_cache_precompile_headers": False,
        **instructions(),
    }
    if not quantized:
        # Importing torchao's quantizer installs a pass of its own for all networks of the process: what
        # is compiled with it is not found again where torchao is not imported.
        settings["pre_grad_custom_pass"] = None
    limits = {
        "recompile_limit": _MOST_GRAPHS,
        "accumulated_recompile_limit": 4 * _MOST_GRAPHS,
        "fail_on_recompile_limit_hit": True,
    }
    clear_caches()  # else a kernel that this process has loaded from elsewhere is not kept here
    with torch._inductor.config.patch(settings), torch._dynamo.config.patch(limits):
        yield


@contextmanager
def own_copy(artifact: Path) -> Iterator[Path]:
    """A cache of one's own that begins as the artifact's seed, or empty; it goes at the end."""
    with folders.temporary("inductor") as folder:
        cache = Path(folder)
        if (artifact / SEED).is_dir():
            shutil.copytree(artifact / SEED, cache, dirs_exist_ok=True, copy_function=shutil.copyfile)
        yield cache


def keep_seed(cache: Path, artifact: Path) -> None:
    """Put a cache into an artifact, without its locks."""
    ignored = shutil.ignore_patterns("*.lock", "__pycache__", "*.tmp")
    shutil.copytree(cache, artifact / SEED, ignore=ignored, copy_function=shutil.copyfile)


def kernels(cache: Path) -> int:
    """How many compiled kernels a cache holds: shared libraries, and binaries for a GPU."""
    return sum(1 for kind in ("*.so", "*.cubin") for _ in cache.rglob(kind))


def instructions() -> dict[str, Any]:
    """The setting by which Inductor trusts that the C++ compiler knows AVX2 and AVX-512.

    Else it compiles and loads a program for each set of instructions first, some 6 s in every process.
    PyTorch's headers need a compiler that is years younger than these. What the processor has it reads
    from the processor all the same, and it still tries the younger sets, such as VNNI and AMX. Empty on
    other processors, and where the variable TORCHINDUCTOR_VEC_ISA_OK says it.
    """
    from torch._inductor import config

    known = platform.machine() in ("x86_64", "AMD64") and config.cpp.vec_isa_ok is None
    return {"cpp.vec_isa_ok": True} if known else {}


def require_compiler() -> None:
    """Raise `MissingError` where torch finds no C++ compiler."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise MissingError(
            "compiling needs a C++ compiler and found none",
            hint="install one (for example `apt install g++`), or name it in the variable CXX",
        ) from error
