"""Random structured PTX: arithmetic in 16, 32 and 64 bits, guards, branches, loops, memory.

Threads share the input and each stores to its own part of the output, so there are no races. All
registers are written before they are read. Loops count down from a small number that may differ
between lanes.
"""

from __future__ import annotations

import random

N_INPUT = 16
N_OUTPUT = 8  # words a thread
N_REGISTERS = 8
MAX_DEPTH = 3
BINARY = ("add.s32", "sub.s32", "mul.lo.s32", "and.b32", "or.b32", "xor.b32", "min.s32", "max.u32",
          "mul.hi.u32", "div.u32", "rem.s32", "div.s32")  # fmt: skip
WIDE = ("add.s64", "sub.s64", "mul.lo.s64", "and.b64", "xor.b64", "min.s64", "max.u64")
HALF = ("add.s16", "sub.s16", "mul.lo.s16", "and.b16", "min.s16", "max.u16")
COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")
CONSTANTS = (0, 1, 2, 3, 5, 7, 31, 255, 256, 65535, 2147483647, 2147483648, 4294967295)


class Writer:
    """Writes one kernel body."""

    def __init__(self, seed: int, n_threads: int) -> None:
        self.rng = random.Random(seed)
        self.n_threads = n_threads
        self.lines: list[str] = []
        self.n_labels = 0
        self.n_loops = 0
        self.may_have_left = False  # a thread may have jumped to the end

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def label(self) -> str:
        self.n_labels += 1
        return f"L{self.n_labels}"

    def reg(self, kind: str = "r") -> str:
        return f"%{kind}{self.rng.randrange(N_REGISTERS) + 10}"

    def value(self) -> str:
        rng = self.rng
        return str(rng.choice(CONSTANTS)) if rng.random() < 0.3 else self.reg()

    def guard(self) -> str:
        if self.rng.random() < 0.75:
            return ""
        return f"@{self.rng.choice(('', '!'))}{self.reg('p')} "

    # --- statements

    def statement(self, depth: int) -> None:
        kinds = [self.word, self.word, self.word, self.wide, self.half, self.compare,
                 self.convert, self.load, self.store, self.shift, self.select,
                 self.atomic]  # fmt: skip
        if depth == 0 and not self.may_have_left and self.rng.random() < 0.2:
            self.warp()
        elif depth < MAX_DEPTH and self.rng.random() < 0.25:
            self.rng.choice((self.branch, self.branch, self.loop))(depth)
        else:
            self.rng.choice(kinds)()

    def word(self) -> None:
        name = self.rng.choice(BINARY)
        if name[:3] in ("div", "rem") and self.rng.random() < 0.7:
            name = "add.s32"
        self.emit(f"{self.guard()}{name} {self.reg()}, {self.reg()}, {self.value()};")

    def wide(self) -> None:
        a, b = self.reg("d"), self.reg("d")
        self.emit(f"{self.guard()}{self.rng.choice(WIDE)} {self.reg('d')}, {a}, {b};")

    def half(self) -> None:
        a, b = self.reg("h"), self.reg("h")
        self.emit(f"{self.guard()}{self.rng.choice(HALF)} {self.reg('h')}, {a}, {b};")

    def shift(self) -> None:
        name = self.rng.choice(("shl.b32", "shr.u32", "shr.s32"))
        amount = self.rng.choice((self.reg(), str(self.rng.randrange(40))))
        self.emit(f"{self.guard()}{name} {self.reg()}, {self.reg()}, {amount};")
        name = self.rng.choice(("shl.b64", "shr.u64", "shr.s64"))
        amount = self.rng.choice((self.reg(), str(self.rng.randrange(70))))
        self.emit(f"{name} {self.reg('d')}, {self.reg('d')}, {amount};")

    def compare(self) -> None:
        c = self.rng.choice(COMPARES)
        kind, type_ = self.rng.choice((("r", "s32"), ("r", "u32"), ("d", "s64"), ("h", "u16")))
        a, b = self.reg(kind), self.reg(kind)
        self.emit(f"{self.guard()}setp.{c}.{type_} {self.reg('p')}, {a}, {b};")

    def select(self) -> None:
        a, b = self.value(), self.reg()
        self.emit(f"{self.guard()}selp.b32 {self.reg()}, {a}, {b}, {self.reg('p')};")

    def convert(self) -> None:
        target, source = self.rng.sample(
            [("r", "u32"), ("r", "s32"), ("d", "s64"), ("h", "s16"), ("h", "u16")], 2
        )
        names = f"{target[1]}.{source[1]}"
        self.emit(f"{self.guard()}cvt.{names} {self.reg(target[0])}, {self.reg(source[0])};")

    def load(self) -> None:
        index = self.reg()
        self.emit(f"and.b32 %r1, {index}, {N_INPUT - 1};")
        self.emit("mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d0, %d1;")
        name, kind = self.rng.choice(
            (("u32", "r"), ("u8", "r"), ("s8", "r"), ("u16", "h"), ("s16", "r"))
        )
        self.emit(f"{self.guard()}ld.global.{name} {self.reg(kind)}, [%d1];")

    def store(self) -> None:
        place = 4 * self.rng.randrange(N_OUTPUT)
        if self.rng.random() < 0.5:
            index = self.reg()
            self.emit(f"and.b32 %r1, {index}, {N_OUTPUT - 1};")
            self.emit("mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d2, %d1;")
            address = "%d1"
        else:
            address = f"%d2+{place}"
        width = self.rng.choice(("u32", "u32", "u16", "u8"))
        self.emit(f"{self.guard()}st.global.{width} [{address}], {self.reg()};")

    def atomic(self) -> None:
        place = 4 * self.rng.randrange(N_OUTPUT)
        name = self.rng.choice(("add.u32", "max.s32", "xor.b32", "exch.b32", "inc.u32"))
        dst, value = self.reg(), self.value()
        self.emit(f"{self.guard()}atom.global.{name} {dst}, [%d2+{place}], {value};")

    def warp(self) -> None:
        """Where all threads are together: votes, barriers, and shuffles if all warps are full."""
        truth, dst = self.reg("p"), self.reg()
        lines = [
            f"vote.sync.ballot.b32 {dst}, {truth}, -1;",
            f"vote.sync.any.pred {self.reg('p')}, {truth}, -1;",
            f"vote.sync.all.pred {self.reg('p')}, !{truth}, -1;",
            f"match.any.sync.b32 {dst}, {self.reg()}, -1;",
            "bar.sync 0;",
        ]
        if self.n_threads % 4 == 0:
            for mode, clamp in (("up", 0x1C00), ("down", 0x1C1F), ("bfly", 0x1C1F),
                                ("idx", 0x1C1F), ("idx", 0x1E1F)):
                lines.append(
                    f"shfl.sync.{mode}.b32 {dst}|{self.reg('p')}, {self.reg()}, {self.value()}, "
                    f"{clamp}, -1;"
                )
        self.emit(self.rng.choice(lines))

    def branch(self, depth: int) -> None:
        other, end = self.label(), self.label()
        self.emit(f"@{self.rng.choice(('', '!'))}{self.reg('p')} bra {other};")
        self.block(depth + 1, self.rng.randrange(1, 5))
        if self.rng.random() < 0.1:
            self.may_have_left = True
            self.emit("bra DONE;")
        elif self.rng.random() < 0.6:
            self.emit(f"bra {end};")
            self.emit(f"{other}:")
            self.block(depth + 1, self.rng.randrange(1, 5))
            self.emit(f"{end}:")
            return
        self.emit(f"{other}:")

    def loop(self, depth: int) -> None:
        self.n_loops += 1
        counter, head, out = f"%r{30 + self.n_loops}", self.label(), self.label()
        test = f"%p{30 + self.n_loops}"
        self.emit(f"and.b32 {counter}, {self.reg()}, 3;")
        self.emit(f"{head}:")
        self.block(depth + 1, self.rng.randrange(1, 4))
        if self.rng.random() < 0.3:
            self.emit(f"@{self.reg('p')} bra {out};")
            self.block(depth + 1, 1)
        self.emit(f"sub.s32 {counter}, {counter}, 1;")
        self.emit(f"setp.ge.s32 {test}, {counter}, 0;")
        self.emit(f"@{test} bra {head};")
        self.emit(f"{out}:")

    def block(self, depth: int, count: int) -> None:
        for _ in range(count):
            self.statement(depth)

    def kernel(self, n_statements: int) -> str:
        """The whole kernel: registers set, the statements, every register folded into the out."""
        self.emit("ld.param.u64 %d0, [p0]; ld.param.u64 %d2, [p1]; mov.u32 %r0, %tid.x;")
        self.emit(f"mul.wide.u32 %d3, %r0, {4 * N_OUTPUT}; add.s64 %d2, %d2, %d3;")
        for n in range(10, 10 + N_REGISTERS):
            self.emit(f"ld.global.u32 %r{n}, [%d0+{4 * (n - 10)}];")
            if self.rng.random() < 0.5:
                self.emit(f"mad.lo.s32 %r{n}, %r0, {self.rng.choice(CONSTANTS)}, %r{n};")
            self.emit(f"cvt.s64.s32 %d{n}, %r{n}; cvt.u16.u32 %h{n}, %r{n};")
            self.emit(f"setp.lt.s32 %p{n}, %r{n}, {self.rng.choice(CONSTANTS[:8])};")
        self.block(0, n_statements)
        self.emit("DONE:")
        for n in range(10, 10 + N_REGISTERS):
            self.emit(f"cvt.u32.u64 %r1, %d{n}; xor.b32 %r{n}, %r{n}, %r1;")
            self.emit(f"shr.u64 %d{n}, %d{n}, 32; cvt.u32.u64 %r1, %d{n};")
            self.emit(f"add.s32 %r{n}, %r{n}, %r1;")
            self.emit(f"cvt.u32.u16 %r1, %h{n}; add.s32 %r{n}, %r{n}, %r1;")
            self.emit(f"@%p{n} add.s32 %r{n}, %r{n}, 1;")
            self.emit(f"st.global.u32 [%d2+{4 * (n - 10)}], %r{n};")
        self.emit("ret;")
        return "\n".join(self.lines)


def random_kernel(seed: int, n_threads: int, n_statements: int = 12) -> str:
    """The PTX of one kernel, the same for the same numbers."""
    body = Writer(seed, n_threads).kernel(n_statements)
    return f""".version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1)
{{
.reg .pred %p<99>; .reg .b16 %h<32>; .reg .b32 %r<99>; .reg .b64 %d<32>;
{body}
}}
"""


def random_input(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [
        rng.choice(CONSTANTS) if rng.random() < 0.5 else rng.getrandbits(rng.choice((4, 8, 32)))
        for _ in range(N_INPUT)
    ]
