"""Every integer PTX instruction: the lowered form against the PTX interpreter.

Operands come from memory, so that nothing is folded; once more as constants where the instruction
allows it, so that folding is tested too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from qgpu.machine import REFERENCE, SMALL, MachineSpec
from tests.ptx.lowering import ptx_kernel, run_both

EDGES = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 255, 0x7F, 0x80, 0x8000, 0x7FFF, 0xFFFF, 0x7FFFFFFF,
         0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0x12345678, 0x9ABCDEF0]  # fmt: skip
N_LANES = 4
COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")


def _names() -> Iterator[tuple[str, str]]:
    """(instruction, kinds of its operands): d and s 32 bits, D and S 64, h 16, p predicate."""
    for t in ("u32", "s32"):
        for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi", "div", "rem"):
            yield f"{op}.{t}", "rrr"
        yield f"mul.wide.{t}", "drr"
        yield f"mad.wide.{t}", "drrd"
        yield f"sad.{t}", "rrrr"
        for op in ("mad.lo", "mad.hi", "mul24.lo", "mul24.hi", "mad24.lo"):
            yield f"{op}.{t}", "rrr" if op.startswith("mul24") else "rrrr"
        yield f"bfe.{t}", "rrrr"
        yield f"bfind.{t}", "rr"
        yield f"bfind.shiftamt.{t}", "rr"
        yield f"dp4a.{t}.{t}", "rrrr"
        yield f"dp2a.lo.{t}.{t}", "rrrr"
        yield f"dp2a.hi.{t}.{t}", "rrrr"
    for t in ("u64", "s64"):
        for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi", "div", "rem"):
            yield f"{op}.{t}", "ddd"
        yield f"mad.lo.{t}", "dddd"
        yield f"sad.{t}", "dddd"
        yield f"bfe.{t}", "ddrr"
        yield f"bfind.{t}", "rd"
    for t in ("u16", "s16"):
        for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi", "div", "rem"):
            yield f"{op}.{t}", "hhh"
        yield f"mul.wide.{t}", "rhh"
        yield f"mad.lo.{t}", "hhhh"
    for t, k in (("16", "h"), ("32", "r"), ("64", "d")):
        for op in ("and", "or", "xor"):
            yield f"{op}.b{t}", k * 3
        for op in ("not", "cnot"):
            yield f"{op}.b{t}", k * 2
        for op in ("neg", "abs"):
            yield f"{op}.s{t}", k * 2
        for name in (f"shl.b{t}", f"shr.u{t}", f"shr.s{t}", f"shr.b{t}"):
            yield name, k + k + "r"
        for c in COMPARES:
            for s in "us":
                yield f"setp.{c}.{s}{t}", "p" + k * 2
        yield f"setp.hi.u{t}", "p" + k * 2
        yield f"setp.lt.and.s{t}", "p" + k * 2 + "p"
        yield f"selp.b{t}", k * 3 + "p"
        yield f"set.lt.u32.s{t}", "r" + k * 2
        yield f"slct.b{t}.s32", k * 3 + "r"
    for op in ("popc", "clz", "brev"):
        yield f"{op}.b32", "rr"
    for op in ("popc", "clz"):
        yield f"{op}.b64", "rd"
    yield "brev.b64", "dd"
    yield "bfi.b32", "rrrrr"
    yield "bfi.b64", "dddrr"
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield f"prmt.b32{mode}", "rrrr"
    for side in "lr":
        for mode in ("wrap", "clamp"):
            yield f"shf.{side}.{mode}.b32", "rrrr"
    for table in (0x00, 0x1E, 0x6A, 0x80, 0x96, 0xE8, 0xFE, 0xFF):
        yield f"lop3.b32 {table}", "rrrr"
    yield "add.sat.s32", "rrr"
    yield "sub.sat.s32", "rrr"
    for op in ("and", "or", "xor"):
        yield f"{op}.pred", "ppp"
    yield "not.pred", "pp"
    kinds = {"8": "r", "16": "h", "32": "r", "64": "d"}
    for source in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
        for target in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
            if source != target:
                for sat in ("", ".sat"):
                    yield f"cvt{sat}.{target}.{source}", kinds[target[1:]] + kinds[source[1:]]


NAMES = sorted(set(_names()))
LOADS = {
    "r": "ld.global.u32 %r{n}, [%d0+{at}];",
    "d": "ld.global.u64 %d{n}, [%d0+{at}];",
    "h": "ld.global.u16 %h{n}, [%d0+{at}];",
    "p": "ld.global.u32 %r{n}, [%d0+{at}]; and.b32 %r{n}, %r{n}, 1; setp.ne.u32 %p{n}, %r{n}, 0;",
}
RESULTS = {
    "r": "st.global.u32 [%d9], %r1;",
    "d": "st.global.u64 [%d9], %d1;",
    "h": "cvt.u32.u16 %r1, %h1; st.global.u32 [%d9], %r1;",
    "p": "selp.u32 %r1, 1, 0, %p1; st.global.u32 [%d9], %r1;",
}


def _instruction(name: str, kinds: str) -> str:
    registers = ", ".join(f"%{kind}{n + 1}" for n, kind in enumerate(kinds))
    name, _, table = name.partition(" ")
    return f"{name} {registers}{', ' + table if table else ''};"


def _kernel(name: str, kinds: str) -> str:
    loads = "\n".join(LOADS[kind].format(n=n + 2, at=8 * n) for n, kind in enumerate(kinds[1:]))
    step = 8 * (len(kinds) - 1)
    return ptx_kernel(f"""
    ld.param.u64 %d0, [p0]; ld.param.u64 %d9, [p1];
    mov.u32 %r0, %tid.x; mul.wide.u32 %d8, %r0, {step}; add.s64 %d0, %d0, %d8;
    mul.wide.u32 %d8, %r0, 8; add.s64 %d9, %d9, %d8;
    {loads}
    {_instruction(name, kinds)}
    {RESULTS[kinds[0]]}
    ret;""")


def _word(rng: random.Random) -> int:
    return rng.choice(EDGES) if rng.random() < 0.7 else rng.getrandbits(32)


@pytest.mark.parametrize(("name", "kinds"), NAMES, ids=[name for name, _ in NAMES])
def test_an_instruction_does_what_ptx_says(name: str, kinds: str) -> None:
    rng = random.Random(name)
    source = _kernel(name, kinds)
    n_threads = 4 * N_LANES
    for _ in range(3):
        data = [_word(rng) for _ in range(2 * (len(kinds) - 1) * n_threads)]
        got = run_both(source, [data, [0] * (2 * n_threads)], block=(n_threads, 1, 1))
        assert got.blocks[1] == got.ptx[1]


@pytest.mark.parametrize("name", [n for n, _ in NAMES if n[:3] in ("div", "rem")])
def test_division_by_zero_and_of_the_extremes(name: str) -> None:
    kinds = dict(NAMES)[name]
    bits = int(name[-2:])
    values = [0, 1, -1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 7]
    pairs = [(a, b) for a in values for b in values]
    for start in range(0, len(pairs), 9):
        data: list[int] = []
        for pair in pairs[start : start + 9]:
            for value in pair:
                data += [value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF]
        got = run_both(_kernel(name, kinds), [data, [0] * 18], block=(9, 1, 1))
        assert got.blocks[1] == got.ptx[1]


@pytest.mark.parametrize(
    "name", ["div.u32", "rem.s32", "mul.hi.u64", "setp.lt.s64", "shf.l.wrap.b32"]
)
def test_the_small_machine_does_the_same(name: str, spec: MachineSpec = SMALL) -> None:
    rng = random.Random(name)
    source = _kernel(name, dict(NAMES)[name])
    n_words = 2 * (len(dict(NAMES)[name]) - 1) * 2
    for _ in range(4):
        data = [_word(rng) for _ in range(n_words)]
        got = run_both(source, [data, [0] * 4], block=(2, 1, 1), spec=spec)
        assert got.blocks[1] == got.ptx[1]


def _constant(kind: str, rng: random.Random) -> str:
    value = _word(rng)
    if kind == "d":
        value |= _word(rng) << 32
    if kind == "h":
        value &= 0xFFFF
    return str(value)


@pytest.mark.parametrize(("name", "kinds"), NAMES, ids=[name for name, _ in NAMES])
def test_constant_operands_fold_to_the_same(name: str, kinds: str) -> None:
    rng = random.Random(name + "constant")
    moves = {"r": "mov.u32 %r", "d": "mov.u64 %d", "h": "mov.u16 %h"}
    for _ in range(2):
        lines = ["ld.param.u64 %d9, [p1];"]
        for n, kind in enumerate(kinds[1:], 2):
            if kind == "p":
                lines.append(f"setp.eq.u32 %p{n}, {rng.getrandbits(1)}, 0;")
            else:
                lines.append(f"{moves[kind]}{n}, {_constant(kind, rng)};")
        body = "\n".join([*lines, _instruction(name, kinds), RESULTS[kinds[0]], "ret;"])
        got = run_both(ptx_kernel(body), [[0], [0, 0]], spec=REFERENCE)
        assert got.blocks[1] == got.ptx[1]


@pytest.mark.parametrize("name", ["div.u32", "rem.u32", "div.s32", "rem.s32"])
def test_division_by_constants(name: str) -> None:
    rng = random.Random(name)
    for divisor in (1, 2, 3, 5, 6, 7, 10, 641, 2**16 + 1, 2**31 - 1, 2**31, 2**32 - 5, 2**32 - 1):
        body = f"""ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1];
        mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4;
        add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
        ld.global.u32 %r2, [%d1]; {name} %r3, %r2, {divisor}; st.global.u32 [%d2], %r3; ret;"""
        data = [_word(rng) for _ in range(12)]
        data += [divisor, divisor - 1, divisor + 1, 3 * divisor - 1]
        got = run_both(ptx_kernel(body), [data, [0] * 16], block=(16, 1, 1))
        assert got.blocks[1] == got.ptx[1]
