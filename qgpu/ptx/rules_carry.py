"""Rules: addition and subtraction that hand a carry on (add.cc, addc, sub.cc, subc, mad.cc, madc).

The carry lives in a register of its own, 0 or 1; for a subtraction it is the borrow.
"""

from __future__ import annotations

from collections.abc import Sequence

from qgpu.isa import Op
from qgpu.ptx import wide
from qgpu.ptx.mir import ZERO, Value
from qgpu.ptx.rules_arith import add_sub, mad, product
from qgpu.ptx.select import Rule, Selector, rule, type_bits
from qgpu.ptxir import Inst

Words = Sequence[Value]


def _below(s: Selector, a: Words, b: Words, or_equal: bool) -> Value:
    """a < b, or a <= b, unsigned."""
    if or_equal:
        return s.negate(_below(s, b, a, False))
    if len(a) == 1:
        return s.emit(Op.LTU, a[0], b[0])
    return wide.less(s, (a[0], a[1]), (b[0], b[1]), False)


def _sum(s: Selector, op: Op, a: Words, b: Words, carry: Value) -> list[Value]:
    """a op b with a carry in; the carry between the words of a pair is found on the way."""
    low = s.emit(op, a[0], b[0], carry)
    if len(a) == 1:
        return [low]
    less = (low, a[0]) if op is Op.ADDC else (a[0], b[0])
    between = _carry(s, [less[0]], [less[1]], carry)
    return [low, s.emit(op, a[1], b[1], between)]


def _carry(s: Selector, smaller: Words, larger: Words, carry: Value) -> Value:
    """Whether the operation wrapped: smaller < larger, or equal where a carry came in."""
    return s.select(
        carry, _below(s, smaller, larger, True), _below(s, smaller, larger, False)
    )


def _finish(s: Selector, inst: Inst, op: Op, a: Words, b: Words) -> None:
    name = inst.opcode[0]
    carry: Value = s.carry if name.endswith("c") else ZERO
    total = _sum(s, op, a, b, carry)
    out = None
    if "cc" in inst.opcode:
        out = _carry(s, total, a, carry) if op is Op.ADDC else _carry(s, a, b, carry)
    s.write(inst.operands[0], *total)
    if out is not None:
        s.assign(s.carry, out)


def _chained(s: Selector, inst: Inst) -> None:
    x, y = inst.operands[1:3]
    bits = type_bits(s.type_of(inst))
    op = Op.ADDC if inst.opcode[0].startswith("add") else Op.SUBC
    _finish(s, inst, op, s.read(x, bits), s.read(y, bits))


def _chained_product(s: Selector, inst: Inst) -> None:
    x, y, z = inst.operands[1:4]
    bits = type_bits(s.type_of(inst))
    _finish(s, inst, Op.ADDC, product(s, inst, x, y), s.read(z, bits))


def _where_cc(plain: Rule, chained: Rule) -> Rule:
    """The rule that looks for ``.cc``."""

    def choose(s: Selector, inst: Inst) -> None:
        (chained if "cc" in inst.opcode else plain)(s, inst)

    return choose


rule("addc", "subc")(_chained)
rule("madc")(_chained_product)
rule("add", "sub")(_where_cc(add_sub, _chained))
rule("mad")(_where_cc(mad, _chained_product))
