"""The block interpreter: guards, forwarding, stores, scheduling, exact traces, refusals."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from qgpu.errors import CompileError, DeadlockError, LaunchError, LimitError
from qgpu.interp.machine import Machine, StageEvent, run_blocks
from qgpu.isa import (
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
from qgpu.machine import REFERENCE, SMALL
from qgpu.tokens import Barrier, Exec, Halt, Mem, Resume, Sign, Token, Uniform, Val, tokens

EXIT = Target(exit=True)
R1, R2, R3 = Register(1), Register(2), Register(3)


def imm(value: int) -> Immediate:
    return Immediate(value & 0xFFFFFFFF)


def block(
    *instructions: Instruction,
    to: Target = EXIT,
    branch: Guard | None = None,
    taken: Target | None = None,
) -> MachineBlock:
    return MachineBlock(instructions, to, branch, taken)


def values(*words: int) -> list[Instruction]:
    """Instructions whose last result, a forward of stage 3, is words[lane] (four lanes)."""
    packed = sum(word << (8 * lane) for lane, word in enumerate(words))
    return [
        Instruction(Op.TID),
        Instruction(Op.SHL, Forward(0), imm(3)),
        Instruction(Op.SHR, imm(packed), Forward(1)),
        Instruction(Op.AND, Forward(2), imm(0xFF), dst=1),
    ]


def registers(run_of: list[MachineBlock], index: int, n_threads: int = 4) -> list[int]:
    return list(run_blocks(REFERENCE, run_of, (), n_threads).registers[0][index])


# --- operands, guards, forwarding -----------------------------------------------------------------


def test_a_register_reads_as_before_the_block_and_a_forward_as_after_the_stage() -> None:
    program = [
        block(Instruction(Op.MOV, imm(5), dst=1), to=Target(1)),
        block(
            Instruction(Op.ADD, R1, imm(1), dst=1),
            Instruction(Op.ADD, R1, imm(10), dst=2),
            Instruction(Op.ADD, Forward(0), imm(10), dst=3),
        ),
    ]
    assert [registers(program, n) for n in (1, 2, 3)] == [[6] * 4, [15] * 4, [16] * 4]


def test_a_missing_operand_and_register_zero_are_zero() -> None:
    assert registers([block(Instruction(Op.ADD, None, Register(0), dst=1))], 1) == [0] * 4


@pytest.mark.parametrize(
    ("negate", "expected"), [(False, [7, 9, 7, 9]), (True, [9, 7, 9, 7])], ids=["if", "ifnot"]
)
def test_where_a_guard_is_false_the_result_is_operand_c(negate: bool, expected: list[int]) -> None:
    guard = Guard(R1, negate)  # bit 0 alone counts
    program = [
        block(*values(3, 2, 5, 0), to=Target(1)),
        block(Instruction(Op.MOV, imm(7), c=imm(9), guard=guard, dst=2)),
    ]
    assert registers(program, 2) == expected


@pytest.mark.parametrize("op", [Op.ADD, Op.SHFL, Op.BALLOT, Op.LD, Op.TID], ids=lambda o: o.name)
def test_every_unit_obeys_the_guard(op: Op) -> None:
    odd = Guard(R1)
    program = [
        block(Instruction(Op.TID, dst=1), to=Target(1)),
        block(Instruction(op, imm(1), imm(3), guard=odd, dst=2), to=Target(2)),
        block(Instruction(op, imm(1), imm(3), imm(77), guard=odd, dst=3)),
    ]
    run = run_blocks(REFERENCE, program, [11, 22], 4)
    result = {Op.ADD: [4, 4], Op.SHFL: [1, 1], Op.BALLOT: [15, 15], Op.LD: [22, 22], Op.TID: [1, 3]}
    first, second = result[op]
    assert list(run.registers[0][2]) == [0, first, 0, second]
    # ADD reads C as no operand: it is only what a false guard leaves
    assert list(run.registers[0][3]) == [77, first, 77, second]


def test_an_inactive_lane_keeps_its_registers_and_still_forwards() -> None:
    program = [
        block(Instruction(Op.TID), Instruction(Op.LTU, Forward(0), imm(2)),
              Instruction(Op.ADD, Forward(0), imm(20), dst=1),
              branch=Guard(Forward(1)), taken=Target(1)),
        block(Instruction(Op.ADD, R1, imm(100), dst=1),
              Instruction(Op.SHFL, Forward(0), imm(3), dst=2),
              Instruction(Op.SHFL, R1, imm(2), dst=3)),
    ]  # fmt: skip
    assert registers(program, 1) == [120, 121, 22, 23]
    assert registers(program, 2) == [123, 123, 0, 0]
    assert registers(program, 3) == [22, 22, 0, 0]


def test_shfl_takes_the_lane_modulo_the_warp() -> None:
    program = [
        block(*values(10, 20, 30, 40), to=Target(1)),
        block(Instruction(Op.TID), Instruction(Op.ADD, Forward(0), imm(0xFFFFFFFD)),
              Instruction(Op.SHFL, R1, Forward(1), dst=2)),
    ]  # fmt: skip
    assert registers(program, 2) == [20, 30, 40, 10]


def test_ballot_counts_active_lanes_only_and_bit_zero_only() -> None:
    program = [
        block(*values(1, 3, 2, 5), to=Target(1)),
        block(Instruction(Op.BALLOT, R1, dst=2), Instruction(Op.TID), to=Target(2),
              branch=Guard(Forward(1)), taken=Target(3)),
        block(Instruction(Op.BALLOT, R1, dst=3)),
        block(Instruction(Op.BALLOT, R1, dst=3)),
    ]  # fmt: skip
    assert registers(program, 2) == [0b1011] * 4
    assert registers(program, 3) == [0b0001, 0b1010, 0b0001, 0b1010]


def test_tid_counts_over_warps_and_partial_warps() -> None:
    run = run_blocks(REFERENCE, [block(Instruction(Op.TID, dst=1))], (), 6)
    assert [list(w[1]) for w in run.registers[:3]] == [[0, 1, 2, 3], [4, 5, 0, 0], [0] * 4]
    assert run.n_execs == 2


# --- memory ---------------------------------------------------------------------------------------


def test_ld_ignores_the_low_bits_wraps_and_reads_zero_beyond_memory() -> None:
    n_bytes = REFERENCE.n_bytes
    for a, b, expected in [(4, 3, 8), (0xFFFFFFFC, 8, 8), (n_bytes - 4, 0, 9), (n_bytes, 0, 0),
                           (0x80000004, 0, 0)]:  # fmt: skip
        memory = [7, 8, *[0] * (REFERENCE.n_words - 3), 9]
        program = [block(Instruction(Op.LD, imm(a), imm(b), dst=1))]
        assert run_blocks(REFERENCE, program, memory, 1).registers[0][1][0] == expected


def test_ld_reads_memory_as_before_the_block() -> None:
    store = Instruction(Op.ST, imm(8), imm(0), imm(5))
    for order in ([0, 1], [1, 0]):
        pair = [store, Instruction(Op.LD, imm(8), dst=1)]
        run = run_blocks(REFERENCE, [block(*(pair[n] for n in order))], [0, 0, 3], 1)
        assert (run.memory[2], run.registers[0][1][0]) == (5, 3)


def store_trace(addresses: list[int], words: list[int], **kwargs: object) -> list[Token]:
    """Tokens of a block that stores words[lane] at the byte addresses, four lanes."""
    memory = [*addresses, *words]
    program = [
        block(Instruction(Op.TID), Instruction(Op.SHL, Forward(0), imm(2)),
              Instruction(Op.LD, Forward(1), dst=1), Instruction(Op.LD, Forward(1), imm(16), dst=2),
              to=Target(1)),
        block(Instruction(Op.ST, R1, imm(0), R2, **kwargs)),  # type: ignore[arg-type]
    ]  # fmt: skip
    run = run_blocks(REFERENCE, program, memory, 4)
    start = run.tokens.index(Exec(1, 0, 15)) + 1
    return run.tokens[start:-1]


def mems(spelled: list[Token]) -> list[Mem]:
    return [token for token in spelled if isinstance(token, Mem)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([20, 21, 22, 23], [Mem(20, 15)]),
        ([20, 21, 23, 24], [Mem(20, 3), Mem(23, 12)]),
        ([23, 22, 21, 20], [Mem(23, 1), Mem(22, 2), Mem(21, 4), Mem(20, 8)]),
        ([20, 20, 20, 20], [Mem(20, 1), Mem(20, 2), Mem(20, 4), Mem(20, 8)]),
        ([20, 30, 22, 23], [Mem(20, 1), Mem(30, 2), Mem(22, 12)]),
        ([20, 600, 22, 23], [Mem(20, 13)]),  # the lane beyond memory drops out of the group
        ([510, 511, 512, 513], [Mem(510, 3)]),
        ([600, 600, 600, 600], []),
    ],
)
def test_store_groups(words: list[int], expected: list[Mem]) -> None:
    assert mems(store_trace([4 * word for word in words], [1, 2, 3, 4])) == expected


def test_a_group_goes_on_over_a_lane_whose_guard_is_false() -> None:
    spelled = store_trace([80, 84, 88, 92], [1, 0, 3, 5], guard=Guard(R2))
    assert spelled == [Mem(20, 13), Val(0, 0, 1 | 3 << 4 | 1 << 6), Val(0, 1, 1 << 6)]


def test_the_higher_lane_wins_a_common_word() -> None:
    program = [block(Instruction(Op.TID), Instruction(Op.ST, imm(40), imm(0), Forward(0)))]
    run = run_blocks(REFERENCE, program, (), 8)
    assert run.memory[10] == 7


# --- scheduling -----------------------------------------------------------------------------------


def execs(run_tokens: list[Token]) -> list[tuple[int, ...] | str]:
    """The scheduler's words: (block, warp, mask), 'barrier', 'halt'."""
    out: list[tuple[int, ...] | str] = []
    for token in run_tokens:
        if isinstance(token, Exec):
            out.append(astuple(token))
        elif isinstance(token, Barrier | Halt):
            out.append(type(token).__name__.lower())
    return out


