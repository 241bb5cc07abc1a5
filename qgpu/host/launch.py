"""launch(): one kernel launch on a backend, and the interpreter as a backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from qgpu.errors import DeadlockError, LaunchError, LimitError, UsageError
from qgpu.host.arguments import Array, Bound, bind
from qgpu.host.program import Kernel
from qgpu.isa import MachineBlock
from qgpu.kernel import Dim3, LaunchShape, Lowered
from qgpu.machine import REFERENCE, WORD_BYTES, MachineSpec
from qgpu.tokens import Exec, Token, launch_tokens, memory_tokens, program_tokens

MAX_TOKENS = 200_000
MAX_GRID = 1 << 31
Watch = Callable[[Token], None]


@dataclass(frozen=True)
class Job:
    """A launch as a backend gets it: blocks and memory, ready to be fed."""

    spec: MachineSpec
    blocks: Sequence[MachineBlock]
    memory: Sequence[int]
    n_threads: int
    max_tokens: int

    def prompt(self) -> list[Token]:
        """What the host feeds before the model writes."""
        return [
            *program_tokens(self.spec, self.blocks),
            *memory_tokens(self.spec, self.memory),
            *launch_tokens(self.spec, self.n_threads),
        ]


@dataclass(frozen=True)
class Execution:
    """What a backend made of a job: its tokens and the memory afterwards."""

    tokens: list[Token]
    memory: list[int]


class Backend(Protocol):
    """Something that runs jobs. ``watch`` sees each token as it is written and may raise."""

    name: str
    spec: MachineSpec

    def execute(self, job: Job, watch: Watch) -> Execution: ...


class Interpreter:
    """The reference: the machine's rules in plain Python."""

    name = "interp"

    def __init__(self, spec: MachineSpec = REFERENCE) -> None:
        self.spec = spec

    def execute(self, job: Job, watch: Watch) -> Execution:
        from qgpu.interp.machine import Machine

        machine = Machine(job.spec, job.blocks)
        written: list[Token] = []
        for token in machine.iter_tokens(job.memory, job.n_threads, max_tokens=job.max_tokens):
            watch(token)
            written.append(token)
        return Execution(written, machine.memory)


@dataclass(frozen=True)
class Result:
    """A finished launch. ``args`` has the arrays as they are now, None in a scalar's place."""

    args: list[Array | None]
    trace: list[Token]
    seconds: float
    check: str | None
    backend: str
    lowered: Lowered = field(repr=False)
    memory: list[int] = field(repr=False)
    job: Job = field(repr=False)
    shape: LaunchShape = field(repr=False)

    @property
    def tokens(self) -> int:
        """Tokens that the backend wrote."""
        return len(self.trace)

    @property
    def exec_tokens(self) -> int:
        """Machine blocks that ran."""
        return sum(isinstance(token, Exec) for token in self.trace)


def as_dim3(value: int | Sequence[int], what: str) -> Dim3:
    """A launch dimension: a number or up to three of them."""
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if not 1 <= len(sizes) <= 3 or not all(hasattr(n, "__index__") for n in sizes):
        raise UsageError(f"{what} is {value!r}: one to three positive integers")
    x, y, z = (*(int(n) for n in sizes), 1, 1)[:3]
    if min(x, y, z) < 1:
        raise UsageError(f"{what} is {x},{y},{z}: every size must be at least 1")
    if max(x, y, z) >= MAX_GRID:
        raise UsageError(f"{what} is {x},{y},{z}: every size must be less than {MAX_GRID}")
    return x, y, z


def prepare(
    kernel: Kernel,
    spec: MachineSpec,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    shared_words: int,
) -> tuple[Bound, LaunchShape, Lowered]:
    """Bind, lower and hold against every limit; nothing has been fed yet."""
    if shared_words < 0:
        raise UsageError(f"shared_words is {shared_words}: it cannot be negative")
    if shared_words > spec.n_words:
        raise LimitError("words of memory", shared_words, spec.n_words)
    module = kernel.program.module
    bound = bind(
        kernel.function, args, spec, pointer_bytes=module.address_size // 8, file=module.file
    )
    shape = LaunchShape(
        as_dim3(grid, "grid"), as_dim3(block, "block"), bound.params,
        shared_words * WORD_BYTES, bound.data_base,
    )  # fmt: skip
    if shape.n_threads > spec.n_threads:
        raise LimitError("threads in a CUDA block", shape.n_threads, spec.n_threads)
    lowered = kernel.lower(shape, spec)
    for what, need, limit in (
        ("machine blocks", len(lowered.blocks), spec.n_blocks),
        ("words of memory", lowered.n_words, spec.n_words),
        ("registers", lowered.n_registers, spec.n_registers - 1),
    ):
        if need > limit:
            raise LimitError(what, need, limit)
    return bound, shape, lowered


def make_job(spec: MachineSpec, bound: Bound, shape: LaunchShape, lowered: Lowered,
             max_tokens: int = MAX_TOKENS) -> Job:  # fmt: skip
    """The arrays and the lowering's own data in one memory, with the blocks that run on it."""
    top = max([len(bound.words), *(address + 1 for address in lowered.image)])
    memory = list(bound.words) + [0] * (top - len(bound.words))
    for address, word in lowered.image.items():
        memory[address] = word
    return Job(spec, lowered.blocks, memory, shape.n_threads, max_tokens)


def launch(
    kernel: Kernel,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] = 1,
    args: Sequence[Any] = (),
    *,
    on: Backend | None = None,
    check: bool = False,
    shared_words: int = 0,
    max_tokens: int = MAX_TOKENS,
    watch: Watch | None = None,
) -> Result:
    """Run ``kernel`` once.

    ``args`` are integers and NumPy integer arrays, one per kernel parameter; the arrays are copied
    in and come back in ``Result.args``. ``check`` replays the launch: weights against the block
    interpreter, token by token; the interpreter against the PTX executed lane by lane.
    ``max_tokens`` ends a runaway launch with LaunchError. ``watch`` sees every token.
    """
    from qgpu.host.check import Checker

    on = on or Interpreter()
    if max_tokens < 1:
        raise UsageError(f"max_tokens is {max_tokens}: it must be at least 1")
    bound, shape, lowered = prepare(kernel, on.spec, grid, block, args, shared_words)
    job = make_job(on.spec, bound, shape, lowered, max_tokens)
    checker = Checker(kernel, shape, bound, job, on.name) if check else None

    def see(token: Token) -> None:
        if checker is not None:
            checker.token(token)
        if watch is not None:
            watch(token)

    start = time.perf_counter()
    try:
        execution = on.execute(job, see)
    except DeadlockError as error:
        places = dict.fromkeys(lowered.place(block) for block in error.blocks)
        raise DeadlockError(error.blocks, ", ".join(places)) from error
    seconds = time.perf_counter() - start
    reason = lowered.trap_reason(execution.memory)
    if checker is not None:
        checker.finish(execution.memory, failed=reason is not None)
    if reason:
        raise LaunchError(reason)
    return Result(
        bound.read_back(execution.memory), execution.tokens, seconds,
        "ok" if check else None, on.name, lowered, execution.memory,
        job, shape,
    )  # fmt: skip
