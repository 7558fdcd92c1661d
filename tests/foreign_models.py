"""ONNX files that no exporter of ours wrote, from opset 7 to 21: what people bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from optcli.settings import TensorSpec

Values = Mapping[str, "tuple[int, ...] | np.ndarray"]

# The version of the file format that went with an opset when it was new; 8 since opset 15.
_IR_VERSIONS = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7}
IMAGE = {"name": "image", "shape": ("batch", 3, 32, 32)}
_SIZES = {"min": 16, "opt": 32, "max": 48}


@dataclass(frozen=True)
class Foreign:
    """A file: the model, the inputs that a recipe gives it, and what it is for."""

    model: Any
    inputs: tuple[TensorSpec, ...]
    external: bool = False

    def save(self, folder: Path) -> Path:
        """Write `net.onnx` into the folder, its weights beside it where they are external."""
        path = folder / "net.onnx"
        if self.external:
            onnx.save(self.model, path, save_as_external_data=True, location="weights.bin",
                      size_threshold=0)  # fmt: skip
        else:
            onnx.save(self.model, path)
        return path


@dataclass
class _File:
    """A model as ONNX's own text says it; weights are random where only their shape is given."""

    text: str
    weights: Values = field(default_factory=dict)
    opset: int = 13
    domains: Sequence[tuple[str, int]] = ()
    inputs: Sequence[dict[str, Any]] = (IMAGE,)
    checked: bool = True

    def model(self) -> Any:
        generator = np.random.default_rng(0)
        graph = parser.parse_graph(self.text)
        tensors = {
            name: values if isinstance(values, np.ndarray) else _random(generator, values)
            for name, values in self.weights.items()
        }
        graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in tensors.items())
        ir_version = _IR_VERSIONS.get(self.opset, 8 if self.opset < 19 else 10)
        if ir_version < 4:  # weights that are not inputs came with version 4
            graph.input.extend(
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape
                )
                for name, values in tensors.items()
            )
        imports = [
            helper.make_opsetid("", self.opset),
            *(helper.make_opsetid(*d) for d in self.domains),
        ]
        model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
        if self.checked:
            onnx.checker.check_model(model)
        return model


