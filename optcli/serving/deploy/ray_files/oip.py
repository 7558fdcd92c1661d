"""The Open Inference Protocol v2 over HTTP: requests and answers, in JSON and with binary tensors.

https://github.com/open-inference/open-inference-protocol and Triton's extension for binary tensors.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

Arrays: TypeAlias = Mapping[str, np.ndarray]
HEADER = "inference-header-content-length"
_BITS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
_NAMES = ("BOOL", "FP16", "FP32", "FP64", *_BITS)
TYPES = {name: np.dtype(name.lower().replace("fp", "float")) for name in _NAMES}
NAMES = {dtype: name for name, dtype in TYPES.items()}
# Kinds of numbers in JSON that an input of a kind takes.
_TAKEN = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}


class Refused(Exception):  # noqa: N818
    """A request that is not answered with outputs: the HTTP status and one sentence that says why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence

    @classmethod
    def late(cls) -> Refused:
        """The answer to a request whose deadline has passed."""
        return cls(504, "the deadline of the request has passed")

    def response(self) -> Response:
        """As HTTP."""
        content = json.dumps({"error": self.sentence})
        return Response(content, self.status, media_type="application/json")


@dataclass(frozen=True)
class InferRequest:
    """A request: arrays by input name, how many rows they have, and which outputs it wants.

    `binary` has the names of the outputs, in the order asked for; True: as binary tensor.
    """

    feed: Arrays
    rows: int
    binary: Mapping[str, bool]
    id: str = ""

    def parts(self, largest: int) -> list[tuple[Arrays, int]]:
        """The request in parts of `largest` rows at most, each with its number of rows."""
        if self.rows <= largest:
            return [(self.feed, self.rows)]
        return [
            ({n: a[at : at + largest] for n, a in self.feed.items()}, min(largest, self.rows - at))
            for at in range(0, self.rows, largest)
        ]


