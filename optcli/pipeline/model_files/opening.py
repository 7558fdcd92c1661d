"""Model files that no recipe built, as artifacts: kind, whether to trust them, inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optcli.artifact import CODE, SCANNED, Artifact, Format, own_inputs
from optcli.errors import InputError, InputsError, TrustError, UsageError
from optcli.files import digest
from optcli.models.engines.sidecar import FILE as SIDECAR
from optcli.models.formats import model_files
from optcli.pipeline import view
from optcli.pipeline.model_files.laying_out import LaidOut, LayoutRequest
from optcli.pipeline.trusting import doubts_of, is_fetched, is_from_file, require_trust
from optcli.scaffold.inspection import Target, resolve
from optcli.scaffold.inspection.looking import size_bytes
from optcli.settings import SymbolRange, TensorSpec
from optcli.store import Store
from optcli.workers import run
from optcli.workers.confinement import require_confinement

_TIMEOUT_S = 600.0
# These files say which sizes vary, not how far.
_UNBOUNDED = (Format.ONNX, Format.ORT, Format.OPENVINO, Format.TORCHSCRIPT)
_WANTED = f"{model_files.WANTED}, or an artifact's folder"
# What the store's own record of an artifact says, whatever its folder's artifact.json does.
_OURS = ("format", "precision", "size_bytes", "facts")
# Loading or running these can do anything that the person can.
_EXECUTABLE = {
    Format.TORCH: "a network in Python",
    Format.AOTI: "native code",
    Format.TENSORRT: "native code",
    Format.TENSORRT_RTX: "native code",
}


@dataclass(frozen=True)
class Opened:
    """A file as an artifact: under which name it is shown, what it takes and what is worth a note.

    `named` says that inputs go by their names, not by their order.
    """

    name: str
    path: Path
    artifact: Artifact
    inputs: tuple[TensorSpec, ...]
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether inputs go by name in its runtime; elsewhere by their order."""
        return self.artifact.format in (Format.ONNX, Format.ORT, Format.OPENVINO)

    def own_names(self, inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
        """Its name for the only input of a comparison, where that is another one; else none."""
        names = tuple(spec.name for spec in self.inputs)
        is_other = self.named and len(names) == len(inputs) == 1 and names[0] != inputs[0].name
        return names if is_other else ()


def find(files: Sequence[Path], store: Store, *, trust: bool) -> list[Target]:
    """What each file is. Raises `UsageError`, `InputError`, and `TrustError` for untrusted code."""
    targets = []
    for path in files:
        if not path.exists():
            near = sorted(each.name for each in path.parent.glob(f"*{path.suffix}"))[:5]
            hint = f"there are: {', '.join(near)}" if near and path.suffix else f"wanted {_WANTED}"
            raise UsageError("there is no such file", place=str(path), hint=hint)
        target = resolve(str(path), path.parent)
        if target.format == Format.TENSORRT and target.kind == "file":
            raise UsageError(
                f"{path.name} is an engine without {SIDECAR} beside it: neither its version nor its GPU"
                " is known",
                place=str(path),
                hint="build it with a recipe: `tensorrt_engine` after `export_onnx`",
            )
        if target.format not in list(Format) or (
            target.format in (Format.TORCH, Format.COREML) and target.kind != "artifact"
        ):
            raise UsageError(
                f"this is {_described(target)}, which cannot be measured directly",
                place=str(path),
                hint=f"wanted {_WANTED}; a recipe measures the rest: `optcli init`",
            )
        targets.append(trusting(target, store, trust=trust))
        require_trust_to_run(targets[-1])
    return targets


def trusting(target: Target, store: Store, *, trust: bool) -> Target:
    """The target, marked as trusted or not.

    What the own store holds is described as the store does: the folder's own words are no part of its
    digest. Code that it fetched from a remote store is not its own. Raises `TrustError` for what the
    own store holds and was made under `--trust`, without it.
    """
    if target.kind != "artifact":
        return replace(target, trusted=trust)
    entry = store.peek("artifact", str(target.about.get("key")))
    try:
        if entry is None or entry.digest != view.read(target.path)[1]:
            return replace(target, trusted=trust)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the artifact cannot be read: {error}", place=str(target.path), hint="build it again"
        ) from error
    require_trust(doubts_of(entry), str(target.path), trust=trust)
    about = {**target.about, **{name: entry.record[name] for name in _OURS if name in entry.record}}
    entries = entry.lineage(store.peek)
    if entries[0].ingredients.get("step") == "source":  # else its parents were collected
        about["made_by"] = [each.step() for each in entries]
    return replace(
        target,
        format=str(about["format"]),
        about=about,
        trusted=trust,
        own=not entry.origin or about["format"] not in CODE,
        descends=is_fetched(entries),
    )


def _described(target: Target) -> str:
    names = {"recipe": "a recipe", "weights": "a file of weights", "coreml": "a Core ML model"}
    return names.get(target.format, "a network in Python")