def _random(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 100
    return (generator.standard_normal(shape) * (2 / fan_in) ** 0.5).astype(np.float32)


def _made(file: _File, external: bool = False) -> Foreign:
    return Foreign(file.model(), tuple(TensorSpec(**each) for each in file.inputs), external)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def attributes(opset: int) -> Foreign:
    """What were attributes and are inputs today; Softmax over all that follows its axis."""
    scales = np.array([1, 1, 2, 2], np.float32)
    up = (
        'Upsample<mode="linear", scales=[1.0,1.0,2.0,2.0]>(b)'
        if opset < 9
        else 'Upsample<mode="linear">(b, scales)'
        if opset == 9
        else 'Resize<mode="linear">(b, scales)'
    )
    weights: dict[str, Any] = {"w1": (16, 3, 3, 3), "b1": (16,), "s": _ones(16), "o": (16,), "m": (16,),
                               "v": _ones(16), "w2": (8, 16, 3, 3)}  # fmt: skip
    if opset > 8:
        weights["scales"] = scales
    return _made(
        _File(
            f"""old (float[N,3,32,32] image) => (float[N,4,32,32] result) {{
        p = Pad<mode="reflect", pads=[0,0,1,1,0,0,1,1]>(image)
        c = Conv<kernel_shape=[3,3], strides=[2,2]>(p, w1, b1)
        n = BatchNormalization<epsilon=1e-5>(c, s, o, m, v)
        d = Dropout<ratio=0.2>(n)
        a = Clip<min=0.0, max=6.0>(d)
        b = Conv<pads=[1,1,1,1]>(a, w2)
        u = {up}
        l, r = Split<axis=1, split=[4,4]>(u)
        t = Sum(l, r)
        h = Slice<axes=[2], starts=[0], ends=[31]>(t)
        q = Slice<axes=[2], starts=[-1], ends=[9223372036854775807]>(t)
        j = Concat<axis=2>(h, q)
        result = Softmax<axis=1>(j)
    }}""",
            weights,
            opset,
        )
    )


def fixed_batch() -> Foreign:
    """Batch 1 in every shape, the one of a Reshape too."""
    return _made(_File("""fixed (float[1,3,32,32] image) => (float[1,10] result) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        r = Relu(a)
        p = MaxPool<kernel_shape=[4,4], strides=[4,4]>(r)
        f = Reshape(p, shape)
        result = Gemm(f, w2, b2)
    }""", {"w1": (8, 3, 3, 3), "b1": (8,), "shape": np.array([1, 128]), "w2": (128, 10), "b2": (10,)},
        11, inputs=[{"name": "image", "shape": (1, 3, 32, 32)}]))  # fmt: skip


def unnamed_axes() -> Foreign:
    """Batch, height and width may be anything, and have no names; nothing is said of the output."""
    made = _made(_File("""free (float[N,3,H,W] image) => (float[N,10] result) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        r = Relu(a)
        b = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(r, w2, b2)
        g = GlobalAveragePool(b)
        f = Flatten(g)
        result = MatMul(f, w3)
    }""", {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (24, 16, 3, 3), "b2": (24,), "w3": (24, 10)}, 12,
        inputs=[{"name": "image", "shape": ("batch", 3, "height", "width"),
                 "ranges": {"height": _SIZES, "width": _SIZES}}],
        ))  # fmt: skip
    for dim in made.model.graph.input[0].type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    made.model.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def half(opset: int = 13) -> Foreign:
    """Everything in fp16, but the Softmax, as mixed-precision training leaves it."""
    half_of = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "w3": (16, 10)}
    generator = np.random.default_rng(0)
    weights = {name: _random(generator, shape).astype(np.float16) for name, shape in half_of.items()}
    return _made(_File("""half (float16[N,3,32,32] image) => (float[N,10] result) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        r = Relu(a)
        c = Conv<pads=[1,1,1,1]>(r, w2)
        s = Add(c, r)
        g = GlobalAveragePool(s)
        f = Flatten(g)
        l = MatMul(f, w3)
        x = Cast<to=1>(l)
        result = Softmax<axis=-1>(x)
    }""", weights, opset, inputs=[{**IMAGE, "dtype": "float16"}]))  # fmt: skip


def bytes_nhwc() -> Foreign:
    """Decoded images as they are: bytes, channels last; normalized inside."""
    mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
    return _made(_File("""bytes (uint8[N,32,32,3] pixels) => (float[N,10] scores, int64[N] label) {
        x = Cast<to=1>(pixels)
        t = Transpose<perm=[0,3,1,2]>(x)
        d = Div(t, k)
        z = Sub(d, mean)
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(z, w1, b1)
        r = Relu(a)
        g = GlobalAveragePool(r)
        f = Flatten(g)
        scores = Gemm<transB=1>(f, w2, b2)
        label = ArgMax<axis=1, keepdims=0>(scores)
    }""", {"k": np.array(255, np.float32), "mean": mean, "w1": (16, 3, 3, 3), "b1": (16,),
           "w2": (10, 16), "b2": (10,)}, 15,
        inputs=[{"name": "pixels", "dtype": "uint8", "shape": ("batch", 32, 32, 3)}]))  # fmt: skip


_HEADS = """
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        r = Relu(a)
        b = Conv<pads=[1,1,1,1], strides=[2,2]>(r, w2, b2)
        e = LeakyRelu<alpha=0.1>(b)
        h1 = Conv(r, w3, b3)
        h2 = Conv(e, w4, b4)
        f1 = Reshape(h1, flat)
        f2 = Reshape(h2, flat)
        all = Concat<axis=2>(f1, f2)
        rows = Transpose<perm=[0,2,1]>(all)
        xywh = Slice(rows, zero, four, two)
        logits = Slice(rows, four, end, two)
        boxes = Sigmoid(xywh)
        scores = Sigmoid(logits)
"""
_HEAD_WEIGHTS: dict[str, Any] = {
    "w1": (16, 3, 3, 3), "b1": (16,), "w2": (24, 16, 3, 3), "b2": (24,),
    "w3": (9, 16, 1, 1), "b3": (9,), "w4": (9, 24, 1, 1), "b4": (9,),
    "flat": np.array([0, 9, -1]), "zero": np.array([0]), "four": np.array([4]), "two": np.array([2]),
    "end": np.array([9]),
}  # fmt: skip


