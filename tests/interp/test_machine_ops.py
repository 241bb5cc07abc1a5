"""Every operation of the block interpreter against a formula written without ``Op.semantics``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qgpu.interp.machine import run_blocks
from qgpu.isa import Forward, Immediate, Instruction, MachineBlock, Op, Register, Target, Unit
from qgpu.machine import REFERENCE

u32, i32, u64, i64 = np.uint32, np.int32, np.uint64, np.int64
Formula = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def _wide(a: np.ndarray) -> np.ndarray:
    return a.astype(u64)


def _int(a: np.ndarray) -> np.ndarray:
    return a.view(i32).astype(i64)


def _bits(a: np.ndarray) -> np.ndarray:
    """(n, 32) bits, least significant first."""
    return (a[:, None] >> np.arange(32, dtype=u32)) & u32(1)


def _from_bits(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(u64) << np.arange(32, dtype=u64)).sum(axis=1)


def _clz(a: np.ndarray) -> np.ndarray:
    reversed_bits = _bits(a)[:, ::-1]
    return np.where(a == 0, 32, reversed_bits.argmax(axis=1))


def _prmt(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    both = _wide(b) << u64(32) | _wide(a)
    out = np.zeros_like(both)
    for n in range(4):
        nibble = _wide(c) >> u64(4 * n) & u64(15)
        byte = both >> (u64(8) * (nibble & u64(7))) & u64(255)
        byte = np.where(nibble >= 8, np.where(byte >= 128, u64(255), u64(0)), byte)
        out |= byte << u64(8 * n)
    return out


def _shift(b: np.ndarray, most: int) -> np.ndarray:
    return np.minimum(_wide(b), u64(most))


FORMULAS: dict[Op, Formula] = {
    Op.MOV: lambda a, b, c: a,
    Op.ADD: lambda a, b, c: a + b,
    Op.SUB: lambda a, b, c: a - b,
    Op.ADDC: lambda a, b, c: a + b + c % u32(2),
    Op.SUBC: lambda a, b, c: a - b - c % u32(2),
    Op.AND: lambda a, b, c: a & b,
    Op.OR: lambda a, b, c: a | b,
    Op.XOR: lambda a, b, c: a ^ b,
    Op.SHL: lambda a, b, c: _wide(a) << _shift(b, 32),
    Op.SHR: lambda a, b, c: _wide(a) >> _shift(b, 32),
    Op.SAR: lambda a, b, c: _int(a) >> _shift(b, 31).astype(i64),
    Op.MUL: lambda a, b, c: a * b,
    Op.MULHU: lambda a, b, c: _wide(a) * _wide(b) >> u64(32),
    Op.MULHS: lambda a, b, c: _int(a) * _int(b) >> 32,
    Op.EQ: lambda a, b, c: a == b,
    Op.NE: lambda a, b, c: a != b,
    Op.LTU: lambda a, b, c: a < b,
    Op.GEU: lambda a, b, c: a >= b,
    Op.LTS: lambda a, b, c: a.view(i32) < b.view(i32),
    Op.GES: lambda a, b, c: a.view(i32) >= b.view(i32),
    Op.MINU: lambda a, b, c: np.minimum(a, b),
    Op.MAXU: lambda a, b, c: np.maximum(a, b),
    Op.MINS: lambda a, b, c: np.minimum(a.view(i32), b.view(i32)),
    Op.MAXS: lambda a, b, c: np.maximum(a.view(i32), b.view(i32)),
    Op.POPC: lambda a, b, c: _bits(a).sum(axis=1),
    Op.CLZ: lambda a, b, c: _clz(a),
    Op.BREV: lambda a, b, c: _from_bits(_bits(a)[:, ::-1]),
    Op.PRMT: _prmt,
}

EDGES = [0, 1, 2, 31, 32, 33, 63, 64, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF,
         0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA, 0x3210,
         0x89AB, 0xFEDCBA98]  # fmt: skip


def _samples() -> np.ndarray:
    """Rows (a, b, c): every pair of edges, then random words."""
    rng = np.random.default_rng(7)
    pairs = [(x, y, EDGES[(i + j) % len(EDGES)]) for i, x in enumerate(EDGES)
             for j, y in enumerate(EDGES)]  # fmt: skip
    random = rng.integers(0, 1 << 32, (448, 3))
    return np.concatenate([np.array(pairs), random]).astype(u32)


def _machine_results(op: Op, rows: np.ndarray) -> np.ndarray:
    """The op run by the interpreter on rows of (a, b, c), one thread a row."""
    n_threads = REFERENCE.n_threads
    address = Forward(1)
    blocks = [
        MachineBlock((
            Instruction(Op.TID),
            Instruction(Op.SHL, Forward(0), Immediate(2), dst=4),
            Instruction(Op.LD, address, dst=1),
            Instruction(Op.LD, address, Immediate(4 * n_threads), dst=2),
        ), Target(1)),
        MachineBlock((
            Instruction(Op.LD, Register(4), Immediate(8 * n_threads)),
            Instruction(op, Register(1), Register(2), Forward(0), dst=5),
        ), Target(exit=True)),
    ]  # fmt: skip
    results: list[int] = []
    for start in range(0, len(rows), n_threads):
        memory = [int(x) for x in rows[start : start + n_threads].T.flatten()]
        run = run_blocks(REFERENCE, blocks, memory, n_threads)
        results += [word for registers in run.registers for word in registers[5]]
    return np.array(results, dtype=u64)


def test_every_lane_operation_has_a_formula() -> None:
    assert set(FORMULAS) == {op for op in Op if op.info.unit is Unit.LANE}


@pytest.mark.parametrize("op", FORMULAS, ids=lambda op: op.name)
def test_lane_operation(op: Op) -> None:
    rows = _samples()
    expected = FORMULAS[op](*(np.ascontiguousarray(rows[:, n]) for n in range(3)))
    expected = expected.astype(i64).astype(u64) & u64(0xFFFFFFFF)
    np.testing.assert_array_equal(_machine_results(op, rows), expected)


@pytest.mark.parametrize("op", FORMULAS, ids=lambda op: op.name)
def test_operands_of_the_table_are_those_that_matter(op: Op) -> None:
    """An operand that the row leaves out changes nothing; one that it names changes something."""
    rows = _samples()
    plain = _machine_results(op, rows)
    for n, name in enumerate("ABC"):
        other = rows.copy()
        other[:, n] = np.roll(rows[:, n], 5) ^ u32(1)
        changed = bool((_machine_results(op, other) != plain).any())
        assert changed == (name in op.info.operands), name
