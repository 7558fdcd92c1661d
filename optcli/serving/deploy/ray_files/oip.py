"""The Open Inference Protocol v2 over HTTP: requests and responses, as JSON and with binary tensors.

https://github.com/open-inference/open-inference-protocol and Triton's extension for binary tensors.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence
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
# JSON of so many bytes is read in half a millisecond, so many numbers become an array in one.
_LARGE_JSON_BYTES, _MANY_READ = 1 << 16, 1 << 16
_MANY_NUMBERS = 1 << 12
# More than any size has; Python refuses to read numbers of more than 4300.
_MOST_DIGITS = 18
_NAMES = {dtype: name for name, dtype in TYPES.items()}


class Refused(Exception):  # noqa: N818
    """A request that is not answered with outputs: the HTTP status and one sentence that says why.

    `cause` is set where the server dropped a request that was right: `queue_full`, `deadline`,
    `replica`.
    """

    def __init__(self, status: int, sentence: str, *, cause: str = "", **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.cause, self.headers = status, sentence, cause, headers

    @classmethod
    def late(cls) -> Refused:
        """The answer to a request whose deadline has passed."""
        return cls(504, "the deadline of the request has passed", cause="deadline")

    def response(self) -> Response:
        """As HTTP."""
        # A client's text may hold half a character, which no UTF-8 can.
        sentence = self.sentence.encode(errors="backslashreplace").decode()
        return JSONResponse({"error": sentence}, self.status, self.headers)


@dataclass(frozen=True)
class Asked:
    """A request: arrays by input name, how many rows they have, and which outputs it wants.

    `binary` has the names of the outputs, in the order asked for; True: as binary tensor. `priority` is
    that of its parameters, None: it names none.
    """

    feed: dict[str, np.ndarray]
    rows: int
    binary: dict[str, bool]
    id: str | None = None
    priority: object = None

    def parts(self, largest: int) -> list[tuple[dict[str, np.ndarray], int]]:
        """The request in parts of `largest` rows at most, each with its number of rows."""
        if self.rows <= largest:
            return [(self.feed, self.rows)]
        starts = range(0, self.rows, largest)
        return [
            (
                {name: array[at : at + largest] for name, array in self.feed.items()},
                min(largest, self.rows - at),
            )
            for at in starts
        ]


class Protocol:
    """Reads requests for one model and writes its responses; `bundle` is the content of bundle.json."""

    def __init__(self, bundle: Mapping[str, Any]) -> None:
        self.name: str = bundle["model"]
        self._inputs = {each["name"]: each for each in bundle["inputs"]}
        self._outputs = {each["name"]: each for each in bundle["outputs"]}
        self._batched: bool = bundle["batched"]
        self._platform: str = bundle["platform"]
        self._class_scores: str | None = bundle["class_scores"]

    def metadata(self) -> dict[str, Any]:
        """What the protocol tells of the model, and which output holds scores of classes."""
        fields = ("name", "datatype", "shape")
        inputs, outputs = (
            [{field: each[field] for field in fields} for each in tensors]
            for tensors in (self._inputs.values(), self._outputs.values())
        )
        for each in outputs:
            each["parameters"] = {"class_scores": each["name"] == self._class_scores}
        about = {"name": self.name, "versions": ["1"], "platform": self._platform}
        return {**about, "inputs": inputs, "outputs": outputs}

    async def read(self, body: bytearray, header_length: str | None) -> Asked:
        """The request in a body. Raises `Refused` with 400 for what does not fit the model.

        Much JSON is read in a thread, so that other requests go on while its numbers become arrays. It
        may stand before binary tensors, too.
        """
        length = len(body) if header_length is None else _json_bytes(body, header_length)
        try:
            if length > _LARGE_JSON_BYTES:
                return await asyncio.to_thread(self.parsed, body, header_length)
            return self.parsed(body, header_length)
        except RecursionError as error:  # what can just be read need not be what can be written
            raise Refused(400, "the request's JSON is nested too deeply") from error

    def parsed(self, body: bytes | bytearray, header_length: str | None) -> Asked:
        """The request in a body. Raises `Refused` with 400 for what does not fit the model."""
        header, rest = _split(body, header_length)
        try:
            message = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the request is no JSON: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("inputs"), list):
            raise Refused(400, "the request has no list `inputs`")
        feed: dict[str, np.ndarray] = {}
        for tensor in message["inputs"]:
            name = tensor.get("name") if isinstance(tensor, dict) else None
            if not isinstance(name, str) or name not in self._inputs:
                wanted = ", ".join(self._inputs)
                raise Refused(400, f"the model has no input {name!r}, its inputs are {wanted}")
            if name in feed:
                raise Refused(400, f"the input {name!r} is there twice")
            feed[name], rest = self._tensor(name, tensor, rest)
        missing = self._inputs.keys() - feed.keys()
        if missing:
            raise Refused(400, f"the input {min(missing)!r} is missing")
        if len(rest):
            raise Refused(400, f"{len(rest)} bytes follow the last input")
        rows = 1
        if self._batched:
            sizes = {name: len(array) for name, array in feed.items()}
            rows = next(iter(sizes.values()))
            if len(set(sizes.values())) > 1:
                raise Refused(400, f"the inputs have different numbers of rows: {sizes}")
        identity, priority = message.get("id"), _parameters(message).get("priority")
        identity = None if identity is None else str(identity)
        return Asked(feed, rows, dict(self._wanted(message)), identity, priority)

    def gives(self, rows: int, outputs: Mapping[str, np.ndarray]) -> bool:
        """Whether the model can have given these outputs for so many rows."""
        return outputs.keys() == self._outputs.keys() and all(
            array.dtype == TYPES[about["datatype"]]
            and len(array.shape) == len(about["shape"])
            and all(size in (-1, has) for has, size in zip(array.shape, about["shape"], strict=True))
            and (not self._batched or len(array) == rows)
            for array, about in ((outputs[name], about) for name, about in self._outputs.items())
        )

    async def write(
        self, asked: Asked, parts: Sequence[Mapping[str, np.ndarray]]
    ) -> tuple[bytes, dict[str, str]]:
        """As `written`; many numbers in JSON are written in a thread, so that other requests go on."""
        text = [name for name, binary in asked.binary.items() if not binary]
        if sum(part[name].size for part in parts for name in text) > _MANY_NUMBERS:
            return await asyncio.to_thread(self.written, asked, parts)
        return self.written(asked, parts)

    def written(
        self, asked: Asked, parts: Sequence[Mapping[str, np.ndarray]]
    ) -> tuple[bytes, dict[str, str]]:
        """Body and headers of the response, with the outputs in the encodings that were asked for.

        `parts` are the outputs of the request's parts.
        """
        described, binaries = [], []
        for name, binary in asked.binary.items():
            arrays = [part[name] for part in parts]
            array = np.ascontiguousarray(np.concatenate(arrays) if len(arrays) > 1 else arrays[0])
            tensor: dict[str, Any] = {
                "name": name,
                "datatype": _NAMES[array.dtype],
                "shape": list(array.shape),
            }
            if binary:
                tensor["parameters"] = {"binary_data_size": array.nbytes}
                described.append(json.dumps(tensor))
                binaries.append(array.tobytes())
            elif array.dtype == np.float16:
                raise Refused(400, f"JSON has no form for FP16: ask for {name!r} as binary tensor")
            else:
                described.append(f'{json.dumps(tensor)[:-1]}, "data": [{_text(array.ravel())}]}}')
        message = {"model_name": self.name, "model_version": "1"}
        if asked.id is not None:
            message["id"] = asked.id
        header = f'{json.dumps(message)[:-1]}, "outputs": [{", ".join(described)}]}}'.encode()
        if not binaries:
            return header, {"content-type": "application/json"}
        headers = {"content-type": "application/octet-stream", HEADER: str(len(header))}
        return b"".join([header, *binaries]), headers

    def _wanted(self, message: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        every = _parameters(message).get("binary_data_output") is True
        outputs = message.get("outputs")
        if outputs is None or outputs == []:
            yield from ((name, every) for name in self._outputs)
            return
        for output in outputs if isinstance(outputs, list) else [outputs]:
            name = output.get("name") if isinstance(output, dict) else None
            if not isinstance(name, str) or name not in self._outputs:
                wanted = ", ".join(self._outputs)
                raise Refused(400, f"the model has no output {name!r}, its outputs are {wanted}")
            parameters = _parameters(output)
            if "classification" in parameters or "shared_memory_region" in parameters:
                raise Refused(400, "this server has no extension for classification or shared memory")
            yield name, parameters.get("binary_data", every) is True

    def _tensor(
        self, name: str, tensor: Mapping[str, Any], rest: memoryview
    ) -> tuple[np.ndarray, memoryview]:
        """One input, and what follows it in the body."""
        wanted = self._inputs[name]
        if tensor.get("datatype") != wanted["datatype"]:
            given = tensor.get("datatype")
            raise Refused(400, f"the input {name!r} is {wanted['datatype']}, found {given!r}")
        shape = self._shape(name, tensor.get("shape"))
        dtype = TYPES[wanted["datatype"]]
        size = _parameters(tensor).get("binary_data_size")
        if size is not None:
            bytes_wanted = math.prod(shape) * dtype.itemsize
            if type(size) is not int or size != bytes_wanted or size > len(rest):
                given = f"binary_data_size {size} and {len(rest)} bytes in the body"
                raise Refused(400, f"the input {name!r} takes {bytes_wanted} bytes, found {given}")
            array = np.frombuffer(rest[:size], dtype).reshape(shape)
            rest = rest[size:]
        else:
            array = _numbers(name, tensor.get("data"), shape, dtype)
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise Refused(400, f"the input {name!r} has values that are infinite or NaN")
        if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            raise Refused(400, f"the input {name!r} has bytes that are neither 0 nor 1")
        return array, rest

    def _shape(self, name: str, shape: object) -> tuple[int, ...]:
        """A shape that the model takes."""
        wanted = self._inputs[name]
        sizes = shape if isinstance(shape, list) else []
        fits = len(sizes) == len(wanted["shape"]) and all(
            type(size) is int and least <= size <= most
            for size, least, most in zip(sizes, wanted["least"], wanted["most"], strict=True)
        )
        if not fits:
            varying = (
                f", -1 from {wanted['least']} to {wanted['most']}" if -1 in wanted["shape"] else ""
            )
            given = str(shape)[:100]
            raise Refused(
                400, f"the input {name!r} has the shape {wanted['shape']}{varying}, found {given}"
            )
        return tuple(sizes)


def seconds_of(shorter_ms: str | None, most_s: float) -> float:
    """Seconds that a request has: what x-deadline-ms asks for, `most_s` at most. Raises `Refused`."""
    if shorter_ms is None:
        return most_s
    try:
        seconds = float(shorter_ms) / 1000
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise Refused(400, f"x-deadline-ms wants milliseconds above 0, found {shorter_ms[:20]!r}")
    return min(seconds, most_s)


async def body_of(request: Request, most_bytes: int, timeout_s: float) -> bytearray:
    """The body of a request. Raises `Refused` where it is too large or too slow, or compressed."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise Refused(415, f"the body is compressed with {encoding[:20]!r}: send it as it is")
    announced = request.headers.get("content-length", "0")
    large = Refused(413, f"the body is larger than {most_bytes} bytes")
    length = whole(announced)
    if length is None or length > most_bytes:
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
    return body


