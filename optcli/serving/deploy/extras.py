"""What a bundle holds where it is asked for: the endpoint for images and the cache of answers."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from optcli import environment, prediction
from optcli.errors import UsageError
from optcli.model_files.built_variant import BuiltVariant
from optcli.prediction.of_recipe import ImageServing, image_serving
from optcli.serving.bundle import Bundle
from optcli.serving.deploy import caching, golden_images
from optcli.serving.deploy.interface import Interface

_FILES = Path(__file__).parent / "ray_files"
# A photograph of a telephone has 5 to 15 million bytes.
_BODY_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Extras:
    """The modules to copy, the packages that they need, and what to know of them.

    `cache` is what `bundle.json` says: where answers are kept, None: nowhere.
    """

    serving: ImageServing | None = None
    cache: str | None = None
    _cache_file: str = ""
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def images(self) -> bool:
        """Whether the server takes images."""
        return self.serving is not None

    def applied(self, bundle: Bundle) -> Bundle:
        """The bundle with what the server must know of this."""
        body = max(bundle.most_body_bytes, _BODY_BYTES) if self.images else bundle.most_body_bytes
        known = {"images": self.images, "cache": self.cache, "most_body_bytes": body}
        return bundle.model_copy(update=known)

    def write(self, folder: Path, built: BuiltVariant) -> str | None:
        """Write the modules and what they read into a bundle; gives the name of a golden image.

        Raises `InputError` where the modules prepare a sample otherwise than optcli does, and OSError.
        """
        for module in self.modules:
            file = prediction.COPIED.get(module, _FILES / f"{module}.py")
            shutil.copyfile(file, folder / file.name)
        with (folder / "requirements.txt").open("a", encoding="utf-8") as requirements:
            requirements.writelines(f"{name}=={environment.version(name)}\n" for name in self.packages)
        if self.cache is not None:
            caching.write(folder, self._cache_file)
        if self.serving is None:
            return None
        self.serving.write(folder)
        return golden_images.write(folder, built, self.serving)


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
    *,
    images: bool = False,
    cache: str | None = None,
    cache_ttl_s: float = caching.TTL_S,
) -> Extras:
    """What is asked for. Raises `UsageError` and `InputError` where it cannot be had."""
    serving = images_of(built, interface) if images else None
    modules: list[str] = []
    packages: list[str] = []
    content = ""
    if serving is not None:
        modules += ["images", "postprocess", "image_endpoint"]
        packages.append("pillow")
    if cache is not None:
        content = caching.cache_file(cache, built, cache_ttl_s)
        modules.append("cache")
        # CACHE_URL may name a Redis when the server starts.
        packages.append("redis")
    return Extras(
        serving=serving,
        cache=cache,
        _cache_file=content,
        modules=tuple(modules),
        packages=tuple(packages),
        notes=serving.notes if serving is not None else (),
    )