TID_ODD = (Instruction(Op.TID),)


def test_divergence_and_reconvergence_least_pc_first() -> None:
    program = [
        block(*TID_ODD, to=Target(1), branch=Guard(Forward(0)), taken=Target(2)),
        block(to=Target(3)),
        block(to=Target(3)),
        block(),
    ]
    assert execs(run_blocks(REFERENCE, program, (), 4).tokens) == [
        (0, 0, 15), (1, 0, 5), (2, 0, 10), (3, 0, 15), "halt"]  # fmt: skip


def test_a_warp_goes_on_until_it_waits_or_ends() -> None:
    program = [block(to=Target(1)), block()]
    assert execs(run_blocks(REFERENCE, program, (), 9).tokens) == [
        (0, 0, 15), (1, 0, 15), (0, 1, 15), (1, 1, 15), (0, 2, 1), (1, 2, 1), "halt"]  # fmt: skip


def test_a_barrier_holds_all_living_lanes_and_the_current_warp_goes_on_first() -> None:
    program = [
        block(*TID_ODD, to=Target(2, barrier=True), branch=Guard(Forward(0)), taken=Target(1)),
        block(),  # odd threads leave early: they count as arrived
        block(),
    ]
    assert execs(run_blocks(REFERENCE, program, (), 8).tokens) == [
        (0, 0, 15), (1, 0, 10), (0, 1, 15), (1, 1, 10), "barrier", (2, 1, 5), (2, 0, 5), "halt",
    ]  # fmt: skip


