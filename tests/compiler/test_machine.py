"""The circuit against the block interpreter: every token and the memory, on the executor."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from qgpu.compiler.evaluate import CompactLayer, Executor
from qgpu.compiler.plan import Widths, build_plan
from qgpu.errors import LaunchError
from qgpu.interp.machine import run_blocks
from qgpu.isa import Forward, Guard, Immediate, Instruction, MachineBlock, Op, Register, Target
from qgpu.machine import REFERENCE, SMALL, MachineSpec
from qgpu.tokens import Halt, Token, launch_tokens, memory_tokens, program_tokens
from tests.compiler.programs import EDGES, Program, random_program

QWEN_2B = Widths(2048, 6144, 16, 16, 128, 4, 1e-6)


@cache
def executor(spec: MachineSpec) -> Executor:
    return Executor.build(build_plan(spec, QWEN_2B))


def first_difference(program: Program, machine: Executor) -> str:
    """Feeds the interpreter's trace and names the first token that the weights would not write."""
    run = run_blocks(program.spec, program.blocks, program.memory, program.n_threads)
    want, prompt = list(run.tokens), program.prompt
    machine.reset()
    rows = machine.feed([*prompt, *want[:-1]])[len(prompt) - 1 :]
    for place, token in enumerate(want):
        got = machine.named(rows[place])
        if got != token:
            return f"token {place}: {got}, not {token}"
    return "" if machine.memory().tolist() == list(run.memory) else "memory"


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int) -> None:
    assert first_difference(random_program(SMALL, random.Random(seed)), executor(SMALL)) == ""


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_on_the_reference_machine(seed: int) -> None:
    program = random_program(REFERENCE, random.Random(1000 + seed), max_blocks=8)
    assert first_difference(program, executor(REFERENCE)) == ""


def one_op(spec: MachineSpec, op: Op, words: list[int]) -> Program:
    """Blocks that load three words a thread and store what the op makes of them."""
    loads = [Instruction(Op.LD, Register(1), Immediate(16 * i), dst=2 + i) for i in range(3)]
    blocks = [
        MachineBlock(
            (Instruction(Op.TID), Instruction(Op.SHL, Forward(0), Immediate(2), dst=1)), Target(1)
        ),
        *(MachineBlock((load,), Target(2 + i)) for i, load in enumerate(loads)),
        MachineBlock((Instruction(op, Register(2), Register(3), Register(4), dst=5),), Target(5)),
        MachineBlock(
            (Instruction(Op.ST, Register(1), Immediate(48), Register(5)),), Target(exit=True)
        ),
    ]
    return Program(spec, blocks, words + [0] * (spec.n_words - len(words)), 4)


@pytest.mark.parametrize(
    "op", [op for op in Op if op not in (Op.LD, Op.ST)], ids=lambda op: op.name
)
def test_each_operation_on_edges(op: Op) -> None:
    """Four lanes at once with edge operands, through registers, memory and back."""
    rng = random.Random(op.name)
    words = [rng.choice(EDGES) for _ in range(12)]
    if op is Op.MULHS:
        words[:8] = [0x80000000, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF] * 2
    assert first_difference(one_op(SMALL, op, words), executor(SMALL)) == ""


def test_generation_by_its_own_tokens() -> None:
    """Written greedily, each token fed back, as the model does it."""
    program = one_op(SMALL, Op.MUL, [3, 5, 7, 0xFFFFFFFF, 2, 4, 6, 8, 0, 0, 0, 0])
    want = list(run_blocks(SMALL, program.blocks, program.memory, 4).tokens)
    seen: list[Token] = []
    run = executor(SMALL).run(program.prompt, 100, seen.append)
    assert run.trace == want == seen
    assert run.memory[12:16].tolist() == [6, 20, 42, 0xFFFFFFF8]


def test_a_second_launch_on_the_same_state() -> None:
    """Go starts over: nothing of an earlier launch's scheduling is left."""
    machine = executor(SMALL)
    program = random_program(SMALL, random.Random(5))
    run = run_blocks(SMALL, program.blocks, program.memory, program.n_threads)
    stop = MachineBlock(
        (Instruction(Op.ST, Immediate(8), Immediate(0), Immediate(7)),), Target(exit=True)
    )
    second = [*program_tokens(SMALL, [stop]), *launch_tokens(SMALL, 1)]
    machine.reset()
    machine.feed([*program.prompt, *run.tokens])
    rows = machine.feed(second)
    written = [machine.named(rows[-1])]
    while not isinstance(written[-1], Halt):
        written.append(machine.named(machine.feed([written[-1]])[-1]))
    assert written == list(run_blocks(SMALL, [stop], list(run.memory), 1).tokens)


