"""Random CUDA kernels whose results C++ and CUDA define: the same on every correct machine.

A kernel reads ``in``, keeps a few unsigned variables, and mixes branches, loops with break and
continue, switches, local arrays, sub-word and 64-bit values, function calls, atomics and locks
whose order cannot show, and (only where all threads come by) barriers with shared memory, shuffles
of width 4, also by lanes in different rounds of a loop, and threads that wait for their turn.
Arithmetic is unsigned; signed values appear only where they cannot overflow.
"""

from __future__ import annotations

import random

import numpy as np

from tests.cases import Case
from tests.corpus.build import case

N_VARIABLES = 4
BLOCKS = (1, 2, 3, 4, 4, 6, 8, 8, 12)
ATOMICS = ("Add", "Xor", "Or", "Max", "Min", "And")  # one for each word of ``acc``
NARROW = ("signed char", "short", "unsigned char", "unsigned short")
LOCK, SUM = len(ATOMICS), len(ATOMICS) + 1  # words of ``acc`` behind those
LOCKED = [
    """{{
    bool done = false;
    while (!done)
        if (atomicCAS(&acc[{lock}], 0u, 1u) == 0u) {{
            ((volatile unsigned *)acc)[{sum}] += {value};
            __threadfence();
            atomicExch(&acc[{lock}], 0u);
            done = true;
        }}
}}""",
    """{{
    unsigned x = {value};
    while (atomicExch(&acc[{lock}], 1u)) ;
    __threadfence();
    ((volatile unsigned *)acc)[{sum}] += x;
    __threadfence();
    atomicExch(&acc[{lock}], 0u);
}}""",
]
TURN = """while (turn[0] % {n} != t) ;
turn[1] = turn[1] * 3u + {value};
{target} ^= turn[1];
__threadfence_block();
turn[0] = turn[0] + 1u;"""
FUNCTIONS = """
__device__ __noinline__ unsigned mix(unsigned a, unsigned b) { return (a ^ b >> 3) * 5u + b; }
__device__ unsigned pick(unsigned a, unsigned b, unsigned c) { return c & 1 ? a : b; }
"""