def test_a_serial_block_runs_lane_by_lane() -> None:
    program = [
        block(to=Target(1, serial=True)),
        block(Instruction(Op.LD, imm(40)), Instruction(Op.ADD, Forward(0), imm(1)),
              Instruction(Op.ST, imm(40), imm(0), Forward(1)), to=Target(2)),
        block(),
    ]  # fmt: skip
    run = run_blocks(REFERENCE, program, (), 6)
    assert run.memory[10] == 6
    assert execs(run.tokens) == [
        (0, 0, 15), (1, 0, 1), (1, 0, 2), (1, 0, 4), (1, 0, 8), (2, 0, 15),
        (0, 1, 3), (1, 1, 1), (1, 1, 2), (2, 1, 3), "halt"]  # fmt: skip


def test_a_serial_loop_keeps_the_lowest_lane_until_it_leaves() -> None:
    again = Target(1, serial=True)
    program = [
        block(to=again),
        block(Instruction(Op.ADD, R1, imm(1), dst=1), Instruction(Op.LTU, Forward(0), imm(2)),
              branch=Guard(Forward(1)), taken=again),
    ]  # fmt: skip
    assert execs(run_blocks(REFERENCE, program, (), 2).tokens) == [
        (0, 0, 3), (1, 0, 1), (1, 0, 1), (1, 0, 2), (1, 0, 2), "halt"]  # fmt: skip