def test_an_endless_kernel_spends_its_budget() -> None:
    loop = MachineBlock((Instruction(Op.MOV, Immediate(1), dst=1),), Target(0))
    prompt = [*program_tokens(SMALL, [loop]), *launch_tokens(SMALL, 1)]
    with pytest.raises(LaunchError, match="not ended after 20 tokens"):
        executor(SMALL).run(prompt, 20)


def test_gates_are_small_integers() -> None:
    """The bound behind every circuit: a gate is an integer times GAIN, at most 256 where it is on,
    so bf16 holds it exactly; keys, queries, values and z likewise."""
    program = random_program(SMALL, random.Random(77))
    run = run_blocks(SMALL, program.blocks, program.memory, program.n_threads)
    machine = executor(SMALL)
    machine.reset()
    x = np.ascontiguousarray(
        machine.embedding[[_offset(t) for t in [*program.prompt, *run.tokens]]].T
    )
    for layer, plan in zip(machine.layers, machine.plan.layers, strict=True):
        for matrix, norm in ((layer.qkv, layer.input_norm), (layer.z, layer.input_norm)):
            _assert_integers(plan.name, matrix @ layer.norm(x, norm) / 128)
        mixed = x
        if layer.n_heads:
            before = layer.table.copy(), layer.history.copy()
            mixed = x + layer._mix(layer.norm(x, layer.input_norm))
            layer.table, layer.history = before
        gates = layer.gate @ layer.norm(mixed, layer.post_norm) / 128
        _assert_integers(plan.name, gates)
        assert gates.max(initial=0) <= 256, plan.name
        x = layer.forward(x)


def _offset(token: Token) -> int:
    from qgpu.tokens import offset_of

    return offset_of(SMALL, token)


def _assert_integers(name: str, x: np.ndarray) -> None:
    assert (x == np.round(x)).all(), name


def live_neurons(layer: CompactLayer, fed: Callable[[], object]) -> list[int]:
    """Neurons that let something through while ``fed`` runs."""
    seen: set[int] = set()
    plain = layer._mlp

    def watched(h: np.ndarray) -> np.ndarray:
        seen.update(np.flatnonzero((layer.gate @ h > 0).any(1)).tolist())
        return plain(h)

    layer._mlp = watched  # type: ignore[method-assign]
    fed()
    del layer._mlp
    return sorted(seen)


@pytest.mark.parametrize("name", ["assemble", "stage0.sum", "say", "name", "spell", "choose"])
def test_a_flipped_weight_is_caught(name: str) -> None:
    """A planted fault: the gate of a neuron that the launch needs, negated; one at a time."""
    machine = Executor.build(build_plan(SMALL, QWEN_2B))
    index = [layer.name for layer in machine.plan.layers].index(name)
    layer, program = machine.layers[index], one_op(SMALL, Op.ADD, list(range(100, 1300, 100)))
    live = live_neurons(layer, lambda: first_difference(program, machine))
    caught = 0
    for neuron in random.Random(name).sample(live, min(len(live), 6)):
        row = slice(layer.gate.indptr[neuron], layer.gate.indptr[neuron + 1])
        layer.gate.data[row] *= -1
        caught += bool(first_difference(program, machine))
        layer.gate.data[row] *= -1
    assert caught
    assert first_difference(program, machine) == ""


def test_a_flipped_bit_of_the_state_is_caught() -> None:
    program = one_op(SMALL, Op.ADD, list(range(1, 13)))
    run = run_blocks(SMALL, program.blocks, program.memory, 4)
    machine = executor(SMALL)
    machine.reset()
    machine.feed([*program.prompt, *run.tokens])
    assert machine.memory().tolist() == list(run.memory)
    place = machine.plan.memory_place
    machine.layers[place.layer].table[place.heads[0], 3, 0] += 128
    assert machine.memory().tolist() != list(run.memory)


def test_memory_is_laid_by_the_same_tokens_that_store() -> None:
    machine = executor(SMALL)
    words = [random.Random(3).getrandbits(32) for _ in range(SMALL.n_words)]
    machine.reset()
    machine.feed(memory_tokens(SMALL, words))
    assert machine.memory().tolist() == words


def test_guards_select() -> None:
    """selp: a guarded MOV takes C where the guard is false."""
    blocks = [
        MachineBlock(
            (
                Instruction(Op.TID),
                Instruction(Op.MOV, Immediate(7), None, Immediate(9), Guard(Forward(0)), dst=2),
            ),
            Target(1),
        ),
        MachineBlock(
            (Instruction(Op.TID), Instruction(Op.SHL, Forward(0), Immediate(2), dst=1)), Target(2)
        ),
        MachineBlock(
            (Instruction(Op.ST, Register(1), Immediate(8), Register(2)),), Target(exit=True)
        ),
    ]
    program = Program(SMALL, blocks, [0] * SMALL.n_words, 4)
    assert first_difference(program, executor(SMALL)) == ""
    assert executor(SMALL).memory()[2:6].tolist() == [9, 7, 9, 7]
