"""What is known about values before the launch: constant folding, identities, upper bounds.

``Facts`` holds the single definition of every virtual register that has just one; only through
these are operands looked at. ``simplify`` rewrites one node in place or says what value it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from qgpu.isa import MASK32, Immediate, Op, Unit, signed
from qgpu.ptx.mir import ONE, ZERO, Node, Value, Virtual, imm

COMMUTATIVE = {
    Op.ADD, Op.AND, Op.OR, Op.XOR, Op.MUL, Op.MULHU, Op.MULHS, Op.EQ, Op.NE,
    Op.MINU, Op.MAXU, Op.MINS, Op.MAXS, Op.ADDC,
}  # fmt: skip
COMPARES = {Op.EQ, Op.NE, Op.LTU, Op.GEU, Op.LTS, Op.GES}
OPPOSITE = {
    Op.EQ: Op.NE, Op.NE: Op.EQ, Op.LTU: Op.GEU, Op.GEU: Op.LTU, Op.LTS: Op.GES, Op.GES: Op.LTS,
}  # fmt: skip
SAME_OPERANDS = {
    Op.SUB: 0, Op.XOR: 0, Op.EQ: 1, Op.NE: 0, Op.LTU: 0, Op.GEU: 1, Op.LTS: 0, Op.GES: 1,
}  # fmt: skip
IDEMPOTENT = {Op.AND, Op.OR, Op.MINU, Op.MAXU, Op.MINS, Op.MAXS}
# x op constant -> x
NEUTRAL = {
    Op.ADD: 0, Op.SUB: 0, Op.OR: 0, Op.XOR: 0, Op.SHL: 0, Op.SHR: 0, Op.SAR: 0, Op.AND: MASK32,
    Op.MUL: 1, Op.MAXU: 0, Op.MINU: MASK32, Op.MAXS: 0x80000000, Op.MINS: 0x7FFFFFFF,
}  # fmt: skip
# x op constant -> a constant
ABSORBING = {
    Op.AND: (0, 0), Op.MUL: (0, 0), Op.MULHU: (0, 0), Op.MULHS: (0, 0), Op.MINU: (0, 0),
    Op.LTU: (0, 0), Op.GEU: (0, 1), Op.OR: (MASK32, MASK32), Op.MAXU: (MASK32, MASK32),
}  # fmt: skip
# PRMT selector that extends a sign -> below which value it changes nothing
SIGN_EXTENSIONS = {0x8880: 1 << 7, 0x9910: 1 << 15}


class Facts:
    """Single definitions and upper bounds; ``n_threads`` bounds TID, ``n_lanes`` BALLOT."""

    def __init__(self, n_threads: int, n_lanes: int, nodes: Iterable[Node] = ()) -> None:
        self.n_threads, self.n_lanes = n_threads, n_lanes
        self.single: dict[Virtual, Node] = {}
        self.several: set[Virtual] = set()
        self.limits: dict[Virtual, int] = {}  # what was found out before
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if node.dst is None:
            return
        if node.dst in self.single or node.dst in self.several:
            self.single.pop(node.dst, None)
            self.several.add(node.dst)
            self.limits.clear()
        else:
            self.single[node.dst] = node

    def definition(self, value: Value | None) -> Node | None:
        """The node that alone makes the value, if it does so in every lane."""
        if not isinstance(value, Virtual):
            return None
        node = self.single.get(value)
        return node if node is not None and node.guard is None else None

    def limit(self, value: Value | None, depth: int = 6) -> int:
        """A number that the value, read unsigned, never exceeds."""
        if isinstance(value, Immediate):
            return value.value
        node = self.definition(value)
        if node is None or depth == 0 or node.dst is None:
            return MASK32
        if node.dst not in self.limits:
            self.limits[node.dst] = min(MASK32, self._limit(node, depth - 1))
        return self.limits[node.dst]

    def _limit(self, node: Node, depth: int) -> int:
        op = node.op
        if op in COMPARES:
            return 1
        if op is Op.TID:
            return self.n_threads - 1
        if op is Op.BALLOT:
            return (1 << self.n_lanes) - 1
        if op in (Op.POPC, Op.CLZ):
            return 32
        a, b = self.limit(node.a, depth), self.limit(node.b, depth)
        match op:
            case Op.MOV:
                return a
            case Op.ADD:
                return a + b if a + b <= MASK32 else MASK32
            case Op.ADDC:
                return a + b + 1 if a + b < MASK32 else MASK32
            case Op.MUL:
                return a * b if a * b <= MASK32 else MASK32
            case Op.MULHU:
                return a * b >> 32
            case Op.AND | Op.MINU:
                return min(a, b)
            case Op.MAXU:
                return max(a, b)
            case Op.OR | Op.XOR:
                return (1 << max(a, b).bit_length()) - 1
            case Op.SHR | Op.SAR if isinstance(node.b, Immediate):
                if op is Op.SAR and a >> 31:
                    return MASK32
                return a >> min(node.b.value, 32)
            case Op.SHL if isinstance(node.b, Immediate):
                return a << min(node.b.value, 32)
            case Op.SHR:
                return a
            case Op.PRMT:
                return self._prmt_limit(node)
        return MASK32

    def _prmt_limit(self, node: Node) -> int:
        """By the selector's nibbles; the low ones may vary, by an index added to a constant."""
        known, varying = node.c, 0
        made = self.definition(node.c)
        if made is not None and made.op is Op.ADD:
            known, varying = made.b, self.limit(made.a)
        if not isinstance(known, Immediate) or (known.value & 0xF) + varying > 0xF:
            return MASK32
        top = 0
        for n in range(4):
            nibble = known.value >> (4 * n) & 0xF
            source = node.b if nibble & 4 else node.a
            if (n == 0 and varying) or nibble & 8 or source != ZERO:
                top = n + 1
        return (1 << (8 * top)) - 1


