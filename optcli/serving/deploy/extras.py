"""What `deploy` adds to a Ray bundle on demand: images, a cache, statistics of inputs, gRPC."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from optcli import environment
from optcli.errors import UsageError, excerpt
from optcli.files.digest import of_value
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.serving import prediction
from optcli.serving.bundle import Bundle
from optcli.serving.deploy import golden_images
from optcli.serving.deploy.interface import Interface
from optcli.serving.drift import COPIED, compared
from optcli.serving.prediction import known_answers, storage
from optcli.serving.prediction.of_recipe import IMAGES, POSTPROCESS, ImageServing, image_serving
from optcli.serving.prediction.storage import StoredAnswers

CACHE_FILE = "cache.json"
MEMORY = "memory"
_SCHEMES = ("redis", "rediss", "unix")
# The variable that takes the place of the file's address when the server starts, and what switches the
# cache off.
CACHE_VARIABLE, CACHE_OFF = "CACHE_URL", "off"
CACHE_TTL_S = 3600.0
_FILES = Path(__file__).parent / "ray_files"
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


def cache_file(place: str, built: BuiltVariant, ttl_s: float = CACHE_TTL_S) -> str:
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
    return json.dumps(content, indent=2) + "\n"


def _write_cache(folder: Path, content: str) -> None:
    """Write `cache.json`. Raises OSError."""
    (folder / CACHE_FILE).write_text(content, encoding="utf-8")


@dataclass(frozen=True)
class Extras:
    """The modules to copy, the packages that they need, and what to know of them.

    `cache` and `sample_inputs` are what `bundle.json` says: where answers are kept, None: nowhere, and
    of how many inputs a day statistics are. `known` are answers that the server need not compute.
    """

    serving: ImageServing | None = None
    cache: str | None = None
    known: StoredAnswers | None = None
    _cache_file: str = ""
    sample_inputs: int = 0
    grpc: bool = False
    _reference: bytes = b""
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def images(self) -> bool:
        """Whether the server takes images."""
        return self.serving is not None

    @property
    def answers_classes(self) -> bool:
        """Whether the server answers images with classes."""
        return self.serving is not None and self.serving.postprocess.get("kind") == "classes"

    def applied(self, bundle: Bundle) -> Bundle:
        """The bundle with what the server must know of this."""
        body = max(bundle.most_body_bytes, _BODY_BYTES) if self.images else bundle.most_body_bytes
        known = {"images": self.images, "cache": self.cache, "most_body_bytes": body}
        known["grpc"] = self.grpc
        return bundle.model_copy(update={**known, "sample_inputs": self.sample_inputs})

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
        if self.cache is not None:
            _write_cache(folder, self._cache_file)
        if self.sample_inputs:
            from optcli.serving.drift.input_statistics import REFERENCE

            (folder / REFERENCE).write_bytes(self._reference)
        if self.serving is None:
            return None
        self.serving.write(folder)
        if self.known is not None:
            self._write_known(folder, built, self.known)
        return golden_images.write(folder, built, self.serving)

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
    built: BuiltVariant,
    interface: Interface,
    model: str,
    log: Path,
    *,
    images: bool = False,
    cache: str | None = None,
    cache_ttl_s: float = CACHE_TTL_S,
    sample_inputs: int = 0,
    known: str | None = None,
    grpc: bool = False,
) -> Extras:
    """What is asked for; `log` is a worker's. Raises `UsageError` and `InputError`."""
    serving = images_of(built, interface) if images else None
    modules: list[str] = []
    answers = None
    packages: list[str] = []
    notes = list(serving.notes) if serving is not None else []
    content, compared_with = "", b""
    if serving is not None:
        modules += ["images", *prediction.ANSWERING, "image_endpoint"]
        packages.append("pillow")
    if cache is not None:
        content = cache_file(cache, built, cache_ttl_s)
        modules.append("cache")
        # CACHE_URL may name a Redis when the server starts.
        packages.append("redis")
    if sample_inputs:
        compared_with, said = compared.of_calibration(model, built, log)
        modules += ["keeping", *COPIED]
        notes.append(
            f"the server keeps statistics of {sample_inputs} inputs a day, drawn at random; it keeps no"
            f" input. `optcli loadtest FOLDER --drift` compares the statistics with {said}"
        )
    if grpc:
        modules += ["oip_grpc", "grpc_service_pb2"]
    if known is not None:
        if serving is None or cache is None:
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
    return Extras(
        serving=serving,
        cache=cache,
        known=answers,
        _cache_file=content,
        sample_inputs=sample_inputs,
        grpc=grpc,
        _reference=compared_with,
        modules=tuple(modules),
        packages=tuple(packages),
        notes=tuple(notes),
    )