def test_per_lane_trip_counts() -> None:
    program = [
        block(Instruction(Op.TID, dst=1), to=Target(1)),
        block(Instruction(Op.ADD, R2, imm(1), dst=2), Instruction(Op.GEU, R1, Forward(0)),
              branch=Guard(Forward(1)), taken=Target(1), to=Target(2)),
        block(Instruction(Op.MOV, R2, dst=3)),
    ]  # fmt: skip
    run = run_blocks(REFERENCE, program, (), 4)
    assert list(run.registers[0][3]) == [1, 2, 3, 4]
    assert execs(run.tokens) == [(0, 0, 15), (1, 0, 15), (1, 0, 14), (1, 0, 12), (1, 0, 8),
                                 (2, 0, 15), "halt"]  # fmt: skip
    assert run.executions == {0: 1, 1: 4, 2: 1}


def test_no_threads_halt_at_once() -> None:
    assert run_blocks(REFERENCE, [block()], (), 0).tokens == [Halt()]


# --- exact traces ---------------------------------------------------------------------------------

DOUBLE = [
    block(Instruction(Op.TID), Instruction(Op.SHL, Forward(0), imm(2), dst=1),
          Instruction(Op.LD, Forward(1), imm(8), dst=2), to=Target(1)),
    block(Instruction(Op.SHL, R2, imm(1)), Instruction(Op.ST, R1, imm(8), Forward(0))),
]  # fmt: skip
DOUBLE_MEMORY = [0, 0, 1, 0xFFFFFFFF, 0x80000000]
DOUBLE_TRACE: list[Token] = [
    Exec(0, 0, 7),
    Val(1, 1, 0b10_01_00),  # r1 = 0, 4, 8
    Sign(2, 0b110),  # r2 = 1, -1, INT_MIN: lanes 1 and 2 start as ones
    Val(2, 0, 0b00_11_01),
    *(Val(2, piece, 0b00_11_00) for piece in range(1, 15)),
    Val(2, 15, 0b10_11_00),
    Exec(1, 0, 7),
    Mem(2, 7),
    Sign(1, 0b010),  # 2, -2, 0
    Val(1, 0, 0b00_10_10),
    Halt(),
]


def test_exact_trace() -> None:
    run = run_blocks(REFERENCE, DOUBLE, DOUBLE_MEMORY, 3)
    assert run.tokens == DOUBLE_TRACE
    assert run.memory[:6] == [0, 0, 2, 0xFFFFFFFE, 0, 0]


def test_exact_trace_of_uniform_values() -> None:
    words = [0, 0x1200, 0xFFFFFFFF, 0xFFFF34FF, 0x80000000]
    for word, spelled in zip(words, [
        [Uniform(0, 0, 0, 0)],
        [Uniform(0, 0, 1, 0x12)],
        [Uniform(0, 1, 0, 0xFF)],
        [Uniform(0, 1, 1, 0x34)],
        [Uniform(0, 1, 0, 0), Uniform(0, 1, 1, 0), Uniform(0, 1, 2, 0), Uniform(0, 1, 3, 0x80)],
    ], strict=True):  # fmt: skip
        run = run_blocks(SMALL, [block(Instruction(Op.MOV, imm(word), dst=3))], (), 4)
        assert run.tokens == [Exec(0, 0, 15), *spelled, Halt()]