def detector() -> Foreign:
    """Two scales, decoded boxes and scores; the number of anchors is fixed."""
    return _made(
        _File(
            f"""ssd (float[N,3,32,32] image)
        => (float[N,320,4] boxes, float[N,320,5] scores) {{{_HEADS}}}""",
            _HEAD_WEIGHTS,
            11,
        )
    )


def detector_with_nms() -> Foreign:
    """As many rows as there are boxes: how many depends on the image."""
    weights = {**_HEAD_WEIGHTS, "most": np.array([5]), "iou": np.array([0.5], np.float32),
               "least": np.array([0.5], np.float32), "col": np.array([0, 2])}  # fmt: skip
    return _made(_File(f"""nms (float[N,3,32,32] image)
        => (float[K,4] kept, int64[K,3] indices) {{{_HEADS}
        turned = Transpose<perm=[0,2,1]>(scores)
        indices = NonMaxSuppression(boxes, turned, most, iou, least)
        where = Gather<axis=1>(indices, col)
        kept = GatherND(boxes, where)
    }}""", weights, 12))  # fmt: skip


def transposed(opset: int = 13) -> Foreign:
    """A segmenter: transposed convolutions, one grouped, one with output padding; a class per pixel."""
    return _made(_File("""seg (float[N,3,32,32] image)
        => (float[N,6,32,32] logits, int64[N,1,32,32] classes) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        r = Relu(a)
        b = Conv<pads=[1,1,1,1], strides=[2,2]>(r, w2, b2)
        s = Relu(b)
        u = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1], group=4>(s, w3, b3)
        v = Relu(u)
        j = Concat<axis=1>(v, r)
        c = Conv<dilations=[2,2], pads=[2,2,2,2]>(j, w4, b4)
        logits = ConvTranspose<kernel_shape=[2,2], strides=[2,2]>(c, w5)
        classes = ArgMax<axis=1>(logits)
    }""", {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (24, 16, 3, 3), "b2": (24,), "w3": (24, 4, 3, 3),
           "b3": (16,), "w4": (16, 32, 3, 3), "b4": (16,), "w5": (16, 6, 2, 2)}, opset))  # fmt: skip


def several() -> Foreign:
    """An image, indices and a mask in; an image, a vector and one number out."""
    return _made(_File("""several (float[N,3,32,32] image, int64[N,4] tokens, bool[N,4] mask)
        => (float[N,8,16,16] map, float[N,8] joined, float mean) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        map = Relu(a)
        e = Gather(table, tokens)
        f = Cast<to=1>(mask)
        g = Unsqueeze(f, last)
        h = Mul(e, g)
        i = ReduceSum<keepdims=0>(h, one)
        k = MatMul(i, w2)
        p = GlobalAveragePool(map)
        q = Flatten(p)
        joined = Add(q, k)
        mean = ReduceMean<keepdims=0>(joined)
    }""", {"w1": (8, 3, 3, 3), "b1": (8,), "table": (2, 16), "last": np.array([2]),
           "one": np.array([1]), "w2": (16, 8)}, 13,
        inputs=[IMAGE, {"name": "tokens", "dtype": "int64", "shape": ("batch", 4)},
                {"name": "mask", "dtype": "bool", "shape": ("batch", 4)}]))  # fmt: skip