class Generator:
    """Writes one kernel; every choice comes from ``rng``."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.block = rng.choice(BLOCKS)
        self.grid = rng.choice((1, 1, 1, 2, 3))
        self.lines: list[str] = []
        self.depth = 0
        self.n_loops = 0
        self.in_loop = False
        self.budget = rng.randint(4, 12)

    # expressions

    def leaf(self) -> str:
        rng = self.rng
        if rng.random() < 0.7:
            return f"v{rng.randrange(N_VARIABLES)}"
        if rng.random() < 0.3:
            return rng.choice(("t", "n", "blockIdx.x"))
        edge = rng.choice((0, 1, 2, 7, 31, 255, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
        return f"{rng.choice((edge, rng.randrange(100), rng.getrandbits(32)))}u"

    def expression(self, depth: int = 2) -> str:
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            return self.leaf()
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        forms = [
            f"({a} {rng.choice('+-*&|^')} {b})",
            f"({a} {rng.choice('+-*&|^')} {b})",
            f"({a} {rng.choice(('<<', '>>'))} ({b} & 31))",
            f"(unsigned)((int){a} >> ({b} & 31))",
            f"({a} {rng.choice('/%')} ({b} | 1))",
            f"(unsigned)((int){a} {rng.choice('/%')} (int)(({b} & 0xff) + 1))",
            f"({self.condition(0)} ? {a} : {b})",
            f"{rng.choice(('min', 'max', 'mix'))}({a}, {b})",
            f"pick({a}, {b}, {self.leaf()})",
            f"(unsigned)({rng.choice(NARROW)}){a}",
            f"(unsigned){rng.choice(('__popc', '__clz', '__ffs', '__brev'))}({a})",
            f"__umulhi({a}, {b})",
            f"(unsigned)(((unsigned long long){a} * {b} + {self.leaf()}) >> {rng.randrange(33)})",
            f"__funnelshift_{rng.choice(('l', 'r'))}({a}, {b}, {self.leaf()})",
            f"~{a}",
        ]
        return rng.choice(forms)

    def condition(self, depth: int = 1) -> str:
        rng = self.rng
        a, b = self.expression(depth), self.expression(depth)
        if rng.random() < 0.2:
            return f"((int){a} {rng.choice(('<', '<=', '>', '>='))} (int){b})"
        simple = f"({a} {rng.choice(('<', '<=', '>', '>=', '==', '!='))} {b})"
        if depth and rng.random() < 0.3:
            return f"({simple} {rng.choice(('&&', '||'))} {self.condition(0)})"
        return rng.choice((simple, simple, f"({a} & {1 << rng.randrange(5)})"))

    # statements

    def emit(self, line: str) -> None:
        self.lines.append("    " * (self.depth + 1) + line)

    def statement(self, uniform: bool) -> None:
        """One statement; ``uniform``: all threads of the block come by."""
        rng = self.rng
        self.budget -= 1
        choices = [self.assign] * 6 + [self.branch, self.loop, self.switch, self.atomic]
        choices += [self.array, self.lock] + ([self.leave] if self.in_loop else [])
        if uniform:
            choices += [self.exchange, self.shuffle, self.uniform_loop, self.turn]
        if self.depth > 2 or self.budget <= 0:
            choices = [self.assign]
        rng.choice(choices)()

    def body(self, uniform: bool = False) -> None:
        self.depth += 1
        for _ in range(self.rng.randint(1, 3)):
            self.statement(uniform)
        self.depth -= 1

    def assign(self) -> None:
        target = f"v{self.rng.randrange(N_VARIABLES)}"
        self.emit(f"{target} {self.rng.choice(('=', '=', '+=', '^=', '-='))} {self.expression()};")

    def branch(self) -> None:
        self.emit(f"if ({self.condition()}) {{")
        self.body()
        if self.rng.random() < 0.6:
            self.emit("} else {")
            self.body()
        self.emit("}")

    def loop(self) -> None:
        """A trip count that depends on the lane, at most 4."""
        i, outer = f"i{self.n_loops}", self.in_loop
        self.n_loops += 1
        pragma = self.rng.choice(("#pragma unroll 1", ""))
        if pragma:
            self.emit(pragma)
        self.emit(f"for (unsigned {i} = 0; {i} < ({self.leaf()} & 3) + 1; {i}++) {{")
        self.in_loop = True
        self.body()
        self.in_loop = outer
        self.emit(f"    v{self.rng.randrange(N_VARIABLES)} += {i};")
        self.emit("}")

    def uniform_loop(self) -> None:
        """The same trip count in all threads, so that barriers may stand inside."""
        i = f"i{self.n_loops}"
        self.n_loops += 1
        self.emit(f"for (unsigned {i} = 0; {i} < (n & 1) + {self.rng.randint(1, 2)}; {i}++) {{")
        self.body(uniform=True)
        self.emit("}")

    def leave(self) -> None:
        self.emit(f"if ({self.condition(0)}) {self.rng.choice(('break', 'continue'))};")

    def switch(self) -> None:
        n_arms, outer = self.rng.randint(2, 6), self.in_loop
        self.emit(f"switch ({self.leaf()} % {n_arms + 1}) {{")
        self.in_loop = False  # a break here would leave the switch
        for arm in range(n_arms):
            self.emit(f"case {arm}:")
            self.depth += 1
            self.assign()
            if self.rng.random() < 0.8:
                self.emit("break;")
            self.depth -= 1
        self.emit("default:")
        self.depth += 1
        self.assign()
        self.depth -= 1
        self.emit("}")
        self.in_loop = outer

    def atomic(self) -> None:
        word = self.rng.randrange(len(ATOMICS))
        self.emit(f"atomic{ATOMICS[word]}(&acc[{word}], {self.expression(1)});")

    def lines_of(self, text: str) -> None:
        for line in text.splitlines():
            self.emit(line)

    def lock(self) -> None:
        form = self.rng.choice(LOCKED)
        self.lines_of(form.format(lock=LOCK, sum=SUM, value=self.expression(1)))

    def turn(self) -> None:
        """The threads of a CUDA block one after the other."""
        target = f"v{self.rng.randrange(N_VARIABLES)}"
        self.lines_of(TURN.format(n=self.block, value=self.expression(1), target=target))

    def array(self) -> None:
        self.emit("{")
        self.emit(f"    {self.rng.choice(('unsigned', 'unsigned char', 'unsigned short'))} "
                  f"a[4] = {{(unsigned char)v0, 1, (unsigned char)v1, 3}};")  # fmt: skip
        self.emit(f"    a[{self.leaf()} & 3] = {self.expression(1)};")
        self.emit(f"    v{self.rng.randrange(N_VARIABLES)} ^= a[{self.leaf()} & 3];")
        self.emit("}")

    def exchange(self) -> None:
        n = self.block
        self.emit("__syncthreads();")
        self.emit(f"s[t] = {self.expression(1)};")
        self.emit("__syncthreads();")
        target = f"v{self.rng.randrange(N_VARIABLES)}"
        self.emit(f"{target} += s[(t + {self.rng.randrange(n)}) % {n}];")

    def shuffle(self) -> None:
        """Lanes of groups of 4; a block that is no multiple of 4 has sources that do not exist."""
        if self.block % 4:
            self.assign()
            return
        kind, by = self.rng.choice(("", "_up", "_down", "_xor")), self.rng.randrange(4)
        target = f"v{self.rng.randrange(N_VARIABLES)}"
        if self.rng.random() < 0.3:
            i = f"i{self.n_loops}"
            self.n_loops += 1
            self.emit(f"for (unsigned {i} = 0; {i} < 4; {i}++) if ({i} == (t & 3))")
        self.emit(f"{target} ^= __shfl{kind}_sync(0xffffffffu, {self.expression(1)}, {by}, 4);")

    def source(self) -> str:
        for _ in range(self.rng.randint(3, 6)):
            self.statement(uniform=True)
        body = "\n".join(self.lines)
        starts = ("in[at]", "in[at] * 3u + t", "t + 1u", f"n ^ {self.rng.getrandbits(16)}u")
        declared = "\n".join(f"    unsigned v{n} = {value};" for n, value in enumerate(starts))
        return f"""{FUNCTIONS}
__global__ void k(const unsigned *in, unsigned *out, unsigned *acc, unsigned n) {{
    __shared__ unsigned s[{self.block}];
    __shared__ volatile unsigned turn[2];
    unsigned t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
{declared}
    s[t] = v0;
    if (t == 0) turn[0] = turn[1] = 0;
    __syncthreads();
{body}
    out[2 * at] = v0 + v1 * 3u;
    out[2 * at + 1] = v2 ^ v3;
}}
"""


def fuzz_case(seed: int) -> Case:
    """The program of one seed; what it expects is unknown until an interpreter has run it."""
    rng = random.Random(seed)
    generator = Generator(rng)
    source = generator.source()
    n = generator.grid * generator.block
    data = [rng.choice((rng.getrandbits(32), rng.randrange(9))) for _ in range(n)]
    acc = [rng.getrandbits(32) for _ in ATOMICS] + [0, 0]
    args = [np.array(data, np.uint32), np.zeros(2 * n, np.uint32), np.array(acc, np.uint32),
            rng.randrange(8)]  # fmt: skip
    return case(f"fuzz_{seed}", source, args, {}, grid=generator.grid, block=generator.block)
