"""How the families make their cases: C integer arithmetic in Python, and common kernel frames."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cases import Array, Case, dim

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class CType:
    """An integer type of CUDA C: its name there and its NumPy form."""

    short: str
    c: str
    dtype: np.dtype[Any]

    @property
    def bits(self) -> int:
        return 8 * self.dtype.itemsize

    @property
    def signed(self) -> bool:
        return self.dtype.kind == "i"

    def wrap(self, value: int) -> int:
        """The value as the type holds it (two's complement)."""
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - int(self.signed))) - 1

    def array(self, values: Sequence[int]) -> Array:
        return np.array([self.wrap(int(v)) for v in values], dtype=self.dtype)


def _ctype(short: str, c: str, dtype: type) -> CType:
    return CType(short, c, np.dtype(dtype))


S8, U8 = _ctype("s8", "signed char", np.int8), _ctype("u8", "unsigned char", np.uint8)
S16, U16 = _ctype("s16", "short", np.int16), _ctype("u16", "unsigned short", np.uint16)
S32, U32 = _ctype("s32", "int", np.int32), _ctype("u32", "unsigned", np.uint32)
S64 = _ctype("s64", "long long", np.int64)
U64 = _ctype("u64", "unsigned long long", np.uint64)
TYPES = (S8, U8, S16, U16, S32, U32, S64, U64)


def promoted(ctype: CType) -> CType:
    """The type that C computes in: int for anything narrower."""
    return ctype if ctype.bits >= 32 else S32


def int_div(a: int, b: int) -> int:
    """C's quotient: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def int_rem(a: int, b: int) -> int:
    """C's remainder: the sign of the dividend."""
    return a - b * int_div(a, b)


def rng(name: str) -> np.random.Generator:
    """A generator of its own for each case, the same in every run."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def random_values(name: str, ctype: CType, n: int) -> list[int]:
    """n values over the whole range of the type."""
    bits = rng(name).integers(0, 1 << 32, (n, 2), dtype=np.uint64)
    return [ctype.wrap(int(high) << 32 | int(low)) for high, low in bits]


def i32(*values: int) -> Array:
    return S32.array(values)


def u32(*values: int) -> Array:
    return U32.array(values)


def zeros(n: int, ctype: CType = S32) -> Array:
    return np.zeros(n, ctype.dtype)


def case(
    name: str,
    source: str,
    args: Sequence[Array | int],
    expect: Mapping[int, Array | Sequence[int]],
    *,
    grid: Size = 1,
    block: Size = 1,
    shared: int = 0,
    kind: str = "cuda",
    kernel: str = "k",
    warp_sensitive: bool = False,
) -> Case:
    """A case whose kernel is called ``k``; expected lists take the form of their argument."""
    finals: dict[int, Array] = {}
    for index, values in expect.items():
        given = args[index]
        assert isinstance(given, np.ndarray)
        finals[index] = np.array(values, dtype=given.dtype)
    return Case(name, source.strip() + "\n", kernel, dim(grid), dim(block), tuple(args), finals,
                shared, kind, warp_sensitive)  # fmt: skip


def elementwise(
    name: str,
    inputs: Sequence[tuple[CType, Sequence[int]]],
    out: CType,
    expression: str,
    model: Callable[..., int],
    *,
    before: str = "",
    body: str = "",
    block: int | None = None,
) -> Case:
    """``out[t] = expression`` with x, y, z the elements t of the inputs; model on Python ints.

    One thread an element (in CUDA blocks of at most 8 threads).
    """
    n = len(inputs[0][1])
    block = block or min(n, 8)
    assert n % block == 0, name
    names = "xyz"[: len(inputs)]
    params = [f"const {t.c} *{v}s" for v, (t, _) in zip(names, inputs, strict=True)]
    loads = " ".join(f"{t.c} {v} = {v}s[t];" for v, (t, _) in zip(names, inputs, strict=True))
    source = f"""
{before}
__global__ void k({", ".join(params)}, {out.c} *out) {{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    {loads}
    {body}
    out[t] = {expression};
}}"""
    results = [out.wrap(int(model(*row))) for row in zip(*(v for _, v in inputs), strict=True)]
    args = [t.array(values) for t, values in inputs]
    return case(name, source, [*args, zeros(n, out)], {len(args): results},
                grid=n // block, block=block)  # fmt: skip


PTX_HEAD = ".version 7.8\n.target sm_75\n.address_size 64\n"


def ptx_elementwise(
    name: str,
    inputs: Sequence[tuple[CType, Sequence[int]]],
    out: CType,
    code: str,
    model: Callable[..., int],
    *,
    registers: str = "",
) -> Case:
    """PTX text: ``code`` computes %d from %x, %y, %z, one thread an element.

    Operands of 8 bits come in 16-bit registers, extended by their sign. Free for ``code``:
    predicates %p0-3, %h0-3 (16 bits), %r4-9 (32 bits), %rd5-9 (64 bits); %r0 is the thread.
    """
    n = len(inputs[0][1])
    names = "xyz"[: len(inputs)]
    lines = []
    for place, (v, (ctype, _)) in enumerate(zip(names, inputs, strict=True)):
        size = ctype.bits // 8
        lines += [
            f"ld.param.u64 %rd0, [p{place}];",
            f"mad.wide.u32 %rd0, %r0, {size}, %rd0;",
            f"ld.global.{ctype.short} %{v}, [%rd0];",
        ]
    declared = [f".reg .b{max(t.bits, 16)} %{v};" for v, (t, _) in zip(names, inputs, strict=True)]
    params = ", ".join(f".param .u64 p{place}" for place in range(len(inputs) + 1))
    store = f"st.global.b{out.bits} [%rd1], %d;"
    source = f"""{PTX_HEAD}
.visible .entry k({params})
{{
.reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<10>; .reg .b64 %rd<10>;
{" ".join(declared)} .reg .b{max(out.bits, 16)} %d;
{registers}
mov.u32 %r0, %tid.x;
{chr(10).join(lines)}
ld.param.u64 %rd1, [p{len(inputs)}];
mad.wide.u32 %rd1, %r0, {out.bits // 8}, %rd1;
{code}
{store}
ret;
}}"""
    results = [out.wrap(int(model(*row))) for row in zip(*(v for _, v in inputs), strict=True)]
    args = [t.array(values) for t, values in inputs]
    return case(name, source, [*args, zeros(n, out)], {len(args): results}, block=n,
                kind="ptx")  # fmt: skip