def branches() -> Foreign:
    """If and Loop, with weights inside."""
    return _made(_File("""flow (float[N,3,32,32] image) => (float[N,8,16,16] result) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        m = ReduceMean<keepdims=0>(a)
        yes = Greater(m, limit)
        r = If(yes) <
            then_branch = yes_graph () => (float[N,8,16,16] y) { y = Relu(a) },
            else_branch = no_graph () => (float[N,8,16,16] n) { n = LeakyRelu<alpha=0.1>(a) }>
        go = Constant<value = bool {1}>()
        result = Loop(times, go, r) <body = step (int64 i, bool c, float[N,8,16,16] x)
            => (bool c2, float[N,8,16,16] x2) {
                c2 = Identity(c)
                z = Conv<pads=[1,1,1,1]>(x, w2)
                x2 = Add(z, x)
            }>
    }""", {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "limit": np.array(0, np.float32),
           "times": np.array(3)}, 13))  # fmt: skip


def untidy() -> Foreign:
    """Names twice or not at all, weights that nobody reads, notes, names with slashes and colons."""
    made = _made(_File("""untidy (float[N,3,32,32] image_0)
        => (float[N,10] identity_0, float[N,8] mid) {
        k = Constant<value = float[1] {0.5}>()
        x = Mul(image_0, k)
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w1, b1)
        r = Relu(a)
        g = GlobalAveragePool(r)
        mid = Flatten(g)
        l = MatMul(mid, w2)
        dead = Exp(l)
        identity_0 = Identity(l)
    }""", {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 10), "nobody": (100, 100)}, 10,
        inputs=[{**IMAGE, "name": "serving/image:0"}]))  # fmt: skip
    graph = made.model.graph
    new = {"image_0": "serving/image:0", "identity_0": "StatefulPartitionedCall/Identity:0"}
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output):
        value.name = new.get(value.name, value.name)
    for index, node in enumerate(graph.node):
        node.name = "" if index % 2 else "same/name"
    made.model.metadata_props.add(key="classes", value="{0: 'cat', 1: 'ümlaut'}")
    made.model.producer_name, made.model.doc_string = "converter", "a note"
    onnx.checker.check_model(made.model)
    return made


def constants() -> Foreign:
    """Weights as Constant nodes, used twice, as some converters leave them."""
    made = _made(_File("""constants (float[N,3,32,32] image) => (float[N,10] result) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        r = Relu(a)
        c = Conv<pads=[1,1,1,1]>(r, w2, b1)
        d = Conv<pads=[1,1,1,1]>(c, w2, b1)
        g = ReduceMean<axes=[2,3], keepdims=0>(d)
        result = MatMul(g, w3)
    }""", {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "w3": (16, 10)}, 9))  # fmt: skip
    graph = made.model.graph
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    nodes += graph.node
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(made.model)
    return made


def scaled_by_ml() -> Foreign:
    """Opset 7 beside the operators of classical machine learning."""
    return _made(_File("""ml (float[N,12] features) => (float[N,3] result) {
        s = ai.onnx.ml.Scaler<offset=[0.5], scale=[2.0]>(features)
        h = Gemm(s, w1, b1)
        r = Relu(h)
        result = Gemm(r, w2, b2)
    }""", {"w1": (12, 16), "b1": (16,), "w2": (16, 3), "b2": (3,)}, 7, [("ai.onnx.ml", 1)],
        inputs=[{"name": "features", "shape": ("batch", 12)}]))  # fmt: skip


def fused() -> Foreign:
    """What ONNX Runtime's optimizer leaves: operators of its own."""
    return _made(_File("""fused (float[N,3,32,32] image) => (float[N,10] result) {
        a = com.microsoft.FusedConv<pads=[1,1,1,1], strides=[2,2], activation="Relu">(image, w1, b1)
        c = Conv<pads=[1,1,1,1]>(a, w2, b1)
        d = com.microsoft.Gelu(c)
        g = GlobalAveragePool(d)
        f = Flatten(g)
        result = com.microsoft.FusedMatMul<alpha=0.5>(f, w3)
    }""", {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "w3": (16, 10)}, 14,
        [("com.microsoft", 1)]))  # fmt: skip


