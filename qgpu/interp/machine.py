"""The machine-block interpreter: docs/machine.md executed exactly, token by token.

``Machine`` holds the whole state of a launch and yields the tokens that the model has to write
after ``Go``. It is the reference for the weights, so it takes nothing from the circuit: operations
come from ``Op.semantics``, spelling from ``qgpu.tokens``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qgpu.errors import CompileError, DeadlockError, LaunchError, LimitError
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
    Unit,
)
from qgpu.machine import WORD_BYTES, MachineSpec
from qgpu.tokens import Barrier, Exec, Halt, Mem, Resume, Token, lanes_of, name_of, spell_value

DEFAULT_MAX_TOKENS = 1_000_000
Words = Sequence[int]  # one word a lane


@dataclass(frozen=True)
class StageEvent:
    """What an observer sees: one instruction of one ``Exec``; sequences hold one entry a lane.

    ``addresses`` are byte addresses, empty unless the instruction is LD or ST.
    """

    block: int
    warp: int
    mask: int
    stage: int
    instruction: Instruction
    operands: tuple[Words, Words, Words]
    guard: Sequence[bool]
    results: Words
    addresses: Words


Observer = Callable[[StageEvent], None]


@dataclass
class BlockRun:
    """A finished launch. ``registers[warp][register][lane]``; ``executions[block]`` its Execs."""

    tokens: list[Token]
    memory: list[int]
    registers: list[list[Words]]
    executions: Counter[int]

    @property
    def n_execs(self) -> int:
        return self.executions.total()


# --- one instruction ----------------------------------------------------------------------------

_Fetch = Callable[[Sequence[Words], Sequence[Words]], Words]
_GuardFetch = Callable[[Sequence[Words], Sequence[Words]], Sequence[bool]]


def _fetch(spec: MachineSpec, source: Source | None) -> _Fetch:
    """A source operand as a function of the warp's registers and the earlier stages' results."""
    match source:
        case Register(index):
            return lambda registers, results: registers[index]
        case Forward(stage):
            return lambda registers, results: results[stage]
        case Immediate(value):
            constant = (value & MASK32,) * spec.n_lanes
            return lambda registers, results: constant
    zeros = (0,) * spec.n_lanes
    return lambda registers, results: zeros


def _fetch_guard(spec: MachineSpec, guard: Guard) -> _GuardFetch:
    fetch, wanted = _fetch(spec, guard.source), 0 if guard.negate else 1
    return lambda registers, results: [word & 1 == wanted for word in fetch(registers, results)]


class _Stage:
    """An instruction with its operand fetches resolved."""

    def __init__(self, spec: MachineSpec, instruction: Instruction) -> None:
        self.instruction = instruction
        self.op = instruction.op
        self.is_lane_op = self.op.info.unit is Unit.LANE
        self.semantics = self.op.info.semantics
        self.a = _fetch(spec, instruction.a)
        self.b = _fetch(spec, instruction.b)
        self.c = _fetch(spec, instruction.c)
        self.guard = _fetch_guard(spec, instruction.guard) if instruction.guard else None


class _Code:
    """A machine block made ready to run."""

    def __init__(self, spec: MachineSpec, block: MachineBlock) -> None:
        self.stages = [_Stage(spec, instruction) for instruction in block.instructions]
        self.writes = [(s, i.dst) for s, i in enumerate(block.instructions) if i.dst]
        self.branch = _fetch_guard(spec, block.branch) if block.branch else None
        self.target = block.target
        self.taken = block.taken or Target(exit=True)


# --- well-formedness ----------------------------------------------------------------------------


def _sources(block: MachineBlock) -> Iterator[tuple[int, Source]]:
    """Every source operand with the stage that reads it (the branch reads after the last)."""
    for stage, i in enumerate(block.instructions):
        guard = i.guard.source if i.guard else None
        yield from ((stage, s) for s in (i.a, i.b, i.c, guard) if s is not None)
    if block.branch is not None:
        yield len(block.instructions), block.branch.source


def _check_block(spec: MachineSpec, index: int, block: MachineBlock) -> None:
    if len(block.instructions) > spec.n_stages:
        raise LimitError(f"stages in B{index}", len(block.instructions), spec.n_stages)
    registers = [i.dst for i in block.instructions]
    for stage, source in _sources(block):
        if isinstance(source, Forward) and not 0 <= source.stage < stage:
            raise CompileError(f"B{index}: stage {stage} reads {source}, which is not before it")
        if isinstance(source, Register):
            registers.append(source.index)
    if registers and max(registers) >= spec.n_registers:
        raise LimitError("registers", max(registers) + 1, spec.n_registers)
    stores = [i for i in block.instructions if i.op is Op.ST]
    if len(stores) > 1 or any(i.dst for i in stores):
        raise CompileError(f"B{index}: at most one store a block, and it has no result")


def check_blocks(spec: MachineSpec, blocks: Sequence[MachineBlock]) -> None:
    """Raise CompileError unless the blocks are a program that the machine can hold and run."""
    if len(blocks) > spec.n_blocks:
        raise LimitError("machine blocks", len(blocks), spec.n_blocks)
    serial = {0: False}
    for index, block in enumerate(blocks):
        _check_block(spec, index, block)
        for target in (block.target, block.taken):
            if target is None or target.exit:
                continue
            if not 0 <= target.block < len(blocks):
                raise CompileError(f"B{index}: there is no block {target.block} to go to")
            if target.barrier and target.yields:
                raise CompileError(f"B{index}: a lane cannot wait at a barrier and yield at once")
            if serial.setdefault(target.block, target.serial) != target.serial:
                raise CompileError(f"B{target.block} is entered both serially and not")


# --- the machine --------------------------------------------------------------------------------


@dataclass
class _Lane:
    """The program counter of one lane of one warp."""

    pc: int = 0
    alive: bool = False
    waiting: bool = False
    serial: bool = False
    yielded: bool = False

    @property
    def runnable(self) -> bool:
        return self.alive and not self.waiting and not self.yielded

    def go(self, target: Target) -> None:
        self.pc = 0 if target.exit else target.block
        self.alive = not target.exit
        self.waiting = target.barrier and self.alive
        self.serial = target.serial and self.alive
        self.yielded = target.yields and self.alive


class Machine:
    """``blocks`` on one machine. ``load`` sets up a launch, ``iter_tokens`` loads and runs one.

    ``lanes[warp][lane]`` are the program counters, ``registers[warp][register][lane]`` the
    register file; with ``memory`` they say how far the launch is.
    """

    def __init__(
        self,
        spec: MachineSpec,
        blocks: Sequence[MachineBlock],
        observer: Observer | None = None,
    ) -> None:
        check_blocks(spec, blocks)
        self.spec = spec
        self.observer = observer
        self._code = [_Code(spec, block) for block in blocks]
        self.load()

    def load(self, memory: Sequence[int] = (), n_threads: int = 1) -> None:
        """The state at ``Go``. Memory that is not given is zero."""
        spec = self.spec
        if len(memory) > spec.n_words:
            raise LimitError("words of memory", len(memory), spec.n_words)
        if n_threads > spec.n_threads:
            raise LimitError("threads in a block", n_threads, spec.n_threads)
        self.memory = [int(word) & MASK32 for word in memory]
        self.memory += [0] * (spec.n_words - len(memory))
        zeros: Words = (0,) * spec.n_lanes
        self.registers = [[zeros] * spec.n_registers for _ in range(spec.n_warps)]
        self.lanes = [
            [_Lane(alive=warp * spec.n_lanes + lane < n_threads) for lane in range(spec.n_lanes)]
            for warp in range(spec.n_warps)
        ]
        self.warp = 0
        self.executions: Counter[int] = Counter()

    # scheduling

    def _runnable(self, warp: int) -> bool:
        return any(lane.runnable for lane in self.lanes[warp])

    def _choose(self, warp: int) -> Exec:
        """The Exec of a warp with a runnable lane: its runnable lanes with the least pc."""
        lanes = enumerate(self.lanes[warp])
        runnable = [(lane.pc, n) for n, lane in lanes if lane.runnable]
        pc, lowest = min(runnable)
        if self.lanes[warp][lowest].serial:
            return Exec(pc, warp, 1 << lowest)
        return Exec(pc, warp, sum(1 << lane for at, lane in runnable if at == pc))

    def next_token(self) -> Exec | Barrier | Resume | Halt:
        """What the scheduler says when no value or store is left to write."""
        if self._runnable(self.warp):
            return self._choose(self.warp)
        for warp in range(self.spec.n_warps):
            if self._runnable(warp):
                return self._choose(warp)
        lanes = [lane for warp in self.lanes for lane in warp]
        if any(lane.yielded for lane in lanes):
            return Resume()
        return Barrier() if any(lane.alive for lane in lanes) else Halt()

    # execution

    def _results(
        self, stage: _Stage, exec_: Exec, results: Sequence[Words]
    ) -> tuple[Words, Sequence[bool], tuple[Words, Words, Words], Words]:
        """The stage's (results, guard, operands, byte addresses), one entry a lane."""
        registers = self.registers[exec_.warp]
        a, b, c = (f(registers, results) for f in (stage.a, stage.b, stage.c))
        guard = stage.guard(registers, results) if stage.guard else (True,) * self.spec.n_lanes
        addresses: Words = ()
        if stage.is_lane_op:
            assert stage.semantics is not None
            found: Words = list(map(stage.semantics, a, b, c))
        else:
            found, addresses = self._wide(stage.op, exec_, a, b, c)
        if stage.guard is not None:
            found = [x if on else other for x, on, other in zip(found, guard, c, strict=True)]
        return found, guard, (a, b, c), addresses

    def _wide(self, op: Op, exec_: Exec, a: Words, b: Words, c: Words) -> tuple[Words, Words]:
        """Results and addresses of an operation that is not one lane's own."""
        n_lanes = self.spec.n_lanes
        if op is Op.TID:
            return [exec_.warp * n_lanes + lane for lane in range(n_lanes)], ()
        if op is Op.SHFL:
            return [a[lane % n_lanes] for lane in b], ()
        if op is Op.BALLOT:
            vote = sum(1 << lane for lane in lanes_of(exec_.mask) if a[lane] & 1)
            return [vote] * n_lanes, ()
        addresses = [(x + y) & MASK32 for x, y in zip(a, b, strict=True)]
        if op is Op.ST:
            return c, addresses
        return [self._read(address) for address in addresses], addresses

    def _read(self, address: int) -> int:
        word = address // WORD_BYTES
        return self.memory[word] if word < self.spec.n_words else 0

    def _stores(self, stage: int, exec_: Exec, guard: Sequence[bool], addresses: Words,
                words: Words) -> Iterator[Token]:  # fmt: skip
        """Do the stores of one ST stage, lowest lane first; the tokens that say so, in groups."""
        at = [address // WORD_BYTES for address in addresses]
        left = [n for n in lanes_of(exec_.mask) if guard[n] and at[n] < self.spec.n_words]
        while left:
            leader, group = left[0], 0
            while left and at[left[0]] == at[leader] + left[0] - leader:
                self.memory[at[left[0]]] = words[left[0]]
                group |= 1 << left.pop(0)
            yield Mem(at[leader], group)
            yield from spell_value(self.spec, stage, words, group)

    def execute(self, exec_: Exec) -> list[Token]:
        """Run one machine block; the values and stores that are written for it."""
        code, written = self._code[exec_.block], list[Token]()
        results: list[Words] = []
        store: tuple[int, Sequence[bool], Words] | None = None
        for s, stage in enumerate(code.stages):
            found, guard, operands, addresses = self._results(stage, exec_, results)
            results.append(found)
            if stage.op is Op.ST:
                store = s, guard, addresses
            if self.observer is not None:
                self.observer(StageEvent(exec_.block, exec_.warp, exec_.mask, s, stage.instruction,
                                         operands, guard, found, addresses))  # fmt: skip
        registers, active = self.registers[exec_.warp], lanes_of(exec_.mask)
        jumps = code.branch(registers, results) if code.branch else ()
        for s, dst in code.writes:
            written += spell_value(self.spec, s, results[s], exec_.mask)
            held = list(registers[dst])
            for lane in active:
                held[lane] = results[s][lane]
            registers[dst] = held
        if store is not None:
            s, guard, addresses = store
            written += self._stores(s, exec_, guard, addresses, results[s])
        for lane in active:
            taken = bool(jumps) and jumps[lane]
            self.lanes[exec_.warp][lane].go(code.taken if taken else code.target)
        self.warp = exec_.warp
        self.executions[exec_.block] += 1
        return written

    def _living_blocks(self) -> tuple[int, ...]:
        lanes = [lane for warp in self.lanes for lane in warp if lane.alive]
        return tuple(sorted({lane.pc for lane in lanes}))

    def _standing(self) -> tuple[object, ...]:
        """All that the tokens to come depend on."""
        lanes = [(lane.pc, lane.alive, lane.waiting) for warp in self.lanes for lane in warp]
        return lanes, [list(registers) for registers in self.registers], list(self.memory)

    def _release(self, token: Barrier | Resume) -> None:
        for lane in (lane for warp in self.lanes for lane in warp):
            if isinstance(token, Resume):
                lane.yielded = False
            else:
                lane.waiting = False

    def iter_tokens(
        self,
        memory: Sequence[int] = (),
        n_threads: int = 1,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> Iterator[Token]:
        """The tokens after ``Go``, up to ``Halt``; LaunchError once they are more than allowed,
        DeadlockError once they would be the same for ever."""
        self.load(memory, n_threads)
        return self._iter_loaded(max_tokens)

    def _iter_loaded(self, max_tokens: int) -> Iterator[Token]:
        n_tokens = 0
        stood: tuple[object, ...] | None = None
        while True:
            token = self.next_token()
            if isinstance(token, Resume):
                before, stood = stood, self._standing()
                if stood == before:
                    raise DeadlockError(self._living_blocks())
            written: list[Token] = []
            if isinstance(token, Exec):
                written = self.execute(token)
            elif isinstance(token, Barrier | Resume):
                self._release(token)
            for said in (token, *written):
                n_tokens += 1
                if n_tokens > max_tokens:
                    raise LaunchError(
                        f"the launch did not end within {max_tokens} tokens (at {name_of(said)})"
                    )
                yield said
            if isinstance(token, Halt):
                return


def run_blocks(
    spec: MachineSpec,
    blocks: Sequence[MachineBlock],
    memory: Sequence[int] = (),
    n_threads: int = 1,
    *,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    observer: Observer | None = None,
) -> BlockRun:
    """Run a launch to its end."""
    machine = Machine(spec, blocks, observer)
    tokens = list(machine.iter_tokens(memory, n_threads, max_tokens=max_tokens))
    return BlockRun(tokens, machine.memory, machine.registers, machine.executions)
