"""Rules of the PTX instructions that pick bits, bytes and fields apart (see ``ptx_alu``)."""

from __future__ import annotations

from collections.abc import Callable

from qgpu.interp.ptx_types import BITS, Rule, as_type, pattern


def reverse(a: int, type_: str) -> int:
    return int(f"{a:0{BITS[type_]}b}"[::-1], 2)


def bfind(mods: list[str], type_: str) -> Rule:
    def compute(a: int) -> int:
        top = (~a if a < 0 else a).bit_length() - 1
        if top < 0:
            return -1
        return BITS[type_] - 1 - top if "shiftamt" in mods else top

    return Rule("u32", (type_,), compute)


def shf(mods: list[str], type_: str) -> Rule:
    def compute(low: int, high: int, c: int) -> int:
        n = min(c, 32) if "clamp" in mods else c & 31
        both = high << 32 | low
        return both << n >> 32 if "l" in mods else both >> n

    return Rule("b32", ("b32", "b32", "u32"), compute)


def bfe(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int, c: int) -> int:
        bits = BITS[type_]
        position, length = b & 0xFF, c & 0xFF
        raw = pattern(a, bits)
        if type_[0] == "u" or length == 0:
            sign = 0
        else:
            sign = raw >> min(position + length - 1, bits - 1) & 1
        field_ = pattern(raw >> position, length) if position < bits else 0
        present = max(0, min(length, bits - position))
        return field_ | (-1 << present if sign else 0) if length else 0

    return Rule(type_, (type_, "u32", "u32"), compute)


def bfi(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int, c: int, d: int) -> int:
        position, length = c & 0xFF, d & 0xFF
        mask = pattern(-1, length) << position
        return (b & ~mask) | (a << position & mask)

    return Rule(type_, (type_, type_, "u32", "u32"), compute)


def bmsk(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int) -> int:
        if "wrap" in mods:
            a, b = a & 31, b & 31
        return pattern(-1, min(b, 32)) << min(a, 32)

    return Rule("b32", ("b32", "b32"), compute)


def szext(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int) -> int:
        n = b & 31 if "wrap" in mods else b
        if n >= 32:
            return a
        low = pattern(a, n)
        return low - (1 << n) if type_ == "s32" and n and low >> (n - 1) else low

    return Rule(type_, (type_, "u32"), compute)


def fns(mods: list[str], type_: str) -> Rule:
    def compute(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if mask >> base & 1 else -1
        step = 1 if offset > 0 else -1
        position, left = base, abs(offset)
        while 0 <= position < 32:
            left -= mask >> position & 1
            if left == 0:
                return position
            position += step
        return -1

    return Rule("b32", ("b32", "u32", "s32"), compute)


def lop3(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int, c: int, table: int) -> int:
        out = 0
        for index in range(8):
            if table >> index & 1:
                terms = [x if index >> n & 1 else ~x for x, n in ((a, 2), (b, 1), (c, 0))]
                out |= terms[0] & terms[1] & terms[2]
        return out

    return Rule("b32", ("b32", "b32", "b32", "u32"), compute)


PRMT_MODES: dict[str, Callable[[int], list[int]]] = {
    "f4e": lambda n: [n, n + 1, n + 2, n + 3],
    "b4e": lambda n: [n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8],
    "rc8": lambda n: [n, n, n, n],
    "ecl": lambda n: [max(n, i) for i in range(4)],
    "ecr": lambda n: [min(n, i) for i in range(4)],
    "rc16": lambda n: [(n & 1) * 2 + (i & 1) for i in range(4)],
}


def prmt(mods: list[str], type_: str) -> Rule:
    mode = next((PRMT_MODES[mod] for mod in mods if mod in PRMT_MODES), None)

    def compute(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        if mode is not None:
            return int.from_bytes(bytes(source[n & 7] for n in mode(c & 3)), "little")
        out = 0
        for n in range(4):
            byte = source[c >> 4 * n & 7]
            if c >> 4 * n & 8:
                byte = 0xFF if byte & 0x80 else 0
            out |= byte << 8 * n
        return out

    return Rule("b32", ("b32", "b32", "b32"), compute)


def dot(width: int) -> Callable[[list[str], str], Rule]:
    """dp4a, dp2a: the products of the parts of a with bytes of b, added to c."""

    def make(mods: list[str], type_: str) -> Rule:
        a_type, b_type = mods[-1], type_
        first = 2 if "hi" in mods else 0
        parts = 32 // width

        def compute(a: int, b: int, c: int) -> int:
            for n in range(parts):
                left = as_type(a >> width * n, f"{a_type[0]}{width}")
                right = as_type(b >> 8 * (n + first), f"{b_type[0]}8")
                c += left * right
            return c

        result = "u32" if (a_type, b_type) == ("u32", "u32") else "s32"
        return Rule(result, ("b32", "b32", result), compute)

    return make