def quantized() -> Foreign:
    """Quantized by somebody else, as Q/DQ pairs with weights in int8."""
    generator = np.random.default_rng(0)
    integers = generator.integers(-127, 128, (16, 3, 3, 3)).astype(np.int8)
    one = lambda value, kind: np.array(value, kind)  # noqa: E731
    return _made(_File("""qdq (float[N,3,32,32] image) => (float[N,10] result) {
        q = QuantizeLinear(image, s1, z1)
        d = DequantizeLinear(q, s1, z1)
        w = DequantizeLinear<axis=0>(wi, s2, z2)
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(d, w)
        r = Relu(a)
        q2 = QuantizeLinear(r, s1, z1)
        d2 = DequantizeLinear(q2, s1, z1)
        g = GlobalAveragePool(d2)
        f = Flatten(g)
        result = MatMul(f, w3)
    }""", {"s1": one(0.05, np.float32), "z1": one(128, np.uint8), "wi": integers,
           "s2": np.full(16, 0.003, np.float32), "z2": np.zeros(16, np.int8),
           "w3": (16, 10)}))  # fmt: skip


def normalized() -> Foreign:
    """Norms, a recurrent layer and attention on what convolutions see, as text readers have."""
    weights: dict[str, Any] = {
        "w1": (16, 3, 3, 3), "b1": (16,), "s": _ones(16), "o": (16,), "ls": _ones(16), "lo": (16,),
        "rows": np.array([0, 16, -1]), "W": (1, 64, 16), "R": (1, 64, 16), "B": (1, 128),
        "one": np.array([1]), "w3": (16, 10)}  # fmt: skip
    return _made(_File("""reader (float[N,3,32,32] image) => (float[N,T,10] result) {
        a = Conv<pads=[1,1,1,1], strides=[4,4]>(image, w1, b1)
        i = InstanceNormalization(a, s, o)
        r = HardSwish(i)
        f = Reshape(r, rows)
        t = Transpose<perm=[2,0,1]>(f)
        n = LayerNormalization<axis=-1>(t, ls, lo)
        l, h, c = LSTM<hidden_size=16>(n, W, R, B)
        y = Squeeze(l, one)
        q = Transpose<perm=[1,0,2]>(y)
        k = Transpose<perm=[0,2,1]>(q)
        p = MatMul(q, k)
        m = Softmax(p)
        v = MatMul(m, q)
        result = MatMul(v, w3)
    }""", weights, 18))  # fmt: skip


def newest() -> Foreign:
    """Opset 21, split and reduced by inputs, GroupNormalization."""
    return _made(_File("""new (float[N,3,32,32] image) => (float[N,10] result) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(image, w1, b1)
        n = GroupNormalization<num_groups=4>(a, s, o)
        g = Gelu(n)
        l, r = Split<axis=1, num_outputs=2>(g)
        x = Mul(l, r)
        p = ReduceMean<keepdims=0>(x, axes)
        result = MatMul(p, w3)
    }""", {"w1": (16, 3, 3, 3), "b1": (16,), "s": _ones(16), "o": (16,), "axes": np.array([2, 3]),
           "w3": (8, 10)}, 21))  # fmt: skip


def external_weights() -> Foreign:
    """Weights in a file beside the model."""
    made = transposed(17)
    return Foreign(made.model, made.inputs, external=True)


FILES: dict[str, Callable[[], Foreign]] = {
    "attributes-7": lambda: attributes(7),
    "attributes-8": lambda: attributes(8),
    "attributes-9": lambda: attributes(9),
    "fixed-batch": fixed_batch,
    "unnamed-axes": unnamed_axes,
    "half": half,
    "half-9": lambda: half(9),
    "bytes-nhwc": bytes_nhwc,
    "detector": detector,
    "detector-nms": detector_with_nms,
    "transposed-7": lambda: transposed(7),
    "transposed-13": transposed,
    "several": several,
    "branches": branches,
    "untidy": untidy,
    "constants": constants,
    "ml-7": scaled_by_ml,
    "fused": fused,
    "quantized": quantized,
    "reader-18": normalized,
    "newest-21": newest,
    "external": external_weights,
}