def require_trust_to_run(target: Target) -> None:
    """Code is run where the person says so, or where the own store holds the very same artifact.

    Raises `TrustError` elsewhere. A program is scanned, and runs in a worker that can only read; where
    the system has no such worker, the scan alone is not taken for enough.
    """
    format = Format(target.format)
    if format in SCANNED and _is_foreign(target):
        require_confinement(format, str(target.path), trust=target.trusted)
    if target.own or target.trusted or format not in _EXECUTABLE:
        return
    raise TrustError(
        f"this is {_EXECUTABLE[format]}, and not from this store: to run it is to trust it",
        place=str(target.path),
        hint="add --trust where you know who made it",
    )


def require_trusted_code(target: Target) -> None:
    """Raise `TrustError` where looking into a target runs code from elsewhere, or none confines it."""
    if target.format in SCANNED and _is_foreign(target):
        require_confinement(target.format, str(target.path), trust=target.trusted)
    if target.format == Format.TORCH and not target.own and not target.trusted:
        raise TrustError(
            "this is a network in Python, and not from this store: to look into it runs its code",
            place=str(target.path),
            hint="add --trust where you know who made it, or name the --store that it was built in",
        )


def open_all(
    targets: Sequence[Target], scratch: Path, given: tuple[TensorSpec, ...], largest_batch: int
) -> tuple[list[Opened], tuple[TensorSpec, ...]]:
    """Every file as an artifact below `scratch`, and the inputs that all of them take.

    `given` are the inputs as the person says them; a batch that a file leaves open reaches to
    `largest_batch` at least. Packages of AOTInductor say nothing of theirs, and of TorchScript they are
    guessed: both take those of the others, where there are any. Raises `InputError` where inputs
    cannot be found or are not the same.
    """
    opened = open_each(targets, scratch, given, largest_batch)
    return opened, given or merged(opened)


def open_each(
    targets: Sequence[Target], scratch: Path, given: tuple[TensorSpec, ...], largest_batch: int
) -> list[Opened]:
    """Every file as an artifact below `scratch`, each with the inputs that it takes itself."""
    names = _names(targets)
    # Those that can say what they take come first.
    order = sorted(range(len(targets)), key=lambda place: _silence(targets[place]))
    opened: dict[int, Opened] = {}
    for place in order:
        target = targets[place]
        assumed = given or (next(iter(opened.values())).inputs if opened else ())
        inputs = assumed if _silence(target) else given
        file = _open(target, names[place], scratch / str(place), inputs)
        if target.kind == "file" and file.artifact.format in _UNBOUNDED and not given:
            file = replace(file, inputs=tuple(_reaching(spec, largest_batch) for spec in file.inputs))
        opened[place] = file
    return [opened[place] for place in range(len(targets))]


def _open(target: Target, name: str, out: Path, inputs: tuple[TensorSpec, ...]) -> Opened:
    if target.kind == "artifact":
        return of_folder(target, name, inputs)
    if target.format == Format.AOTI and not inputs:
        raise InputError(
            "a package of AOTInductor does not say what it takes",
            place=str(target.path),
            hint='say it: --input "image:float32[batch,3,224,224]", once for each, in their order',
        )
    out.mkdir(parents=True)
    request = LayoutRequest(target.path, Format(target.format), out, inputs, target.trusted)
    try:
        laid_out = run(
            "optcli.pipeline.model_files.laying_out:lay_out",
            request,
            LaidOut,
            timeout_s=_TIMEOUT_S,
            confined=(out,) if _is_foreign(target) else None,
            reads=target.path,
        )
    except InputsError as error:
        if not inputs:
            raise
        # Sources speak of recipes; here inputs were said on the command line, or by another file.
        raise InputError(
            f"the given inputs do not fit: {error.message.partition(': ')[2]}",
            place=str(target.path),
            hint="leave --input out: the file says what it takes",
        ) from error
    content = digest.of_file(target.path)
    artifact = Artifact(
        key=content,
        format=request.format,
        path=out,
        precision=laid_out.precision,
        size_bytes=_size_bytes(target),
        digest=content,
        facts=laid_out.facts,
        foreign=_is_foreign(target),
        trusted=target.trusted,
    )
    return Opened(name, target.path, artifact, laid_out.inputs, laid_out.notes)


def _silence(target: Target) -> int:
    """How little a file says of its inputs: 0 enough, 1 they can be guessed, 2 nothing."""
    silent = {str(Format.TORCHSCRIPT): 1, str(Format.AOTI): 2}
    return silent.get(target.format, 0) if target.kind == "file" else 0


def _reaching(spec: TensorSpec, batch_size: int) -> TensorSpec:
    symbol = spec.batch_symbol
    if symbol is None or spec.ranges[symbol].max >= batch_size:
        return spec
    span = spec.ranges[symbol].model_copy(update={"max": batch_size})
    return spec.model_copy(update={"ranges": {**spec.ranges, symbol: span}})


