"""LiteRT, once TensorFlow Lite: `model.tflite`, for Android, iOS and small boards."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from optcli.errors import InputError, raised_as
from optcli.models.formats.model_files import require_mark

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter

FILE = "model.tflite"
# The fact that names inputs whose channels are last in the file, and first in the recipe.
CHANNELS_LAST = "channels_last_inputs"

_DELEGATE = "DELEGATE"
# Operators whose values are some of those of their first input.
_KEEP_VALUES = (
    *("BROADCAST_TO", "EXPAND_DIMS", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE"),
)
# What a file says of itself, behind its first four bytes.
_MARK = b"TFL3"


class LitertTensor(NamedTuple):
    """An input or output: its name and place in the file, and how integers stand for its values.

    `scale` is 0 where values are what they are. A size that varies is None.
    """

    name: str
    place: int
    dtype: str
    sizes: tuple[int | None, ...]
    scale: float
    zero_point: int


def open(folder: Path, threads: int = 1, *, delegate: bool = True) -> Interpreter:
    """The model, ready to run. `delegate`: XNNPACK computes what it can.

    Raises `InputError` where the file is damaged or has operators that this runtime lacks.
    """
    path = folder / FILE
    message, hint = "LiteRT cannot load the model", "build it again"
    require_mark(path, _MARK, message, hint)
    with raised_as(InputError, message, place=str(path), hint=hint):
        _model(path)  # the interpreter believes every offset in the file
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        interpreter = Interpreter(
            os.fspath(path),
            num_threads=threads,
            experimental_op_resolver_type=OpResolverType.AUTO if delegate else plain,
        )
        interpreter.allocate_tensors()
        tensors(interpreter), outside(interpreter)  # whose names may be damaged
        return interpreter


def tensors(interpreter: Interpreter) -> tuple[list[LitertTensor], list[LitertTensor]]:
    """Inputs and outputs in their order, named as the file's first signature does."""
    names: dict[int, str] = {}
    for key in list(interpreter.get_signature_list())[:1]:
        signature = interpreter.get_signature_runner(key)
        for details in (signature.get_input_details(), signature.get_output_details()):
            names |= {int(about["index"]): name for name, about in details.items()}
    both = (interpreter.get_input_details(), interpreter.get_output_details())
    inputs, outputs = ([_tensor(about, names) for about in details] for details in both)
    return inputs, outputs


def outside(interpreter: Interpreter) -> tuple[int, list[str]]:
    """In how many parts a delegate computes the network, and the operators that it leaves out.

    The interpreter lists operators and delegates, and not which took which: what lies between the
    inputs and the outputs of a delegate is its own.
    """
    nodes = interpreter._get_ops_details()
    makers = {
        int(out): each for each in nodes if each["op_name"] != _DELEGATE for out in each["outputs"]
    }
    taken: set[int] = set()
    delegates = [each for each in nodes if each["op_name"] == _DELEGATE]
    for each in delegates:
        given = {int(place) for place in each["inputs"]}
        waiting = [int(place) for place in each["outputs"]]
        while waiting:
            place = waiting.pop()
            maker = makers.get(place)
            if place in given or maker is None or maker["index"] in taken:
                continue
            taken.add(maker["index"])
            waiting += [int(before) for before in maker["inputs"]]
    left = [each["op_name"] for each in nodes if each["op_name"] != _DELEGATE]
    delegated = [each["op_name"] for each in nodes if each["index"] in taken]
    for name in delegated:
        left.remove(name)
    return len(delegates), left


def rename(folder: Path, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name the inputs and outputs of the file's one signature, in the order of its tensors."""
    import flatbuffers

    path = folder / FILE
    model = _model(path)
    (signature,) = model.signatureDefs
    graph = model.subgraphs[signature.subgraphIndex]
    for places, names, entries in (
        (graph.inputs, inputs, signature.inputs),
        (graph.outputs, outputs, signature.outputs),
    ):
        by_place = dict(zip(map(int, places), names, strict=True))
        for entry in entries:
            entry.name = by_place[int(entry.tensorIndex)].encode()
    builder = flatbuffers.Builder(path.stat().st_size)
    builder.Finish(model.Pack(builder), _MARK)
    path.write_bytes(bytes(builder.Output()))


def operator_counts(path: Path) -> dict[tuple[str, str], int]:
    """How often each operator occurs, by its name and the element type of what it gives."""
    from ai_edge_litert import schema_py_generated as schema

    types = {code: name.lower() for name, code in vars(schema.TensorType).items() if name.isupper()}
    counts: dict[tuple[str, str], int] = {}
    for graph, operators in _operators(path):
        for name, operator in operators:
            given = types.get(graph.tensors[operator.outputs[0]].type, "")
            counts[name, given] = counts.get((name, given), 0) + 1
    return counts


def divisors(path: Path) -> list[str]:
    """Names of what the operators give that compute a divisor."""
    names = []
    for graph, operators in _operators(path):
        makers = {int(place): maker for maker in operators for place in maker[1].outputs}
        for place in (int(each.inputs[1]) for name, each in operators if name == "DIV"):
            while place in makers and makers[place][0] in _KEEP_VALUES:
                place = int(makers[place][1].inputs[0])
            if place in makers:
                names.append(graph.tensors[place].name.decode(errors="replace"))
    return names


def _operators(path: Path) -> Iterator[tuple[Any, list[tuple[str, Any]]]]:
    """Each graph of the file, with its operators by name."""
    from ai_edge_litert import schema_py_generated as schema

    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if name.isupper()}
    model = _model(path)
    codes = []
    for code in model.operatorCodes or ():
        kind = max(code.builtinCode, code.deprecatedBuiltinCode)
        own = code.customCode and code.customCode.decode(errors="replace")
        codes.append(own or names.get(kind, str(kind)))
    for graph in model.subgraphs:
        yield graph, [(codes[each.opcodeIndex], each) for each in graph.operators or ()]


def precision(counts: Collection[tuple[str, str]]) -> str:
    """`int8` where operators give integers of 8 bits, `int8-a16` of 16; else `fp32`."""
    given = {kind for name, kind in counts if name not in ("QUANTIZE", "DEQUANTIZE")}
    if "int8" in given or "uint8" in given:
        return "int8"
    return "int8-a16" if "int16" in given else "fp32"


def _model(path: Path) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.ModelT.InitFromPackedBuf(bytearray(path.read_bytes()), 0)


def _tensor(about: dict[str, Any], names: dict[int, str]) -> LitertTensor:
    import numpy as np

    scale, zero_point = about["quantization"]
    index, sizes = int(about["index"]), about["shape_signature"]
    return LitertTensor(
        names.get(index, str(about["name"])),
        index,
        np.dtype(about["dtype"]).name,
        tuple(None if size < 0 else int(size) for size in sizes),
        float(scale),
        int(zero_point),
    )
