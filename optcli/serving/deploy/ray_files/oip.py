"""The Open Inference Protocol v2 over HTTP: requests and answers, in JSON and with binary tensors.

https://github.com/open-inference/open-inference-protocol and Triton's extension for binary tensors.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

HEADER = "inference-header-content-length"
TYPES = {
    "BOOL": np.dtype(np.bool_),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    **{
        f"{s}INT{bits}": np.dtype(f"{s.lower()}int{bits}")
        for s in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
# More than any size has; Python refuses to read numbers of more than 4300.
_MOST_DIGITS = 18
# zlib finds out by itself which of the compressed forms a body has.
_COMPRESSED, _ANY_FORM = ("gzip", "deflate"), 32 + zlib.MAX_WBITS


class Refused(Exception):  # noqa: N818
    """A request that is not answered with outputs: the HTTP status and one sentence that says why."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers

    @classmethod
    def late(cls) -> Refused:
        """The answer to a request whose deadline has passed."""
        return cls(504, "the deadline of the request has passed")

    def response(self) -> Response:
        """As HTTP."""
        # A client's text may hold half a character, which no UTF-8 can.
        sentence = self.sentence.encode(errors="backslashreplace").decode()
        return JSONResponse({"error": sentence}, self.status, self.headers)


@dataclass(frozen=True)
class Asked:
    """A request: arrays by input name, how many rows they have, and which outputs it wants.

    `binary` has the names of the outputs, in the order asked for; True: as binary tensor.
    """

    feed: Mapping[str, np.ndarray]
    rows: int
    binary: Mapping[str, bool]
    id: str = ""

    def parts(self, largest: int) -> list[tuple[Mapping[str, np.ndarray], int]]:
        """The request in parts of `largest` rows at most, each with its number of rows."""
        if self.rows <= largest:
            return [(self.feed, self.rows)]
        starts = range(0, self.rows, largest)
        return [
            ({n: a[at : at + largest] for n, a in self.feed.items()}, min(largest, self.rows - at))
            for at in starts
        ]


