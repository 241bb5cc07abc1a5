"""Guesses: how many tokens it takes to write a value back.

A value that differs between lanes costs a token for every two bits, one that is the same in all
of them a token a byte. How long a value will be is known only at run time; programs mostly work
on small numbers, so what comes from memory or a variable counts as ``TYPICAL_BITS`` long.
"""

from __future__ import annotations

from qgpu.isa import Immediate, Op
from qgpu.ptx.fold import COMPARES, Facts
from qgpu.ptx.mir import Node, Value, Virtual
from qgpu.tokens import PIECE_BITS

TYPICAL_BITS = 6.0
WORD = 32.0
UNIFORM_BITS = 8.0
DEPTH = 4


def _bits(value: Value | None, facts: Facts, depth: int) -> float:
    if isinstance(value, Immediate):
        return float(min(value.value.bit_length(), (value.value ^ 0xFFFFFFFF).bit_length()))
    node = facts.definition(value)
    if node is None or depth == 0:
        return TYPICAL_BITS
    return min(_node_bits(node, facts, depth - 1), float(facts.limit(node.dst).bit_length()))


def _node_bits(node: Node, facts: Facts, depth: int) -> float:
    if node.op in COMPARES:
        return 1.0
    if node.op in (Op.LD, Op.TID, Op.PRMT):
        return TYPICAL_BITS
    if node.op in (Op.MULHU, Op.MULHS, Op.BREV):
        return WORD / 2
    a, b = _bits(node.a, facts, depth), _bits(node.b, facts, depth)
    match node.op:
        case Op.MUL:
            return min(WORD, a + b)
        case Op.SHL:
            return min(WORD, a + node.b.value) if isinstance(node.b, Immediate) else WORD / 2
        case Op.SHR | Op.SAR:
            return max(1.0, a - node.b.value) if isinstance(node.b, Immediate) else a
        case Op.ADD | Op.SUB | Op.ADDC | Op.SUBC:
            return min(WORD, max(a, b) + 0.5)
        case Op.AND | Op.MINU:
            return min(a, b)
        case Op.MOV:
            return max(a, _bits(node.c, facts, depth)) if node.c is not None else a
    return max(a, b)


def write_cost(node: Node, facts: Facts) -> float:
    """About how many tokens it takes to write the node's value back."""
    if node.dst is None:
        return 0.0
    bits = _node_bits(node, facts, DEPTH)
    if node.dst in facts.single:
        bits = min(bits, float(facts.limit(node.dst).bit_length()))
    if is_uniform(node, facts):
        return max(1.0, bits / UNIFORM_BITS)
    return max(1.0, bits / PIECE_BITS)


def is_uniform(node: Node, facts: Facts, depth: int = DEPTH) -> bool:
    """Whether the value is surely the same in every lane."""
    if node.guard is not None or depth == 0 or node.op in (Op.TID, Op.SHFL):
        return False
    for value in (node.a, node.b, node.c):
        if isinstance(value, Virtual):
            made = facts.definition(value)
            if made is None or not is_uniform(made, facts, depth - 1):
                return False
    return True
