"""Reading the graph of an exported program (`models/model.json`) before torch does.

torch.export.load evaluates expressions and guards of the program as Python, writes a Python function
from the names in it and imports what the structure of its inputs names. So every text in it must be of
a form that can do nothing of the kind: what is not known to be harmless is a doubt.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from optcli.formats.scanning import Scan
from optcli.formats.torch_operators import only_computes

_OPERATORS = re.compile(
    r"torch\.ops\.(aten|prim|prims|quantized|quantized_decomposed|torchvision|torchao|mkldnn|onednn)"
    r"\.((?!__)\w+)(\.(?!__)\w+)?"
)
# Operators of a library that nobody here knows.
_OTHER = re.compile(r"torch\.ops\.(?!higher_order\.)([A-Za-z]\w*)\.\w+")
# Operators on graphs. Others of their kind call what a library or the file itself brings.
_ON_GRAPHS = re.compile(
    r"torch\.ops\.higher_order\.(cond|while_loop|map|map_impl|scan|associative_scan|out_dtype|strict_mode"
    r"|wrap_with_set_grad_enabled|wrap_with_autocast|hints_wrapper|flex_attention|invoke_subgraph"
    r"|auto_functionalized|auto_functionalized_v2|wrap|tag_activation_checkpoint|switch)"
)
# Not attrgetter, methodcaller and call, by which everything in Python can be reached.
_ON_SIZES = re.compile(
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_"
    r"|invert|lshift|rshift|getitem)|math\.[a-z]\w*|torch\.(sym_\w+|_sym_\w+)"
)
# Part of the code that torch writes: they stand in it without quotes.
_NAME = re.compile(r"[\w.]*")
_NAMES = frozenset({"name", "as_name", "forward_arg_names", "class_fqn"})
# Stand in quotes in the code that torch writes, or nowhere in it.
_PLAIN = re.compile(r"[\w.:/ +\-\[\]<>,|*@$!?&~^%]*")
_CODE = frozenset({"expr_str", "guards_code"})
_TREES = frozenset({"in_spec", "out_spec"})
_TARGETS = frozenset({"target", "as_operator"})
_TEXTS = frozenset({"as_string", "as_strings"})
# What inputs and outputs may be made of. Others name a class or a function to import.
_CONTAINERS = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})

# fmt: off
_FUNCTIONS = frozenset({
    "Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "Float", "FloatPow",
    "FloatTrueDiv", "FloorDiv", "FloorToInt", "Ge", "Gt", "Identity", "IntTrueDiv", "Integer",
    "IsNonOverlappingAndDenseIndicator", "LShift", "Le", "Lt", "Max", "Min", "Mod",
    "ModularIndexing", "Mul", "Ne", "Not", "Or", "Pow", "PowByNatural", "PythonMod", "RShift",
    "Rational", "RoundDecimal", "RoundToInt", "Symbol", "ToFloat", "TruncToFloat", "TruncToInt",
    "Where", "ceiling", "floor", "int", "max", "min", "not", "sqrt",
    "Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan",
    "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "ExprCondPair", "ITE", "Infinity", "Piecewise",
})
# fmt: on
_METHODS = frozenset({"size", "stride", "storage_offset", "dim", "ndim", "shape", "inf", "isnan"})
_SYNTAX = (
    *(
        ast.Expression,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.Constant,
        ast.Name,
        ast.Call,
    ),
    *(ast.keyword, ast.Subscript, ast.Attribute, ast.Load, ast.operator, ast.unaryop, ast.boolop),
    *(ast.cmpop, ast.Tuple),
)


def read(text: str, scan: Scan) -> None:
    """Note the namespaces of a program's operators, and what could do more than compute.

    Raises `ValueError` for what is no JSON.
    """
    _check(json.loads(text), "", scan, quoted=False)


def _check(value: Any, key: str, scan: Scan, *, quoted: bool) -> None:
    """Check a value and all below it. `quoted` says that texts stand in the code in quotes."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not _PLAIN.fullmatch(name):
                scan.doubt(f"it names something {_short(name)}")
            if name == "metadata" and key in ("nodes", "graph_module") and _is_text(item):
                continue  # where each line came from: shown to people, never run
            inside = (key, name) == ("nodes", "inputs") or (quoted and name != "graph")
            _check(item, name, scan, quoted=inside)
    elif isinstance(value, list):
        for item in value:
            _check(item, key, scan, quoted=quoted)
    elif isinstance(value, str):
        _check_text(value, key, scan, quoted=quoted)


def _is_text(metadata: Any) -> bool:
    return isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())


def _check_text(value: str, key: str, scan: Scan, *, quoted: bool) -> None:
    if key in _TARGETS:
        _check_target(value, scan)
    elif key in _CODE:
        if not _is_arithmetic(value):
            scan.doubt(f"it holds the code {_short(value)}")
    elif key in _TREES:
        if not _is_plain_tree(value):
            scan.doubt(f"the structure of its inputs or outputs is odd: {_short(value)}")
    elif key in _NAMES:
        if not _NAME.fullmatch(value):
            scan.doubt(f"it gives a value the name {_short(value)}")
    elif not (key in _TEXTS and quoted) and not _PLAIN.fullmatch(value):
        scan.doubt(f"its {key} is {_short(value)}")


def _check_target(value: str, scan: Scan) -> None:
    operator = _OPERATORS.fullmatch(value)
    if operator:
        if not only_computes(operator[1], operator[2]):
            scan.doubt(f"its graph calls {_short(value)}")
        scan.namespaces.add(operator[1])
    elif not _ON_GRAPHS.fullmatch(value) and not _ON_SIZES.fullmatch(value):
        scan.doubt(f"its graph calls {_short(value)}")
        other = _OTHER.match(value)
        if other:
            scan.unknown.add(other[1])


def _is_plain_tree(text: str) -> bool:
    """Inputs and outputs are nested tuples, lists and dictionaries by names or whole numbers."""
    if not text:  # of inner graphs in older versions
        return True
    try:
        version, tree = json.loads(text)
        return version == 1 and _is_tree(tree)
    except (ValueError, TypeError):
        return False


def _is_tree(tree: Any) -> bool:
    if not isinstance(tree, dict) or set(tree) != {"type", "context", "children_spec"}:
        return False
    if not isinstance(tree["children_spec"], list):
        return False
    if tree["type"] is None:
        return tree["context"] is None and not tree["children_spec"]
    if tree["type"] not in _CONTAINERS or not isinstance(tree["context"], str):
        return False
    keys = json.loads(tree["context"])
    plain = keys is None or (
        isinstance(keys, list)
        and all(isinstance(key, int) or (isinstance(key, str) and _NAME.fullmatch(key)) for key in keys)
    )
    return plain and all(_is_tree(child) for child in tree["children_spec"])


def _is_arithmetic(expression: str) -> bool:
    """Whether an expression only computes with sizes: no other call, attribute or name with `__`."""
    try:
        nodes = list(ast.walk(ast.parse(expression.strip(), mode="eval")))
    except (SyntaxError, ValueError, MemoryError):
        return False
    return all(isinstance(node, _SYNTAX) and _is_plain(node) for node in nodes)


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
            return function.id in _FUNCTIONS
        return isinstance(function, ast.Attribute) and function.attr in _METHODS
    if isinstance(node, ast.Attribute):
        return node.attr in _METHODS
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _NAME.fullmatch(node.value) is not None and "__" not in node.value
    return not isinstance(node, ast.Constant) or node.value is None or _is_number(node.value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _short(value: str) -> str:
    return repr(value if len(value) <= 80 else value[:77] + "...")
