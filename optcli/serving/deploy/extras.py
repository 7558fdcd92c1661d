"""What `deploy` adds to a Ray bundle on demand: images, a cache, gRPC, statistics, compression."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from optcli import environment
from optcli.errors import UsageError, excerpt
from optcli.files.digest import of_value
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.serving import prediction
from optcli.serving.bundle import Bundle
from optcli.serving.deploy.interface import Interface, write_golden_image
from optcli.serving.drift import COPIED, compared
from optcli.serving.prediction import known_answers, storage
from optcli.serving.prediction.of_recipe import IMAGES, POSTPROCESS, ImageServing, image_serving
from optcli.serving.prediction.storage import StoredAnswers
from optcli.serving.targets import DeployOptions

CACHE_FILE = "cache.json"
MEMORY = "memory"
_SCHEMES = ("redis", "rediss", "unix")
# The variable that takes the place of the file's address when the server starts, and what switches the
# cache off.
CACHE_VARIABLE, CACHE_OFF = "CACHE_URL", "off"
_FILES = Path(__file__).parent / "ray_files"
# Modules that extend app.py, in this order: the cache is asked before what is sampled is computed.
_EXTENDING = ("keeping", "cache", "image_endpoint", "extensions")
# A photograph of a telephone has 5 to 15 million bytes.
_BODY_BYTES = 32 * 1024 * 1024
_KNOWN = "--known-answers"


def checked_place(place: str) -> str:
    """`memory`, or the URL of a Redis. Raises `UsageError` for anything else, and for a password."""
    if place == MEMORY:
        return place
    hint = f"wanted {MEMORY}, redis://HOST:6379/0, rediss://HOST or unix:///PATH"
    try:
        url = urlsplit(place)
        known = url.scheme in _SCHEMES and bool(url.path if url.scheme == "unix" else url.hostname)
        known = known and url.port != 0
    except ValueError:
        known = False
    if not known:
        given = excerpt(place.partition("@")[2] or place)
        raise UsageError(f"{given!r} is no cache that optcli knows", place="--cache", hint=hint)
    if url.password or "password=" in url.query:
        raise UsageError(
            "the URL has a password, and it would stand in the bundle",
            place="--cache",
            hint=f"leave it out, and start the server with the whole URL in {CACHE_VARIABLE}",
        )
    return place


def model_digest(built: BuiltVariant) -> str:
    """A digest of all that decides an answer beside the request and its preparation."""
    return of_value([built.artifact.digest, built.runner_name, built.options])


def cache_file(place: str, built: BuiltVariant, ttl_s: float) -> bytes:
    """The content of `cache.json`.

    Answers of another artifact or runner have other keys: a Redis may serve many.
    """
    content = {
        "schema": 1,
        "model": model_digest(built),
        "place": checked_place(place),
        "ttl_s": ttl_s,
        "most_bytes": 256 * 1024 * 1024,
    }
    return f"{json.dumps(content, indent=2)}\n".encode()


@dataclass(frozen=True)
class Extras:
    """The modules to copy, the packages that they need, what to know of them, and files by name.

    `known` are answers that the server need not compute.
    """

    options: DeployOptions
    serving: ImageServing | None = None
    known: StoredAnswers | None = None
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def answers_classes(self) -> bool:
        """Whether the server answers images with classes."""
        return self.serving is not None and self.serving.postprocess.get("kind") == "classes"

    def applied(self, bundle: Bundle) -> Bundle:
        """The bundle with what the server must know of this."""
        options = self.options
        known = {name: getattr(options, name) for name in ("images", "cache", "grpc", "sample_inputs")}
        known["extras"] = tuple(name for name in _EXTENDING if name in self.modules)
        if options.images:
            known["most_body_bytes"] = max(bundle.most_body_bytes, _BODY_BYTES)
        return bundle.model_copy(update=known)

    def write(self, folder: Path, built: BuiltVariant) -> str | None:
        """Write the modules and what they read into a bundle; gives the name of a golden image.

        Raises `InputError` where the modules prepare a sample otherwise than optcli does, and OSError.
        """
        for module in self.modules:
            copied = {**prediction.COPIED, **COPIED}
            file = copied.get(module, _FILES / f"{module}.py")
            shutil.copyfile(file, folder / file.name)
        with (folder / "requirements.txt").open("a", encoding="utf-8") as requirements:
            requirements.writelines(f"{name}=={environment.version(name)}\n" for name in self.packages)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        if self.serving is None:
            return None
        self.serving.write(folder)
        if self.known is not None:
            self._write_known(folder, built, self.known)
        return write_golden_image(folder, built, self.serving)

    def _write_known(self, folder: Path, built: BuiltVariant, known: StoredAnswers) -> None:
        def rows() -> Iterator[tuple[bytes, bytes]]:
            for digest, answer in known.rows():
                yield digest, json.dumps(answer).encode()

        # What the server holds its own files against.
        settings = b"".join((folder / file).read_bytes() for file in (IMAGES, POSTPROCESS))
        path = folder / known_answers.FILE
        count = known_answers.write(path, model_digest(built), settings, rows())
        if not count:
            raise UsageError(
                f"{known.uri} holds no answer yet",
                place=_KNOWN,
                hint="wait for `optcli infer` to finish",
            )


def images_of(built: BuiltVariant, interface: Interface) -> ImageServing:
    """How the server takes images. Raises `UsageError` and `InputError` where it cannot."""
    try:
        return image_serving(built, interface.computed or interface.outputs)
    except UsageError as error:
        hint = f"{error.hint}, or leave --images out: the server then takes tensors"
        raise UsageError(error.message, place="--images", hint=hint) from error


def extras_of(
    built: BuiltVariant, interface: Interface, model: str, log: Path, options: DeployOptions
) -> Extras:
    """What is asked for; `log` is a worker's. Raises `UsageError` and `InputError`."""
    serving = images_of(built, interface) if options.images else None
    modules: list[str] = []
    packages: list[str] = []
    files: dict[str, bytes] = {}
    notes = list(serving.notes) if serving is not None else []
    known, answers = options.known_answers, None
    if serving is not None:
        modules += ["images", *prediction.ANSWERING, "image_endpoint"]
        packages.append("pillow")
    if options.cache is not None:
        files[CACHE_FILE] = cache_file(options.cache, built, options.cache_ttl_s)
        modules.append("cache")
        # CACHE_URL may name a Redis when the server starts.
        packages.append("redis")
    if options.sample_inputs:
        from optcli.serving.drift.input_statistics import REFERENCE

        files[REFERENCE], note = compared.of_calibration(model, built, log)
        modules += ["keeping", *COPIED]
        notes.append(
            f"each replica keeps statistics of {options.sample_inputs} inputs a day, drawn at random,"
            " in its memory; it keeps no input. `optcli loadtest URL --drift` compares the statistics"
            f" with {note}"
        )
    if options.grpc:
        modules += ["oip_grpc", "grpc_service_pb2"]
    if options.extensions:
        modules.append("extensions")
    if known is not None:
        if serving is None or options.cache is None:
            missing = "--images" if serving is None else "--cache memory"
            raise UsageError(
                "known answers are for images, and the server looks for them in its cache",
                place=_KNOWN,
                hint=f"add {missing}",
            )
        answers = storage.open_answers(known, built, serving, _KNOWN)
        modules.append("known_answers")
        if answers.missing:
            notes.append(
                f"{answers.missing} shards of {known} are not answered yet: the server computes these"
            )
    return Extras(options, serving, answers, tuple(modules), tuple(packages), tuple(notes), files)
