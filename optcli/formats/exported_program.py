"""Reading the graph of an exported program (`models/model.json`) before torch does.

torch.export.load evaluates expressions and guards of the program as Python, writes a Python function
from the names in it and imports what the structure of its inputs names. So every text in it must be of
a form that can do nothing of the kind: what is not known to be harmless is a doubt.
"""

from __future__ import annotations

import json
import re
from typing import Any

from optcli.formats import exported_expressions
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
    r"|invert|lshift|rshift|getitem)"
    r"|math\.(a?(sin|cos|tan)h?|ceil|exp|fabs|floor|fmod|log(2|10|1p)?|pow|sqrt|trunc)"
    r"|torch\.(sym_\w+|_sym_\w+)"
)
# Part of the code that torch writes: they stand in it without quotes.
_NAME = re.compile(r"\w*", re.ASCII)
_NAMES = frozenset({"name", "as_name", "forward_arg_names"})
_KEY = re.compile(r"[\w.]*", re.ASCII)
# Stand in quotes in the code that torch writes, or nowhere in it.
_PLAIN = re.compile(r"[\w.:/ +\-\[\]<>,|*@$!?&~^%]*")
# Arguments of operators, such as messages: compilers put them into C++ with quotes around them.
_QUOTED = re.compile(r"[ !#-\[\]-~]*")
# A part of a path that leads from a network to Python's own attributes.
_PYTHONS = re.compile(r"(.*\.)?__\w+__(\..*)?")
_CODE = {"expr_str": exported_expressions.sizes, "guards_code": exported_expressions.guards}
_TREES = frozenset({"in_spec", "out_spec"})
_TARGETS = frozenset({"target", "as_operator"})
_JSON = frozenset({"from_node", "custom"})
_TEXTS = frozenset({"as_string", "as_strings"})
# What inputs and outputs may be made of. Others name a class or a function to import.
_CONTAINERS = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})


def read(text: str, findings: Scan) -> None:
    """Note the namespaces of a program's operators, and what could do more than compute.

    Raises `ValueError` for what is no JSON.
    """
    program = json.loads(text)
    _check(program, "", findings, quoted=False)
    ranges = program.get("range_constraints") if isinstance(program, dict) else None
    for name in ranges if isinstance(ranges, dict) else ():
        # torch counts up to the number of a size that the data decide.
        if name.startswith(("u", "zuf")) and not exported_expressions.symbol(name):
            findings.doubt(f"it names a size {_short(name)}")


def read_config(config: Any, findings: Scan) -> None:
    """As `read`, of the list of a program's tensors."""
    _check(config, "", findings, quoted=False)


def _check(value: Any, key: str, findings: Scan, *, quoted: bool) -> None:
    """Check a value and all below it. `quoted` says that texts stand in the code in quotes."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not _is_plain(name):
                findings.doubt(f"it names something {_short(name)}")
            in_code = name == "metadata" and key in ("nodes", "graph_module")
            if in_code and isinstance(item, dict) and all(isinstance(t, str) for t in item.values()):
                # Where each line came from: shown to people, and in comments of code that is made.
                if not all(_is_comment(key, text) for key, text in item.items()):
                    findings.doubt("what it says about the source of a line holds odd characters")
                continue
            # The texts of an operator on graphs may be options of a compiler.
            on_graphs = str(value.get("target")).startswith("torch.ops.higher_order.")
            inputs = (key, name) == ("nodes", "inputs") and not on_graphs
            inside = inputs or (quoted and name != "graph")
            _check(item, name, findings, quoted=inside)
    elif isinstance(value, list):
        for item in value:
            _check(item, key, findings, quoted=quoted)
    elif isinstance(value, str):
        _check_text(value, key, findings, quoted=quoted)


def _is_comment(key: str, text: str) -> bool:
    """Whether a text can stand in a comment: it has no characters that end a line.

    A stack trace may hold plain newlines and tabs: torch makes each of its lines a comment.
    """
    if key in _JSON:
        try:
            return _is_printable(json.loads(text))
        except ValueError:
            return False
    if key == "stack_trace":
        text = text.replace("\n", "").replace("\t", "")
    return text.isprintable()


def _is_printable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(key.isprintable() and _is_printable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_printable, value))
    return not isinstance(value, str) or value.isprintable()


def _is_plain(text: str) -> bool:
    return _PLAIN.fullmatch(text) is not None and not _PYTHONS.fullmatch(text)


def _check_text(value: str, key: str, findings: Scan, *, quoted: bool) -> None:
    if key in _TARGETS:
        _check_target(value, findings)
    elif key in _CODE:
        if not _CODE[key](value):
            findings.doubt(f"it holds the code {_short(value)}")
    elif key in _TREES:
        if not _is_plain_tree(value):
            findings.doubt(f"the structure of its inputs or outputs is odd: {_short(value)}")
    elif key in _NAMES:
        if not _NAME.fullmatch(value):
            findings.doubt(f"it gives a value the name {_short(value)}")
    elif key in _TEXTS and quoted:
        if not _QUOTED.fullmatch(value):
            findings.doubt(f"its graph is given the text {_short(value)}")
    elif not _is_plain(value):
        findings.doubt(f"its {key} is {_short(value)}")


def _check_target(value: str, findings: Scan) -> None:
    operator = _OPERATORS.fullmatch(value)
    if operator:
        if not only_computes(operator[1], operator[2]):
            findings.doubt(f"its graph calls {_short(value)}")
        findings.namespaces.add(operator[1])
    elif not _ON_GRAPHS.fullmatch(value) and not _ON_SIZES.fullmatch(value):
        findings.doubt(f"its graph calls {_short(value)}")
        other = _OTHER.match(value)
        if other:
            findings.unknown.add(other[1])


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
        and all(isinstance(key, int) or (isinstance(key, str) and _KEY.fullmatch(key)) for key in keys)
    )
    return plain and all(_is_tree(child) for child in tree["children_spec"])


def _short(value: str) -> str:
    return repr(value if len(value) <= 80 else value[:77] + "...")
