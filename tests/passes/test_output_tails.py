"""What of a network stays in floating point: values that meet behind its last layers, not others."""

import pytest

from optcli.passes._quantization.output_tails import GraphOperator, joining_tail

SHAPES = {"w": (32, 16, 3, 3), "bins": (1, 16, 1, 1), "corners": (4, 4), "flat": (3,), "vector": (64,)}


def kept(*lines):
    """The names in the output tail of `out out = kind in in`; an operator is called as its output."""
    operators = []
    for line in lines:
        outputs, _, call = line.partition(" = ")
        kind, *inputs = call.split()
        names = outputs.split()
        operators.append(GraphOperator(names[0], kind, tuple(inputs), tuple(names)))
    return " ".join(joining_tail(operators, ["image"], SHAPES))


# The network, what stays in floating point.
NETWORKS = {
    "one convolution, boxes and scores joined": (
        ["c = Conv image w", "d = Reshape c flat", "p s = Split d", "q = Sigmoid p", "b = Mul q w",
         "t = Sigmoid s", "out = Concat b t"],
        "d p q b t out",
    ),
    "two convolutions, scores first, rows last": (
        ["x = Conv image w", "b = Conv x w", "s = Conv x w", "t = Sigmoid s", "j = Concat t b",
         "out = Transpose j"],
        "t j out",
    ),
    "several scales, two levels of Concat": (
        ["x = Conv image w", "y = Conv x w", "xb = Conv x w", "xs = Conv x w", "yb = Conv y w",
         "ys = Conv y w", "xj = Concat xb xs", "yj = Concat yb ys", "xr = Reshape xj flat",
         "yr = Reshape yj flat", "out = Concat xr yr"],
        "xj yj xr yr out",
    ),
    "a distribution over bins": (
        ["c = Conv image w", "d = Reshape c flat", "e = Transpose d", "f = Softmax e",
         "g = Transpose f", "h = Conv g w", "i = Reshape h flat", "l = Slice i", "r = Slice i",
         "a = Sub w l", "b = Add w r", "j = Concat a b", "out = Mul j w"],
        "d e f g h i l r a b j out",
    ),
    "biases that are added, and a grid": (
        ["c = Conv image w", "d = Add c vector", "e = Add d w", "s = Conv image w", "t = Add s vector",
         "out = Concat e t"],
        "e out",
    ),
    "a sum of two layers": (["c = Conv image w", "d = Conv image w", "out = Add c d"], "out"),
    "a grid and a conversion of boxes": (
        ["c = Conv image w", "p s = Split c", "e = Exp p", "b = Add e w", "j = Concat b s",
         "out = MatMul j corners"],
        "p e b j out",
    ),
    "the class with the largest score, rows by their scores": (
        ["b = Conv image w", "s = Conv image w", "t = Sigmoid s", "v i = TopK t flat",
         "out = GatherElements b i"],
        "t v out",
    ),
    "a mask of prototypes": (
        ["c = Conv image w", "p = Conv image w", "m = MatMul c p", "out = Sigmoid m"], "m out"
    ),
    "a sum behind the last layers": (
        ["a = Conv image w", "b = Conv a w", "c = Add a b", "out = Relu c"], "c out"
    ),
    "Torch's names": (
        ["a = conv2d image w vector", "b = linear image w vector", "c = sigmoid b", "d = cat a c",
         "out = permute d"],
        "c d out",
    ),
    "PReLU and a weight that is computed from constants": (
        ["v = Transpose w", "c = Conv image v", "d = PRelu c w", "out = Concat c d"], "d out"
    ),
    "boxes that features are cropped by": (
        ["f = Conv image w", "c = Conv f w", "b = Add c w", "s = Conv f w", "j = Concat b s",
         "k = NonMaxSuppression j s", "r = Gather j k", "n = Equal r w", "t = NonZero n",
         "p = RoiAlign f r", "q = ScatterElements p t w", "out = Gemm q w"],
        "b j k r n",
    ),
    # Nothing is kept of these.
    "a classifier with a shortcut": (
        ["a = Conv image w", "b = Conv a w", "c = Add a b", "d = GlobalAveragePool c",
         "out = Gemm d w vector"],
        "",
    ),
    "a classifier with probabilities": (["a = Gemm image w vector", "out = Softmax a"], ""),
    "segmentation at the size of the image": (
        ["a = Conv image w", "s = Shape image", "h = Slice s", "z = Concat h h s", "b = Resize a z",
         "out = ArgMax b"],
        "",
    ),
    "swish, written out": (["a = Conv image w", "b = Sigmoid a", "out = Mul a b"], ""),
    "GELU by tanh, written out": (
        ["a = Conv image w", "b = Pow a flat", "c = Mul b flat", "d = Add a c", "e = Tanh d",
         "f = Add e flat", "g = Mul a f", "out = Mul g flat"],
        "",
    ),
    "what is joined goes through a layer": (
        ["a = Conv image w", "b = Conv image w", "c = Concat a b", "out = Conv c w"], ""
    ),
    "no layer that takes shares alone is one, but attention's is": (
        ["q = MatMul image w", "k = MatMul image w", "a = MatMul q k", "s = Softmax a",
         "v = MatMul image w", "x = MatMul s v", "out = MatMul x w"],
        "",
    ),
    "a value joined with itself": (["a = Conv image w", "out = Mul a a"], ""),
    "places of tokens, from the input": (
        ["a = CumSum image", "b = Mul a image", "c = Gather w b", "out = Gemm c w"], ""
    ),
    "no layer": (["a = Sigmoid image", "out = Concat a image"], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_what_joins_behind_the_last_layers_stays_in_floating_point(name):
    lines, wanted = NETWORKS[name]
    assert kept(*lines) == wanted
