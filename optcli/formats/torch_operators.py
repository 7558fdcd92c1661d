"""Which of torch's operators only compute: asked of the operators' own schemas.

An operator that touches files, a process or Python says where by a text: a file name, a worker, a name
in a registry. So an operator is taken to compute where its schema takes no text, or only texts whose
parameter is known to choose among ways of computing (`rounding_mode` of `aten::div`).
"""

from __future__ import annotations

import functools

# The operators of Python calls and of other machines. The rest of `prim` is the language itself.
_REACHING = frozenset(
    {
        *("prim::PythonOp", "prim::IgnoredPythonOp", "prim::rpc_async", "prim::rpc_remote"),
        *("prim::rpc_sync", "aten::save", "aten::from_file"),
    }
)
# fmt: off
_CHOICES = frozenset({
    "UPLO", "activation", "algorithm", "api_name", "approximate", "args", "assert_msg", "attr",
    "binary_attr", "binary_post_op", "cls", "device_type", "driver", "equation", "indexing",
    "interpolation", "layout", "mapping_type", "message", "mode", "msg", "norm", "ord", "p",
    "pad_mode", "padding", "padding_side", "post_op_algorithm", "post_op_name", "reduce",
    "rounding_mode", "side", "unary_algorithm", "unary_attr", "unary_post_op",
    "unary_post_op_algorithm", "zero_point_domain",
})
# Names of dimensions: older torch has overloads of `aten::mean` and others that take them (2.11 does,
# 2.15 does not).
_DIMENSIONS = frozenset({
    "dim", "dim0", "dim1", "dim2", "dims", "end_dim", "names", "order", "out_dim", "outdim",
    "start_dim",
})
# Parameters of operators on texts, lists and dictionaries of TorchScript: they give values alone.
_VALUES = frozenset({
    "a", "b", "chars", "default_value", "dict", "el", "elem", "fillchar", "idx", "ind", "input",
    "inputs", "item", "key", "l", "new", "old", "s", "self", "separator", "string", "substr",
    "t", "to_add", "type", "v", "value", "values",
})
# fmt: on


@functools.cache
def only_computes(namespace: str, name: str) -> bool:
    """Whether every operator `namespace::name` that torch has here takes no text that could reach out.

    True for a name that torch does not have: nothing can be called by it. Imports torch.
    """
    import torch

    qualified = f"{namespace}::{name}"
    if qualified in _REACHING:
        return False
    if namespace == "profiler":  # they take the name of what is timed
        return True
    harmless = _CHOICES | _VALUES | (_DIMENSIONS if namespace == "aten" else frozenset())
    for schema in torch._C._jit_get_schemas_for_operator(qualified):
        for argument in schema.arguments:
            if "str" in str(argument.type) and argument.name not in harmless:
                return False
    return True