def test_every_token_is_in_the_vocabulary() -> None:
    assert set(DOUBLE_TRACE) <= set(tokens(REFERENCE))


def changed(source: Source | None) -> Source | None:
    match source:
        case Immediate(value):
            return Immediate(value ^ 5)
        case Register(index):
            return Register(index + 1)
    return source


@pytest.mark.parametrize("place", range(2))
def test_a_changed_program_changes_the_trace(place: int) -> None:
    """Each operand of each instruction matters to the trace."""
    for s, instruction in enumerate(DOUBLE[place].instructions):
        for name in "ab":
            source = getattr(instruction, name)
            if changed(source) == source:
                continue
            other = replace(instruction, **{name: changed(source)})
            instructions = list(DOUBLE[place].instructions)
            instructions[s] = other
            program = list(DOUBLE)
            program[place] = replace(DOUBLE[place], instructions=tuple(instructions))
            assert run_blocks(REFERENCE, program, DOUBLE_MEMORY, 3).tokens != DOUBLE_TRACE, other


def test_a_swapped_token_is_noticed_where_it_stands() -> None:
    for place in range(len(DOUBLE_TRACE) - 1):
        claimed = list(DOUBLE_TRACE)
        claimed[place], claimed[place + 1] = claimed[place + 1], claimed[place]
        expected = Machine(REFERENCE, DOUBLE).iter_tokens(DOUBLE_MEMORY, 3)
        pairs = enumerate(zip(claimed, expected, strict=True))
        first = next((n for n, (said, right) in pairs if said != right), None)
        assert first == place


# --- state, observer, refusals --------------------------------------------------------------------


def test_a_machine_can_be_launched_again() -> None:
    machine = Machine(REFERENCE, DOUBLE)
    for _ in range(2):
        assert list(machine.iter_tokens(DOUBLE_MEMORY, 3)) == DOUBLE_TRACE


def test_the_observer_sees_each_stage() -> None:
    seen: list[StageEvent] = []
    run_blocks(REFERENCE, DOUBLE, DOUBLE_MEMORY, 3, observer=seen.append)
    assert [(e.block, e.stage, e.instruction.op) for e in seen] == [
        (0, 0, Op.TID), (0, 1, Op.SHL), (0, 2, Op.LD), (1, 0, Op.SHL), (1, 1, Op.ST)]  # fmt: skip
    load, store = seen[2], seen[4]
    assert list(load.addresses)[:3] == [8, 12, 16]
    assert list(load.results)[:3] == [1, 0xFFFFFFFF, 0x80000000]
    assert list(store.operands[2])[:3] == [2, 0xFFFFFFFE, 0]
    assert (store.mask, store.warp, list(store.guard)) == (7, 0, [True] * 4)
    assert seen[0].addresses == ()


def test_the_budget_is_exact() -> None:
    n_tokens = len(DOUBLE_TRACE)
    run_blocks(REFERENCE, DOUBLE, DOUBLE_MEMORY, 3, max_tokens=n_tokens)
    with pytest.raises(LaunchError, match=f"not end within {n_tokens - 1} tokens"):
        run_blocks(REFERENCE, DOUBLE, DOUBLE_MEMORY, 3, max_tokens=n_tokens - 1)


def test_an_endless_loop_ends_with_the_budget() -> None:
    with pytest.raises(LaunchError, match="did not end within 100 tokens"):
        run_blocks(SMALL, [block(to=Target(0))], (), 1, max_tokens=100)


def _scheduled(blocks: list[MachineBlock], n_threads: int) -> list[Token]:
    said = run_blocks(REFERENCE, blocks, (), n_threads).tokens
    return [token for token in said if isinstance(token, Exec | Barrier | Resume | Halt)]


