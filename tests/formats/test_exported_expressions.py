"""Expressions of exported programs: what torch writes is taken, and nothing that could do more."""

import time

import pytest

from optcli.formats import exported_expressions as expressions

SYMBOL = "Symbol('s0', positive=True, integer=True)"


@pytest.mark.parametrize(
    "text",
    [
        "s0", "2*s0 + u1//3", "-oo", "int_oo", "Integer(-3)", "true", "Float('1.5', precision=53)",
        SYMBOL, f"Add(FloorDiv({SYMBOL}, Integer(2)), Integer(1))", f"Pow({SYMBOL}, Integer(2))",
        f"TruncToInt(Mul(Float('1.5', precision=53), ToFloat({SYMBOL})))", "s0**2",
        f"StrictGreaterThan({SYMBOL}, Integer(2))", f"Pow({SYMBOL}, Rational(1, 2))",
        "Mul(Integer(3), s0, evaluate=False)", "RoundDecimal(s0, Integer(2))", "(s0 > 1) & (s1 < 2)",
        "Mul(Integer(3), Symbol('s43', integer=True), Pow(Symbol('u0'), Integer(-1)))",
        "Max(Integer(1), ModularIndexing(s0, 2, 3))",
    ],
)  # fmt: skip
def test_sizes_that_torch_writes(text):
    assert expressions.sizes(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "exec", "test", "s0(3)", "exec('')", "Abs('3')", "Abs(x)", "Symbol('exec')", "Symbol(s0)",
        "Symbol('s0')(3)", "Integer('3')", "Float('exec')", "Float('1', precision=10**9)",
        "Float('1e999999999')", "Float('1', precision=999999)", "max(s0, key=test)", "s0.x", "s0[0]",
        "0.2[1]", "L['x'].size()[0]", "s0 if s0 else s0", "lambda: s0", "[s0]", "f's0'", "Abs(*s0)",
        "s0\n", "s0 # x", "s0\\\n", "Abs('\\\nx5f')", "s0\r", "9^9", '"s0"', "S", "Q",
        "9**9**9**9", "(9**64)**64", "9**s0", "9**99", "1 << 99", "1 << s0", "Pow(9, Pow(9, 9))",
        "Pow(Pow(9, 64), 64)", "Pow(Add(1, Pow(9, 64)), 64)", "LShift(1, 9999)", "Pow(2, 1 * 60)",
        "RoundDecimal(s0, 9999)", "Pow(9, Integer(9999))", "9" * 30, "1j", "ｓ0", "s99999999999",
        "(" * 150 + "s0" + ")" * 150 + "+" * 150 + "1", "Mul(Integer(9), x=1)",
    ],
)  # fmt: skip
def test_sizes_that_it_does_not(text):
    assert not expressions.sizes(text)


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].size()[0] == 3", "(1 + (((-1) + L['x'].size()[3]) // 2)) != 1", "L['x'].dim() == 2",
        "(1 + math.trunc(1.5*torch.sym_float(L['x'].size()[3]))) != 1", "L['d']['k'].size()[0] >= 2",
        "L['r'][0].stride()[1] == L['r'][1].storage_offset()", "not (L['x'].size(0) == 1)",
        "L['x'] == 3", "math.isnan(L['x'])", "L['x'] <= math.inf", "L['x'].size()[0]**2 < 9",
        "Eq(Mod(L['args'][0].size()[2], 2), 0)",
        "not L['x'].size()[0] == 3 and 2*L['x'].stride()[0] < 8",
        "max(1, L['x'].size()[0]) == 3 or 4 < 5 < inf",
    ],
)  # fmt: skip
def test_guards_that_torch_writes(text):
    assert expressions.guards(text)


@pytest.mark.parametrize(
    "text",
    [
        "L", "L['x'] == 'a'", "'a'", "exec('')", "print", "L[exec]", "L['x'].__class__", "L['x'](1)",
        "L['x y'].size()", "L['x'].size", "L['x'].size(exec)", "L['x'].tolist()", "M['x'].size()",
        "math.exec", "math.factorial(9999)", "torch.load('x')", "torch.sym_int(exec)", "torch.hub",
        "torch.sym_int.__globals__", "max(L['x'], key=exec)", "s0", "L['x'].size()[0:1]", "L[0][0]",
        "().__class__.__bases__", "[x for x in (1,)]", "1)\nimport os\n(2", "f'{1}'",
        "1 == 1 or '\\\nx22'", "1 if 2 else 3", "(x := 3)", "1); exec('", "L['x'].size().a", "{1: 2}",
    ],
)  # fmt: skip
def test_guards_that_it_does_not(text):
    assert not expressions.guards(text)


def test_the_largest_expression_is_read_quickly():
    start = time.process_time()  # other work on the machine does not count
    expressions.sizes("+".join(["9**64"] * 8000))
    expressions.sizes("-" * 40_000 + "1")
    assert time.process_time() - start < 10