class Protocol:
    """Reads requests for one model and writes its answers; `bundle` is the content of bundle.json."""

    def __init__(self, bundle: Mapping[str, Any]) -> None:
        self.name: str = bundle["model"]
        self._inputs = {each["name"]: each for each in bundle["inputs"]}
        self._outputs = {each["name"]: each for each in bundle["outputs"]}
        self._bundle, self._batched = bundle, bundle["batched"]

    def read(self, body: bytes, header_length: str | None) -> Asked:
        """The request in a body. Raises `Refused` with 400 for what does not fit the model."""
        given = str(len(body)) if header_length is None else header_length
        plain = given.isascii() and given.isdecimal() and len(given) <= _MOST_DIGITS
        if not plain or (length := int(given)) > len(body):
            raise Refused(400, f"the header {HEADER} does not fit the body: {given[:20]!r}")
        try:
            message = json.loads(body[:length])
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the request is no JSON: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("inputs"), list):
            raise Refused(400, "the request has no list `inputs`")
        rest = memoryview(body)[length:]
        feed: dict[str, np.ndarray] = {}
        for tensor in message["inputs"]:
            about = tensor if isinstance(tensor, dict) else {}
            name = self.input(about.get("name"), feed)
            shape = self.shape(name, about.get("datatype"), about.get("shape"))
            size = _parameters(about).get("binary_data_size")
            if size is None:
                feed[name] = self.checked(name, self._numbers(name, about.get("data"), shape))
                continue
            if type(size) is not int or not 0 <= size <= len(rest):
                given = f"binary_data_size {str(size)[:20]}"
                raise Refused(400, f"the input {name!r} has {len(rest)} bytes, found {given}")
            feed[name], rest = self.tensor(name, rest[:size], shape), rest[size:]
        if len(rest):
            raise Refused(400, f"{len(rest)} bytes follow the last input")
        outputs = self._wanted(message)
        return self.asked(feed, dict(outputs), str(message.get("id") or ""))

    def asked(self, feed: Mapping[str, np.ndarray], binary: Mapping[str, bool], identity: str) -> Asked:
        """A request of these inputs. Raises `Refused` where they do not belong together."""
        if missing := self._inputs.keys() - feed.keys():
            raise Refused(400, f"the input {min(missing)!r} is missing")
        sizes = {name: len(array) for name, array in feed.items()} if self._batched else {"": 1}
        if len(set(sizes.values())) > 1:
            raise Refused(400, f"the inputs have different numbers of rows: {sizes}")
        return Asked(feed, next(iter(sizes.values())), binary, identity)

    def write(self, asked: Asked, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
        """Body and headers of the answer, with the outputs in the encodings that were asked for."""
        described, binaries = [], []
        for name, binary in asked.binary.items():
            array = np.ascontiguousarray(outputs[name])
            about = {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape)}
            if binary:
                described.append({**about, "parameters": {"binary_data_size": array.nbytes}})
                binaries.append(array.tobytes())
            elif array.dtype == np.float16:
                raise Refused(400, f"JSON has no form for FP16: ask for {name!r} as binary tensor")
            else:
                described.append({**about, "data": array.ravel().tolist()})
        message = {"model_name": self.name, "model_version": "1", "outputs": described}
        message |= {"id": asked.id} if asked.id else {}
        try:
            header = json.dumps(message, allow_nan=False).encode()
        except ValueError as error:
            sentence = "an output is infinite or NaN, which JSON has no form for"
            raise Refused(500, f"{sentence}: ask for binary tensors") from error
        if not binaries:
            return header, {"content-type": "application/json"}
        headers = {"content-type": "application/octet-stream", HEADER: str(len(header))}
        return b"".join([header, *binaries]), headers

    def output(self, name: object, parameters: Mapping[str, Any]) -> str:
        """The name of an output. Raises `Refused` for one that there is not."""
        if not isinstance(name, str) or name not in self._outputs:
            wanted = ", ".join(self._outputs)
            given = str(name)[:40]
            raise Refused(400, f"the model has no output {given!r}, its outputs are {wanted}")
        if "classification" in parameters or "shared_memory_region" in parameters:
            raise Refused(400, "this server has no extension for classification or shared memory")
        return name

    def outputs(self) -> list[str]:
        """The names of all outputs."""
        return list(self._outputs)

    def shape(self, name: str, datatype: object, shape: object) -> tuple[int, ...]:
        """The shape of an input. Raises `Refused` for one or a type that the model does not take."""
        wanted = self._inputs[name]
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
        return tuple(sizes)

    def tensor(self, name: str, data: bytes | memoryview, shape: tuple[int, ...]) -> np.ndarray:
        """A binary tensor. Raises `Refused` for one that is not so large."""
        dtype = TYPES[self._inputs[name]["datatype"]]
        size = math.prod(shape) * dtype.itemsize
        if len(data) != size:
            raise Refused(400, f"the input {name!r} takes {size} bytes, found {len(data)}")
        return self.checked(name, np.frombuffer(data, dtype).reshape(shape))

    def checked(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array of an input. Raises `Refused` for values that it cannot have."""
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Refused(400, f"the input {name!r} has values that are infinite or NaN")
        if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            raise Refused(400, f"the input {name!r} has bytes that are neither 0 nor 1")
        return array

    def input(self, name: object, feed: Mapping[str, np.ndarray]) -> str:
        """The name of an input. Raises `Refused` for one that there is not, or that was there."""
        if not isinstance(name, str) or name not in self._inputs:
            wanted, given = ", ".join(self._inputs), str(name)[:40]
            raise Refused(400, f"the model has no input {given!r}, its inputs are {wanted}")
        if name in feed:
            raise Refused(400, f"the input {name!r} is there twice")
        return name

    def _wanted(self, message: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        every = _parameters(message).get("binary_data_output") is True
        outputs = message.get("outputs") or [{"name": name} for name in self._outputs]
        for output in outputs if isinstance(outputs, list) else [outputs]:
            about = output if isinstance(output, dict) else {}
            parameters = _parameters(about)
            name = self.output(about.get("name"), parameters)
            yield name, parameters.get("binary_data", every) is True

    def _numbers(self, name: str, data: object, shape: tuple[int, ...]) -> np.ndarray:
        """An array of numbers in JSON, flat or nested, in a type that holds them."""
        if not isinstance(data, list):
            raise Refused(400, f"the input {name!r} has neither `data` nor binary_data_size")
        dtype, count = TYPES[self._inputs[name]["datatype"]], math.prod(shape)
        wrong = f"the input {name!r} wants {count} numbers in `data`"
        try:
            numbers = np.asarray(data)
        except (ValueError, OverflowError, RecursionError) as error:
            raise Refused(400, f"{wrong}: its lists are of different lengths") from error
        if numbers.size != count:
            raise Refused(400, f"{wrong}: found {numbers.size}")
        kinds = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
        if numbers.size and numbers.dtype.kind not in kinds:
            raise Refused(400, f"{wrong}: they are of another type")
        with np.errstate(all="ignore"):
            array = numbers.astype(dtype)
        if dtype.kind in "iu" and not np.array_equal(array, numbers):
            raise Refused(400, f"{wrong}: some do not fit into {NAMES[dtype]}")
        return array.reshape(shape)


def seconds_of(shorter_ms: str | None, most_s: float) -> float:
    """Seconds that a request has: what x-deadline-ms asks for, `most_s` at most. Raises `Refused`."""
    try:
        seconds = most_s if shorter_ms is None else float(shorter_ms) / 1000
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        given = (shorter_ms or "")[:20]
        raise Refused(400, f"x-deadline-ms wants milliseconds above 0, found {given!r}")
    return min(seconds, most_s)


async def body_of(request: Request, most_bytes: int, timeout_s: float) -> bytes:
    """The body of a request. Raises `Refused` where it is too large, too slow or badly compressed."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in {"identity", *_COMPRESSED}:
        raise Refused(415, f"the body is compressed with {encoding[:20]!r}: send gzip or deflate")
    large = Refused(413, f"the body is larger than {most_bytes} bytes")
    length = request.headers.get("content-length", "0")
    if len(length) > _MOST_DIGITS or int(length) > most_bytes:
        raise large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most_bytes:
                    raise large
    except TimeoutError as error:
        raise Refused(408, f"the body did not arrive within {timeout_s:g} seconds") from error
    except ClientDisconnect as error:
        raise Refused(400, "the client disconnected before its whole request arrived") from error
    if encoding == "identity":
        return bytes(body)
    reader = zlib.decompressobj(_ANY_FORM)
    try:
        content = reader.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise Refused(400, f"the body is not what its content-encoding {encoding} says") from error
    if len(content) > most_bytes:
        raise large
    if not reader.eof:
        raise Refused(400, f"the body of the content-encoding {encoding} is cut off")
    return content


def encoded(content: bytes, accepted: str, headers: dict[str, str]) -> bytes:
    """The body of an answer, compressed with gzip where the client asks for that alone."""
    if accepted.strip() != "gzip":
        return content
    headers["content-encoding"] = "gzip"
    return gzip.compress(content, 1)


def _parameters(part: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = part.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
