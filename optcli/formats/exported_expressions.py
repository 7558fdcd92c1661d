"""Which expressions of an exported program only compute with sizes.

torch evaluates them as Python: sizes by `sympy.sympify` (`sizes`), guards in a function that it writes
(`guards`), whose message holds the guard once more in quotes. torch changes the text before it runs it,
and sympy reads some of it differently from Python. So nothing is taken that means two things: plain
characters alone, every name, function, keyword and text from a list, and powers of small numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

# No backslash, end of line, comment, double quote, dollar, and no power that only sympy knows (`^`).
_CHARACTERS = re.compile(r"[\w .,'()\[\]+\-*/%<>=!&|~]*", re.ASCII)
_LONGEST = 50_000
_DEEPEST = 100
_SYMBOL = re.compile(r"(s|u|zf|zuf|f|ps|i)\d{1,6}", re.ASCII)
_FLOAT = re.compile(r"-?(\d{1,400}\.?\d{0,400}|\.\d{1,400})(e[+-]?\d{1,3})?|-?inf|nan", re.ASCII)
_INPUT = re.compile(r"\w+(\.\w+)*", re.ASCII)
_LARGEST = 2**64
# Of exponents, shifts, and digits to round to.
_LARGEST_EXPONENT = 64

# fmt: off
_FUNCTIONS = frozenset({
    "Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "FloatTrueDiv", "FloorDiv",
    "FloorToInt", "Ge", "Gt", "Identity", "IntTrueDiv", "Integer", "IsNonOverlappingAndDenseIndicator",
    "Le", "Lt", "Max", "Min", "Mod", "ModularIndexing", "Mul", "Ne", "Not", "Or", "PythonMod",
    "Rational", "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where", "ceiling", "floor",
    "max", "min", "sqrt", "Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan",
    "StrictLessThan", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "ExprCondPair", "ITE",
    "Piecewise",
})
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal"})
_VALUES = frozenset({"true", "false", "oo", "int_oo", "nan", "zoo"})
_KEYWORDS = frozenset({
    "positive", "integer", "negative", "nonnegative", "nonpositive", "real", "nonzero", "zero",
    "finite", "infinite", "extended_real", "commutative", "evaluate", "even", "odd", "rational",
})
_GUARD_FUNCTIONS = frozenset({
    "abs", "bool", "cast_symbool_to_symint_guardless", "float", "int", "max", "min",
    "IsNonOverlappingAndDenseIndicator",
})
_MODULES = {
    "math": frozenset({
        "acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "fabs", "floor", "fmod", "isinf",
        "isnan", "log", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    }),
    "torch": frozenset({
        "sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum",
        "_sym_sqrt", "_sym_log2", "_sym_cos", "_sym_cosh", "_sym_sin", "_sym_sinh", "_sym_tan",
        "_sym_tanh", "_sym_asin", "_sym_acos", "_sym_atan",
    }),
}
# fmt: on
_METHODS = frozenset({"size", "stride", "storage_offset", "dim"})
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)


def sizes(expression: str) -> bool:
    """Whether sympy only computes with sizes when it is given this text."""
    return _Sizes().take(expression)


def guards(expression: str) -> bool:
    """Whether this text only compares sizes of inputs, also where torch has put it into a function."""
    return _Guards().take(expression)


def symbol(name: str) -> bool:
    """Whether this is a size as torch names them: it counts up to the number in it."""
    return _SYMBOL.fullmatch(name) is not None


class _Sizes:
    """What `sympy.sympify` is given."""

    functions = _FUNCTIONS
    powers = _POWERS

    def take(self, expression: str) -> bool:
        if len(expression) > _LONGEST or not _CHARACTERS.fullmatch(expression):
            return False
        try:
            tree = ast.parse(expression.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return False
        return self._plain(tree.body, _DEEPEST, power=False)

    def _plain(self, node: ast.AST, depth: int, *, power: bool) -> bool:
        """Whether a node and all below it compute; `power` says that it stands in a power already."""
        if depth == 0:
            return False
        below: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow | ast.LShift | ast.RShift):
                return self._is_power([node.left, node.right], depth, power=power)
            if not isinstance(node.op, _OPERATORS):
                return False
            below = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp):
            below = [node.operand]
        elif isinstance(node, ast.BoolOp):
            below = node.values
        elif isinstance(node, ast.Compare):
            if not all(isinstance(operator, _COMPARISONS) for operator in node.ops):
                return False
            below = [node.left, *node.comparators]
        elif isinstance(node, ast.Tuple):
            below = node.elts
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in self.powers and not node.keywords:
                return self._is_power(node.args, depth, power=power)
            if name in self.functions and all(map(_is_keyword, node.keywords)):
                below = node.args
            else:
                return self._special(node, depth, power=power)
        elif isinstance(node, ast.Constant) and _is_number(node.value):
            return True
        else:
            return self._special(node, depth, power=power)
        return all(self._plain(each, depth - 1, power=power) for each in below)

    def _is_power(self, parts: list[ast.expr], depth: int, *, power: bool) -> bool:
        """A power of a power, or one of what is computed, could take for ever."""
        return (
            not power
            and len(parts) == 2
            and _is_small(parts[1])
            and self._plain(parts[0], depth - 1, power=True)
        )

    def _special(self, node: ast.AST, depth: int, *, power: bool) -> bool:
        """What only this kind of expression may hold."""
        if isinstance(node, ast.Name):
            return node.id in _VALUES or symbol(node.id)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) != 1:
            return False
        value = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        if node.func.id == "Symbol":
            return isinstance(value, str) and symbol(value) and all(map(_is_keyword, node.keywords))
        if node.func.id == "Float":
            number = _FLOAT.fullmatch(value) if isinstance(value, str) else _is_number(value)
            return bool(number) and all(map(_is_precision, node.keywords))
        return False


class _Guards(_Sizes):
    """What torch writes into a Python function: the inputs stand in `L`."""

    functions = _GUARD_FUNCTIONS | _FUNCTIONS
    powers: frozenset[str] = frozenset()

    def _special(self, node: ast.AST, depth: int, *, power: bool) -> bool:
        if isinstance(node, ast.Name):
            return node.id == "inf"
        if isinstance(node, ast.Attribute):
            return _is_member(node, "math", {"inf", "nan", "pi", "e"})
        if isinstance(node, ast.Subscript):  # of what a method gives: `L['x'].size()[0]`
            inside = _is_index(node.slice) and self._plain(node.value, depth - 1, power=power)
            return inside or _is_input(node)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
            return False
        if node.func.attr in _METHODS:
            return all(map(_is_index, node.args)) and _is_input(node.func.value)
        known = any(_is_member(node.func, module, names) for module, names in _MODULES.items())
        return known and all(self._plain(each, depth - 1, power=power) for each in node.args)


def _is_input(node: ast.AST) -> bool:
    """`L['x']`, or what is below it by whole numbers and plain names."""
    while isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        named = isinstance(key, str) and _INPUT.fullmatch(key) is not None
        if not named and not _is_index(node.slice):
            return False
        if isinstance(node.value, ast.Name):
            return named and node.value.id == "L"
        node = node.value
    return False


def _is_member(node: ast.Attribute, module: str, names: Collection[str]) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == module and node.attr in names


def _is_index(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value < _LARGEST


def _is_keyword(keyword: ast.keyword) -> bool:
    value = keyword.value
    return (
        keyword.arg in _KEYWORDS and isinstance(value, ast.Constant) and isinstance(value.value, bool)
    )


def _is_precision(keyword: ast.keyword) -> bool:
    return keyword.arg in ("precision", "dps") and _is_index(keyword.value) and _is_small(keyword.value)


def _is_number(value: object) -> bool:
    """Also True, False and None, which are no code either."""
    return value is None or isinstance(value, float) or (isinstance(value, int) and value <= _LARGEST)


def _is_small(node: ast.AST) -> bool:
    """A number that is written down: as exponent and the like it makes no number without end."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        node = node.operand
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id in ("Integer", "Rational", "Float") and len(node.args) in (1, 2):
            return all(map(_is_small, node.args))
        return False
    if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
        return False
    return abs(node.value) <= _LARGEST_EXPONENT
