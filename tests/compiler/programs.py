"""Random machine programs: every operation, guards, stores, branches, barriers, yields."""

from __future__ import annotations

import random
from dataclasses import dataclass

from qgpu.isa import (
    MASK32,
    Forward,
    Guard,
    Immediate,
    Instruction,
    MachineBlock,
    Op,
    Register,
    Source,
    Target,
)
from qgpu.machine import MachineSpec
from qgpu.tokens import Token, launch_tokens, memory_tokens, program_tokens

EDGES = (0, 1, 2, 15, 16, 31, 32, 33, 255, 256, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, MASK32)
NO_GUARD_DATA = (Op.ADDC, Op.SUBC, Op.PRMT)  # their C operand is data


@dataclass
class Program:
    """A machine program with its memory and its number of threads."""

    spec: MachineSpec
    blocks: list[MachineBlock]
    memory: list[int]
    n_threads: int

    @property
    def prompt(self) -> list[Token]:
        return [
            *program_tokens(self.spec, self.blocks),
            *memory_tokens(self.spec, self.memory),
            *launch_tokens(self.spec, self.n_threads),
        ]


def word(rng: random.Random) -> int:
    """A 32-bit pattern: random, small, negative, an edge, a power of two, of random width."""
    return rng.choice(
        (
            lambda: rng.getrandbits(32),
            lambda: rng.randrange(40),
            lambda: -rng.randrange(1, 300) & MASK32,
            lambda: rng.choice(EDGES),
            lambda: 1 << rng.randrange(32),
            lambda: rng.getrandbits(rng.randrange(1, 33)),
        )
    )()


class _Maker:
    def __init__(self, spec: MachineSpec, rng: random.Random, n_blocks: int) -> None:
        self.spec, self.rng, self.n_blocks = spec, rng, n_blocks
        self.serial = [rng.random() < 0.15 for _ in range(n_blocks)]

    def source(self, stage: int) -> Source:
        pick = self.rng.random()
        if stage and pick < 0.35:
            return Forward(self.rng.randrange(stage))
        if pick < 0.75:
            return Register(self.rng.randrange(self.spec.n_registers))
        return Immediate(word(self.rng))

    def guard(self, stage: int) -> Guard | None:
        source = self.source(stage)
        if isinstance(source, Immediate):
            return None
        return Guard(source, self.rng.random() < 0.5)

    def target(self, block: int) -> Target:
        """Only forward, so that every program ends."""
        to = self.rng.randrange(block + 1, self.n_blocks + 1)
        if to == self.n_blocks:
            return Target(exit=True)
        waits = self.rng.choices(("", "barrier", "yield"), (6, 1, 1))[0]
        return Target(
            to, barrier=waits == "barrier", serial=self.serial[to], yields=waits == "yield"
        )

    def address(self, stage: int) -> tuple[Source, Source]:
        rng, size = self.rng, self.spec.n_bytes
        if rng.random() < 0.6:
            return Immediate(rng.randrange(size + 8)), Immediate(rng.randrange(12))
        if rng.random() < 0.7:
            return Register(1), Immediate(rng.randrange(size))
        return self.source(stage), self.source(stage)

    def instruction(self, stage: int, has_store: bool) -> Instruction:
        rng = self.rng
        op = rng.choice([op for op in Op if not (has_store and op is Op.ST)])
        a, b, c = (self.source(stage) for _ in range(3))
        if op in (Op.LD, Op.ST):
            a, b = self.address(stage)
        elif op in (Op.SHL, Op.SHR, Op.SAR) and rng.random() < 0.7:
            b = Immediate(rng.randrange(40))
        guarded = rng.random() < 0.35 and op not in NO_GUARD_DATA
        guard = self.guard(stage) if guarded else None
        need = op.info.operands
        writes = op is not Op.ST and rng.random() < 0.6
        return Instruction(
            op,
            a if "A" in need else None,
            b if "B" in need else None,
            c if "C" in need or guard else None,
            guard,
            rng.randrange(1, self.spec.n_registers) if writes else 0,
        )

    def block(self, index: int) -> MachineBlock:
        instructions: list[Instruction] = []
        for stage in range(self.rng.randrange(self.spec.n_stages + 1)):
            has_store = any(i.op is Op.ST for i in instructions)
            instructions.append(self.instruction(stage, has_store))
        branch = self.guard(len(instructions)) if self.rng.random() < 0.5 else None
        taken = self.target(index) if branch else None
        return MachineBlock(tuple(instructions), self.target(index), branch, taken)


def random_program(spec: MachineSpec, rng: random.Random, max_blocks: int = 14) -> Program:
    """A program that ends, on random memory, with 1 to 9 threads; r1 starts as 4 * thread."""
    n = rng.randrange(2, min(max_blocks, spec.n_blocks))
    make = _Maker(spec, rng, n)
    start = MachineBlock(
        (Instruction(Op.TID), Instruction(Op.SHL, Forward(0), Immediate(2), dst=1)),
        Target(1, serial=make.serial[1]),
    )
    blocks = [start, *(make.block(index) for index in range(1, n))]
    low = [0] * 4 + [word(rng) for _ in range(20)]
    memory = low + [0] * (spec.n_words - len(low))
    return Program(spec, blocks, memory, rng.randrange(1, min(spec.n_threads, 9) + 1))