ODD = (Instruction(Op.TID, dst=1),)


def test_lanes_that_yield_go_on_when_no_other_can() -> None:
    to_one = MachineBlock(ODD, Target(2), Guard(Forward(0)), Target(1, yields=True))
    assert _scheduled([to_one, block(), block()], 6) == [
        Exec(0, 0, 0b1111), Exec(2, 0, 0b0101), Exec(0, 1, 0b11), Exec(2, 1, 0b01), Resume(),
        Exec(1, 1, 0b10), Exec(1, 0, 0b1010), Halt(),
    ]  # fmt: skip


def test_who_waits_at_a_barrier_waits_for_those_that_yield() -> None:
    parted = MachineBlock(ODD, Target(2, barrier=True), Guard(Forward(0)), Target(1, yields=True))
    assert _scheduled([parted, block(to=Target(2, barrier=True)), block()], 4) == [
        Exec(0, 0, 15), Resume(), Exec(1, 0, 0b1010), Barrier(), Exec(2, 0, 15), Halt(),
    ]  # fmt: skip


def test_an_exit_ends_a_lane_that_has_yielded() -> None:
    assert _scheduled([block(to=Target(1, yields=True)), block()], 1) == [
        Exec(0, 0, 1), Resume(), Exec(1, 0, 1), Halt(),
    ]  # fmt: skip


def test_loops_that_wait_for_nothing_are_a_deadlock() -> None:
    parted = MachineBlock(ODD, Target(2, yields=True), Guard(Forward(0)), Target(1, yields=True))
    stay = [block(to=Target(n, yields=True)) for n in (1, 2)]
    with pytest.raises(DeadlockError, match=r"none gets on: at B1, B2$") as caught:
        run_blocks(REFERENCE, [parted, *stay], (), 4)
    assert caught.value.blocks == (1, 2)


def test_a_loop_that_changes_something_is_no_deadlock() -> None:
    count = Instruction(Op.ADD, R1, imm(1), dst=1)
    few = Instruction(Op.LTU, Forward(0), imm(9))
    again = MachineBlock((count, few), EXIT, Guard(Forward(1)), Target(0, yields=True))
    run = run_blocks(REFERENCE, [again], (), 1)
    assert run.tokens.count(Resume()) == 8


MOVE = Instruction(Op.MOV, imm(1), dst=1)
STORE = Instruction(Op.ST, imm(8), imm(0), imm(1))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([block(to=Target(1))], "B0: there is no block 1 to go to"),
        ([block(*[MOVE] * 5)], "needs 5 stages in B0, the machine has 4"),
        ([block()] * 129, "needs 129 machine blocks, the machine has 128"),
        ([block(replace(MOVE, dst=16))], "needs 17 registers, the machine has 16"),
        ([block(replace(MOVE, a=Register(16)))], "needs 17 registers, the machine has 16"),
        ([block(replace(MOVE, a=Forward(0)))], "B0: stage 0 reads s0, which is not before it"),
        ([block(branch=Guard(Forward(0)), taken=EXIT)], "B0: stage 0 reads s0"),
        ([block(STORE, STORE)], "B0: at most one store a block"),
        ([block(replace(STORE, dst=1))], "B0: at most one store a block"),
        ([block(to=Target(0, serial=True))], "B0 is entered both serially and not"),
        ([block(to=Target(0, barrier=True, yields=True))], "B0: a lane cannot wait at a barrier"),
    ],
)
def test_what_is_no_program_is_refused(program: list[MachineBlock], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        run_blocks(REFERENCE, program)
    assert message in str(caught.value)


def test_too_much_memory_and_too_many_threads_are_refused() -> None:
    with pytest.raises(LimitError, match="513 words of memory"):
        run_blocks(REFERENCE, [block()], [0] * 513)
    with pytest.raises(LimitError, match="9 threads in a block, the machine has 8"):
        run_blocks(SMALL, [block()], (), 9)