class Protocol:
    """Reads requests for one model and writes its answers; `bundle` is the content of bundle.json."""

    def __init__(self, bundle: Mapping[str, Any]) -> None:
        self.name: str = bundle["model"]
        self.path = f"/v2/models/{self.name}"
        self._inputs = {each["name"]: each for each in bundle["inputs"]}
        self._outputs = [each["name"] for each in bundle["outputs"]]
        self._batched = bundle["batched"]

    def read(self, body: bytes, header_length: str | None) -> InferRequest:
        """The request in a body. Raises `Refused` with 400 for what does not fit the model."""
        length = len(body) if header_length is None else _size(header_length)
        if length > len(body):
            raise Refused(400, f"the header {HEADER} does not fit the body: {header_length!r:.22}")
        try:
            message = json.loads(body[:length])
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the request is no JSON: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("inputs"), list):
            raise Refused(400, "the request has no list `inputs`")
        rest = memoryview(body)[length:]
        feed: dict[str, np.ndarray] = {}
        for about in map(_mapping, message["inputs"]):
            data = about.get("data")
            size = _mapping(about.get("parameters")).get("binary_data_size")
            if size is not None:
                if type(size) is not int or not 0 <= size <= len(rest):
                    name, found = str(about.get("name"))[:40], str(size)[:20]
                    sentence = f"the input {name!r} has {len(rest)} bytes, found binary_data_size"
                    raise Refused(400, f"{sentence} {found}")
                data, rest = rest[:size], rest[size:]
            self.take(feed, about.get("name"), about.get("datatype"), about.get("shape"), data)
        if len(rest):
            raise Refused(400, f"{len(rest)} bytes follow the last input")
        every = _mapping(message.get("parameters")).get("binary_data_output") is True
        outputs = message.get("outputs") or [{"name": name} for name in self._outputs]
        binary = {}
        for about in map(_mapping, outputs if isinstance(outputs, list) else [outputs]):
            parameters = _mapping(about.get("parameters"))
            name = self.output(about.get("name"), parameters)
            binary[name] = parameters.get("binary_data", every) is True
        return self.checked(feed, binary, str(message.get("id") or ""))

    def take(
        self, feed: dict[str, np.ndarray], name: object, datatype: object, shape: object, data: Any
    ) -> None:
        """Put an input into `feed`; `data` are its bytes, or numbers in lists. Raises `Refused`."""
        if not isinstance(name, str) or name not in self._inputs:
            names = ", ".join(self._inputs)
            raise Refused(400, f"the model has no input {str(name)[:40]!r}, its inputs are {names}")
        wanted = self._inputs[name]
        if name in feed:
            raise Refused(400, f"the input {name!r} is there twice")
        if datatype != wanted["datatype"]:
            given = str(datatype)[:20]
            raise Refused(400, f"the input {name!r} is {wanted['datatype']}, found {given!r}")
        sizes = shape if isinstance(shape, list) else []
        if len(sizes) != len(wanted["shape"]) or not all(
            type(size) is int and least <= size <= most
            for size, least, most in zip(sizes, wanted["least"], wanted["most"], strict=True)
        ):
            varies = f", -1 from {wanted['least']} to {wanted['most']}"
            about = f"{wanted['shape']}{varies if -1 in wanted['shape'] else ''}"
            raise Refused(400, f"the input {name!r} has the shape {about}, found {str(shape)[:100]}")
        dtype, count = TYPES[wanted["datatype"]], math.prod(sizes)
        if isinstance(data, list):
            array = _numbers(data, dtype, count, f"the input {name!r} wants {count} numbers in `data`")
        elif not isinstance(data, bytes | memoryview):
            raise Refused(400, f"the input {name!r} has neither `data` nor binary_data_size")
        elif len(data) != count * dtype.itemsize:
            size = count * dtype.itemsize
            raise Refused(400, f"the input {name!r} takes {size} bytes, found {len(data)}")
        else:
            array = np.frombuffer(data, dtype)
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise Refused(400, f"the input {name!r} has values that are infinite or NaN")
        if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            raise Refused(400, f"the input {name!r} has bytes that are neither 0 nor 1")
        feed[name] = array.reshape(sizes)

    def output(self, name: object, parameters: Mapping[str, Any]) -> str:
        """The name of an output. Raises `Refused` for one that there is not."""
        if not isinstance(name, str) or name not in self._outputs:
            names = ", ".join(self._outputs)
            raise Refused(400, f"the model has no output {str(name)[:40]!r}, its outputs are {names}")
        if "classification" in parameters or "shared_memory_region" in parameters:
            raise Refused(400, "this server has no extension for classification or shared memory")
        return name

    def checked(self, feed: Arrays, binary: Mapping[str, bool], identity: str) -> InferRequest:
        """A request; without `binary` it wants all outputs. Raises `Refused` for inputs that differ."""
        if missing := self._inputs.keys() - feed.keys():
            raise Refused(400, f"the input {min(missing)!r} is missing")
        sizes = {name: len(array) for name, array in feed.items()} if self._batched else {"": 1}
        if len(set(sizes.values())) > 1:
            raise Refused(400, f"the inputs have different numbers of rows: {sizes}")
        wanted = binary or dict.fromkeys(self._outputs, True)
        return InferRequest(feed, next(iter(sizes.values())), wanted, identity)

    def write(self, request: InferRequest, outputs: Arrays) -> tuple[bytes, dict[str, str]]:
        """Body and headers of the answer, with the outputs in the encodings that were asked for."""
        described, binaries = [], []
        for name, binary in request.binary.items():
            array = np.ascontiguousarray(outputs[name])
            about: dict[str, Any] = {"name": name, "datatype": NAMES[array.dtype]}
            about["shape"] = list(array.shape)
            if binary:
                about["parameters"] = {"binary_data_size": array.nbytes}
                binaries.append(array.tobytes())
            else:
                about["data"] = array.ravel().tolist()
            described.append(about)
        message = {"model_name": self.name, "model_version": "1", "outputs": described}
        message |= {"id": request.id} if request.id else {}
        try:
            header = json.dumps(message, allow_nan=False).encode()
        except ValueError as error:
            sentence = "an output is infinite or NaN, which JSON has no form for"
            raise Refused(500, f"{sentence}: ask for binary tensors") from error
        if not binaries:
            return header, {"content-type": "application/json"}
        headers = {"content-type": "application/octet-stream", HEADER: str(len(header))}
        return b"".join([header, *binaries]), headers


async def body_of(request: Request, most_bytes: int) -> bytes:
    """The body of a request as it comes. Raises `Refused` where it is too large, or compressed."""
    if "content-encoding" in request.headers:
        raise Refused(415, "this server takes no compressed bodies")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:
                raise Refused(413, f"the body is larger than {most_bytes} bytes")
    except ClientDisconnect as error:
        raise Refused(400, "the client disconnected before its whole request arrived") from error
    return bytes(body)


def _mapping(value: object) -> Mapping[str, Any]:
    """What JSON has in a place; empty where it is no mapping."""
    return value if isinstance(value, dict) else {}


def _size(text: str) -> int:
    """Bytes in a header; more than any body has where it is no number, or one of many digits."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else sys.maxsize


def _numbers(data: list[Any], dtype: np.dtype[Any], count: int, wrong: str) -> np.ndarray:
    """Numbers of JSON, flat or nested, as a type that holds them. Raises `Refused`, with `wrong`."""
    try:
        numbers = np.asarray(data)
    except (ValueError, OverflowError, RecursionError) as error:
        raise Refused(400, f"{wrong}: its lists are of different lengths") from error
    if numbers.size != count:
        raise Refused(400, f"{wrong}: found {numbers.size}")
    if count and numbers.dtype.kind not in _TAKEN[dtype.kind]:
        raise Refused(400, f"{wrong}: they are of another type")
    with np.errstate(all="ignore"):
        array = numbers.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(array, numbers):
        raise Refused(400, f"{wrong}: some do not fit into {NAMES[dtype]}")
    return array
