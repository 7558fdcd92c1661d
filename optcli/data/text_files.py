"""Files of text beside images: labels, lists, YAML and XML. Size limits hold for all of them."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from optcli.errors import InputError, excerpt
from optcli.files import regular_files

_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_DEEPEST = 100  # elements of XML within each other


def text_of(path: Path, hint: str, most_bytes: int = regular_files.MOST_TEXT_BYTES) -> str:
    """The text of a file in UTF-8, or in UTF-16 with its mark; a mark at the beginning is left out.

    Bytes that are no UTF-8 stay as Python has them in names of files. Raises `InputError`.
    """
    try:
        content = regular_files.read(path, most_bytes)
        mark = _MARKS.get(content[:2])
        return content.decode(mark) if mark else content.decode("utf-8-sig", "surrogateescape")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot be read: {excerpt(reason, 200)}"
        raise InputError(message, place=str(path), hint=hint) from error


def yaml_of(path: Path, hint: str) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `InputError` for anything else."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(text_of(path, hint))
    except (YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        message = f"this is no YAML: {excerpt(reason, 200)}"
        raise InputError(message, place=str(path), hint=hint) from error
    if not isinstance(content, dict):
        raise InputError("found no mapping in the file", place=str(path), hint=hint)
    return {str(key): value for key, value in content.items()}


def xml_of(path: Path, hint: str) -> Element:
    """The root of an XML file. Raises `InputError`, for one that declares entities too.

    Entities can grow without end, and can name other files: no declaration of them is read.
    """
    builder = TreeBuilder()
    depth = 0

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise ValueError("its elements are nested too deeply")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse(*_: Any) -> None:
        raise ValueError("it declares a document type, which may hold entities")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(regular_files.read(path), True)
        return builder.close()
    except (OSError, ValueError, LookupError, expat.ExpatError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"this is no XML that is read: {excerpt(reason, 200)}"
        raise InputError(message, place=str(path), hint=hint) from error