def _constant(node: Node) -> Value | None:
    semantics = node.op.info.semantics
    if semantics is None or node.op.info.unit is not Unit.LANE:
        return None
    read = node.op.info.operands
    words = []
    for name, value in (("A", node.a), ("B", node.b), ("C", node.c)):
        if name not in read:
            words.append(0)
        elif isinstance(value, Immediate):
            words.append(value.value)
        else:
            return None
    return Immediate(semantics(*words))


def _identity(node: Node) -> Value | None:
    """x op constant, x op x."""
    op, a, b = node.op, node.a, node.b
    if op is Op.MOV:
        return a
    if isinstance(b, Immediate):
        if op in NEUTRAL and NEUTRAL[op] == b.value:
            return a
        if op in ABSORBING and ABSORBING[op][0] == b.value:
            return Immediate(ABSORBING[op][1])
        if op in (Op.SHL, Op.SHR) and b.value >= 32:
            return ZERO
    if a == ZERO and op in (Op.SHL, Op.SHR, Op.SAR):
        return ZERO
    if a == b and a is not None:
        if op in SAME_OPERANDS:
            return imm(SAME_OPERANDS[op])
        if op in IDEMPOTENT:
            return a
    return None


def _cheaper(node: Node) -> None:
    """The same value by a simpler operation."""
    if node.op is Op.ADDC and isinstance(node.c, Immediate):
        if not node.c.value & 1:
            node.op, node.c = Op.ADD, None
        elif isinstance(node.b, Immediate):
            node.op, node.b, node.c = Op.ADD, imm(node.b.value + 1), None
    if node.op is Op.SUBC and isinstance(node.c, Immediate):
        if not node.c.value & 1:
            node.op, node.c = Op.SUB, None
        elif isinstance(node.b, Immediate):
            node.op, node.b, node.c = Op.ADD, imm(-node.b.value - 1), None
    if not isinstance(node.b, Immediate):
        return
    value = node.b.value
    if node.op is Op.SUB:
        node.op, node.b = Op.ADD, imm(-value)
    elif node.op is Op.MUL and value.bit_count() == 1:
        node.op, node.b = Op.SHL, imm(value.bit_length() - 1)
    elif node.op is Op.MULHU and value.bit_count() == 1:
        node.op, node.b = Op.SHR, imm(33 - value.bit_length())