def _split(body: bytes | bytearray, header_length: str | None) -> tuple[bytes, memoryview]:
    """The JSON of a request and the binary tensors behind it."""
    if header_length is None:
        return bytes(body), memoryview(b"")
    length = _json_bytes(body, header_length)
    return bytes(body[:length]), memoryview(body)[length:]


def _json_bytes(body: bytes | bytearray, header_length: str) -> int:
    """How many bytes of a body are JSON, where a header says so."""
    length = whole(header_length)
    if length is None or length > len(body):
        raise Refused(400, f"the header {HEADER} does not fit the body: {header_length[:20]!r}")
    return length


def whole(text: str) -> int | None:
    """The number that a header writes in digits; None for any other text, and for too many digits."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if plain else None


def _text(numbers: np.ndarray) -> str:
    """Numbers in JSON, without brackets. Raises `Refused` for those that JSON has no form for.

    In pieces: while json writes one, it holds Python's lock, and no other thread goes on.
    """
    pieces = (numbers[at : at + _MANY_NUMBERS] for at in range(0, len(numbers), _MANY_NUMBERS))
    try:
        return ", ".join(json.dumps(piece.tolist(), allow_nan=False)[1:-1] for piece in pieces)
    except ValueError as error:
        raise Refused(
            500, "an output is infinite or NaN, which JSON has no form for: ask for binary tensors"
        ) from error


def _parameters(part: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = part.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _numbers(name: str, data: object, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of numbers in JSON, flat or nested."""
    if not isinstance(data, list):
        raise Refused(400, f"the input {name!r} has neither `data` nor binary_data_size")
    count = math.prod(shape)
    try:
        arrays = [_array(piece, dtype) for piece in _pieces(data, count)]
        return np.concatenate(arrays).reshape(shape)
    except (ValueError, OverflowError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise Refused(400, f"the input {name!r} wants {count} numbers in `data`: {reason}") from error


def _pieces(data: list[Any], count: int) -> Iterator[list[Any]]:
    """A list of `count` numbers in pieces: NumPy holds Python's lock while it reads one."""
    while len(data) == 1 and isinstance(data[0], list):
        data = data[0]
    step = max(1, _MANY_READ * len(data) // max(1, count))
    return (data[at : at + step] for at in range(0, max(1, len(data)), step))


def _array(data: list[Any], dtype: np.dtype) -> np.ndarray:
    """Numbers as an array of a type that holds them. Raises ValueError and OverflowError."""
    numbers = np.asarray(data)
    kinds = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if numbers.size and numbers.dtype.kind not in kinds:
        raise ValueError("they are of another type")
    array = numbers.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(array, numbers):
        raise ValueError(f"some do not fit into {_NAMES[dtype]}")
    return array