def of_folder(target: Target, name: str, inputs: tuple[TensorSpec, ...] = ()) -> Opened:
    """An artifact's folder as it is; `inputs` are those that it says itself, where none are given.

    Raises `InputError` where its files are others than its artifact.json says.
    """
    about, content = target.about, view.read(target.path)[1]
    if content != about.get("digest"):
        raise InputError(
            "the artifact's files do not match its artifact.json",
            place=str(target.path),
            hint="build it again, or name the model's file itself",
        )
    steps = about.get("made_by") or [{}]
    own = tuple(TensorSpec.model_validate(spec) for spec in steps[0].get("inputs", []))
    artifact = Artifact(
        about["key"],
        Format(about["format"]),
        target.path,
        about["precision"],
        about["size_bytes"],
        content,
        about["facts"],
        _is_foreign(target),
        target.trusted,
    )
    return Opened(name, target.path, artifact, own_inputs(artifact.facts, inputs or own))


def _is_foreign(target: Target) -> bool:
    """Whether a worker that can only read opens it: all but code, and what the own recipes made.

    Also what a person trusts: opening it takes no more than reading.
    """
    made_by = target.about.get("made_by") or ()
    own = target.own and not target.descends and not is_from_file(made_by)
    return not own and target.format not in CODE


def _size_bytes(target: Target) -> int:
    weights = target.path.with_suffix(".bin") if target.format == Format.OPENVINO else None
    return size_bytes(target.path) + (size_bytes(weights) if weights and weights.is_file() else 0)


def _names(targets: Sequence[Target]) -> list[str]:
    """The files' own names; with their folders where two are called the same."""
    short = [target.path.name for target in targets]
    # A slash would lead a log elsewhere.
    names = [
        name if short.count(name) == 1 else f"{target.path.parent.name}:{name}"
        for name, target in zip(short, targets, strict=True)
    ]
    return [
        name if names[:place].count(name) == 0 else f"{name}#{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def merged(opened: Sequence[Opened]) -> tuple[TensorSpec, ...]:
    """Inputs that every file takes: called as where names count, each size within all ranges.

    Raises `InputError` where files take different things.
    """
    for each in opened:
        if not each.inputs:
            raise silent(each)
    first = next((each for each in opened if each.named), opened[0])
    specs = list(first.inputs)
    for other in opened:
        if other is first:
            continue
        names = [spec.name for spec in other.inputs]
        by_name = {spec.name: spec for spec in other.inputs}
        by_name |= {specs[0].name: other.inputs[0]} if len(names) == len(specs) == 1 else {}
        agrees = len(names) == len(specs) and (
            not other.named or {spec.name for spec in specs} <= by_name.keys()
        )
        if not agrees:
            raise _different(first, other)
        for place, spec in enumerate(specs):
            other_spec = by_name[spec.name] if other.named else other.inputs[place]
            both = _both(spec, other_spec)
            if both is None:
                raise _different(first, other)
            specs[place] = both
    return tuple(specs)


def silent(opened: Opened) -> InputError:
    """The error for an artifact's folder that does not say what the model takes."""
    return InputError(
        "artifact.json names no inputs",
        place=str(opened.path),
        hint="build it again, or say them with --input",
    )


def _both(one: TensorSpec, other: TensorSpec) -> TensorSpec | None:
    """What two inputs both take; None where nothing is left."""
    if one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return None
    shape: list[int | str] = []
    ranges: dict[str, SymbolRange] = {}
    for one_size, other_size in zip(one.shape, other.shape, strict=True):
        a, b = (_range(size, spec) for size, spec in ((one_size, one), (other_size, other)))
        low, high = max(a.min, b.min), min(a.max, b.max)
        if low > high:
            return None
        symbol = next((size for size in (one_size, other_size) if isinstance(size, str)), None)
        if symbol is None or not (isinstance(one_size, str) and isinstance(other_size, str)):
            shape.append(low)
            continue
        shape.append(one_size)
        ranges[str(one_size)] = SymbolRange(min=low, opt=max(low, min(a.opt, high)), max=high)
    return one.model_copy(update={"shape": tuple(shape), "ranges": ranges})


def _range(size: int | str, spec: TensorSpec) -> SymbolRange:
    return spec.ranges[size] if isinstance(size, str) else SymbolRange(min=size, opt=size, max=size)


def _different(first: Opened, other: Opened) -> InputError:
    return InputError(
        f"it takes {_shown(other)}, but {first.name} takes {_shown(first)}",
        place=str(other.path),
        hint="measure them separately, or say what both take with --input",
    )


def _shown(opened: Opened) -> str:
    return " and ".join(
        f"{spec.name}:{spec.dtype}[{', '.join(map(str, spec.shape))}]" for spec in opened.inputs
    )