def _extends_from(selector: Value | None) -> int:
    """Below which value a PRMT with the selector changes nothing."""
    return SIGN_EXTENSIONS.get(selector.value, 0) if isinstance(selector, Immediate) else 0


def _by_facts(node: Node, facts: Facts) -> Value | None:
    """What bounds and the operands' own definitions tell."""
    op, a, b = node.op, node.a, node.b
    if op is Op.AND and isinstance(b, Immediate):
        mask = b.value
        if mask & (mask + 1) == 0 and facts.limit(a) <= mask:
            return a
    if op is Op.PRMT and b == ZERO and facts.limit(a) < _extends_from(node.c):
        return a
    if op is Op.MULHU and facts.limit(a) * facts.limit(b) <= MASK32:
        return ZERO
    if op is Op.SAR and b is not None and facts.limit(a) < 1 << 31:
        if isinstance(b, Immediate) and facts.limit(a) >> min(b.value, 31) == 0:
            return ZERO
        node.op = Op.SHR
    if op is Op.SHR and isinstance(b, Immediate) and facts.limit(a) >> b.value == 0:
        return ZERO
    if op in (Op.LTU, Op.GEU) and isinstance(b, Immediate) and facts.limit(a) < b.value:
        return imm(op is Op.LTU)
    if op is Op.LTS and b == ZERO and facts.limit(a) < 1 << 31:
        return ZERO
    made = facts.definition(a)
    is_carry = op is Op.LTU and made is not None and made.op is Op.ADD and b in (made.a, made.b)
    if is_carry and made is not None and facts.limit(made.a) + facts.limit(made.b) <= MASK32:
        return ZERO  # the sum cannot overflow
    if op in (Op.EQ, Op.NE) and isinstance(b, Immediate) and made is not None:
        return _compare_of_boolean(node, made, b.value, facts)
    return None


def _compare_of_boolean(node: Node, made: Node, value: int, facts: Facts) -> Value | None:
    """A truth value compared with 0 or 1 is itself or the opposite comparison."""
    if facts.limit(node.a) > 1 or value > 1:
        return None
    if (node.op is Op.NE) == (value == 0):
        return node.a
    if made.op in OPPOSITE and all(
        not isinstance(v, Virtual) or v in facts.single for v in (made.a, made.b)
    ):
        node.op, node.a, node.b = OPPOSITE[made.op], made.a, made.b
    return None


def _opposite_of_xor(node: Node, facts: Facts) -> None:
    """not (a < b) -> a >= b."""
    made = facts.definition(node.a)
    if node.op is not Op.XOR or node.b != ONE or made is None or made.op not in OPPOSITE:
        return
    if all(not isinstance(v, Virtual) or v in facts.single for v in (made.a, made.b)):
        node.op, node.a, node.b = OPPOSITE[made.op], made.a, made.b


def simplify(node: Node, facts: Facts) -> Value | None:
    """Rewrite the node to a cheaper one; or return the value that it always has."""
    if node.op in COMMUTATIVE and isinstance(node.a, Immediate):
        node.a, node.b = node.b, node.a
    if node.guard is None:
        found = _constant(node) or _identity(node)
        if found is not None:
            return found
    if node.op.info.unit is not Unit.LANE:
        return None
    if node.guard is None or node.op not in (Op.ADDC, Op.SUBC):
        _cheaper(node)
    if node.guard is None:
        _opposite_of_xor(node, facts)
        found = _by_facts(node, facts) or _identity(node)
        if found is not None:
            return found
    return None


def is_negative(value: Immediate) -> bool:
    return signed(value.value) < 0
