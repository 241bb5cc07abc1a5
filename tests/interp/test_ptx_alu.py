"""Each integer PTX instruction in the interpreter against a formula of its own."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qgpu.interp.ptx import run_ptx
from qgpu.kernel import LaunchShape
from qgpu.ptxir import Module
from tests.interp.formulas import FORMULAS, LOP3_TABLES, Formula, wrap
from tests.interp.ptx_run import FIRST, ptx_module, words

REGISTER = {8: "%h", 16: "%h", 32: "%r", 64: "%rd"}
PATTERN = {8: "u16", 16: "u16", 32: "u32", 64: "u64"}
N_THREADS = 32


def instruction_module(formula: Formula) -> Module:
    """Thread t reads its sources from 64-bit slots 8t, 8t + 1, ... and writes slot 8t + 7."""
    lines = ["mul.wide.u32 %rd1, %r0, 64;", "add.u64 %rd1, %rd1, %rd0;"]
    names = []
    for index, bits in enumerate(formula.sources):
        name = f"{REGISTER[bits]}{index + 10}"
        lines.append(f"ld.global.{PATTERN[bits]} {name}, [%rd1+{8 * index}];")
        names.append(name)
    result = f"{REGISTER[formula.result]}9"
    lines.append(f"{formula.opcode} {result}, {', '.join(names)};")
    lines.append(f"st.global.{PATTERN[formula.result]} [%rd1+56], {result};")
    return ptx_module("\n".join(lines))


def run_instruction(formula: Formula, rows: list[tuple[int, ...]]) -> list[int]:
    memory = bytearray(FIRST + 64 * N_THREADS)
    for thread, row in enumerate(rows):
        struct.pack_into(f"<{len(row)}Q", memory, FIRST + 64 * thread, *row)
    shape = LaunchShape(block=(len(rows), 1, 1), params=(FIRST,))
    out = run_ptx(instruction_module(formula), "k", shape, memory)
    raw = [struct.unpack_from("<Q", out, FIRST + 64 * t + 56)[0] for t in range(len(rows))]
    return [wrap(value, formula.result) for value in raw]


@cache
def edges(bits: int, small: bool) -> tuple[int, ...]:
    if small:
        return (0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 44, 63, 64, 65, 127, 128, 255, 256,
                   2**31, 2**32 - 1)  # fmt: skip
    top = 1 << (bits - 1)
    values = [0, 1, 2, 3, 5, 0x7F, 0x80, 0xFF, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2,
              0x1234567890ABCDEF, 0xFEDCBA0987654321, 0x5555555555555555]  # fmt: skip
    return tuple(dict.fromkeys(wrap(value, bits) for value in values))


def edge_rows(formula: Formula) -> list[tuple[int, ...]]:
    """All pairs of edge values, or a seeded choice of the larger products."""
    columns = [edges(bits, n in formula.small) for n, bits in enumerate(formula.sources)]
    rows = list(itertools.product(*columns)) if len(columns) < 3 else []
    if not rows:
        pick = random.Random(zlib.crc32(formula.opcode.encode()))
        rows = [tuple(pick.choice(column) for column in columns) for _ in range(320)]
    return rows


def expected(formula: Formula, row: tuple[int, ...]) -> int:
    return formula.compute(*row)


@pytest.mark.parametrize("formula", FORMULAS, ids=str)
def test_edge_values(formula: Formula) -> None:
    rows = edge_rows(formula)
    for start in range(0, len(rows), N_THREADS):
        part = rows[start : start + N_THREADS]
        got = run_instruction(formula, part)
        wrong = [(row, have, expected(formula, row)) for row, have in zip(part, got, strict=True)
                 if have != expected(formula, row)]  # fmt: skip
        assert not wrong, f"{formula}: sources, result, right: {wrong[:3]}"


@st.composite
def instructions(draw: st.DrawFn) -> tuple[Formula, list[tuple[int, ...]]]:
    formula = draw(st.sampled_from(FORMULAS))
    columns = [
        st.integers(0, 80) | st.integers(0, 2**32 - 1)
        if n in formula.small
        else st.integers(0, 2**bits - 1) | st.sampled_from(edges(bits, False))
        for n, bits in enumerate(formula.sources)
    ]
    return formula, draw(st.lists(st.tuples(*columns), min_size=8, max_size=N_THREADS))


@settings(max_examples=400, deadline=None)
@given(instructions())
def test_random_values(case: tuple[Formula, list[tuple[int, ...]]]) -> None:
    formula, rows = case
    assert run_instruction(formula, rows) == [expected(formula, row) for row in rows]


@pytest.mark.parametrize("table", LOP3_TABLES)
def test_lop3(table: int) -> None:
    a, b, c = 0xF0F0AAAA, 0xCCCC1234, 0xAA00FF81
    module = ptx_module(f"lop3.b32 %r1, {a}, {b}, {c}, {table}; st.global.u32 [%rd0], %r1;")
    assert words(module, [0], form="I") == [LOP3_TABLES[table](a, b, c)]


WIDE = st.integers(0, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(WIDE, WIDE, WIDE)
def test_carry_chains_are_wide_arithmetic(a: int, b: int, c: int) -> None:
    """128-bit a:b + c:a, a:b - c:a, and the 128-bit product of a and b by mad.cc."""
    module = ptx_module("""
ld.global.u64 %rd1, [%rd0]; ld.global.u64 %rd2, [%rd0+8]; ld.global.u64 %rd3, [%rd0+16];
add.cc.u64 %rd4, %rd2, %rd1; addc.u64 %rd5, %rd1, %rd3;
st.global.u64 [%rd0+24], %rd4; st.global.u64 [%rd0+32], %rd5;
sub.cc.u64 %rd4, %rd2, %rd1; subc.u64 %rd5, %rd1, %rd3;
st.global.u64 [%rd0+40], %rd4; st.global.u64 [%rd0+48], %rd5;
mov.b64 {%r1, %r2}, %rd1; mov.b64 {%r3, %r4}, %rd2;
mul.lo.u32 %r5, %r1, %r3; mul.hi.u32 %r6, %r1, %r3;
mad.lo.cc.u32 %r6, %r1, %r4, %r6; madc.hi.u32 %r7, %r1, %r4, 0;
mad.lo.cc.u32 %r6, %r2, %r3, %r6; madc.hi.cc.u32 %r7, %r2, %r3, %r7; addc.u32 %r8, 0, 0;
mad.lo.cc.u32 %r7, %r2, %r4, %r7; madc.hi.u32 %r8, %r2, %r4, %r8;
st.global.v4.u32 [%rd0+56], {%r5, %r6, %r7, %r8};""")
    out = words(module, [a, b, c, *[0] * 6], form="Q")
    left, right = a << 64 | b, c << 64 | a
    assert out[3] | out[4] << 64 == wrap(left + right, 128)
    assert out[5] | out[6] << 64 == wrap(left - right, 128)
    assert out[7] | out[8] << 64 == a * b
