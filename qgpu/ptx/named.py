"""Named barriers: the machine has one barrier, so threads may not wait at two at the same time.

Every barrier here is one of all threads. Those of another number are then the same barrier as long
as all threads go by the same numbers in the same order; on a GPU a launch where they do not waits
for ever. A kernel with several numbers is refused where a branch that threads can take either way
leads to barriers of different numbers.
"""

from __future__ import annotations

from qgpu.errors import CompileError
from qgpu.ptx.align import barrier_of, find_partings
from qgpu.ptx.mir import Block, Graph
from qgpu.ptxir import Function, Imm, Inst, Operand


def _number(inst: Inst) -> Operand | None:
    """Which barrier a bar instruction names; None for another instruction."""
    if inst.opcode[0] not in ("bar", "barrier") or {"warp", "cluster"} & set(inst.opcode):
        return None
    place = int("red" in inst.opcode)
    return inst.operands[place] if len(inst.operands) > place else None


def has_several_numbers(function: Function) -> bool:
    """Whether a kernel may have more than one barrier."""
    insts = [statement for statement in function.body if isinstance(statement, Inst)]
    return _differ([number for inst in insts if (number := _number(inst)) is not None])


def _differ(numbers: list[Operand]) -> bool:
    return len(set(numbers)) > 1 or not all(isinstance(number, Imm) for number in numbers)


def refuse_mixed(graph: Graph, n_threads: int, is_grid: bool, file: str) -> None:
    """Refuse what can make threads wait at barriers of different numbers."""
    if not any(barrier_of(node) for node in graph.nodes()):
        return
    for block, parting in find_partings(graph, n_threads, is_grid, across_warps=True).items():
        met = [
            inst
            for successor in block.successors
            for inst in _first_barriers(successor, parting.over_blocks)
        ]
        if _differ([number for inst in met if (number := _number(inst)) is not None]):
            line = met[-1].place(file)
            raise CompileError(
                "threads can wait at barriers of different numbers at the same time",
                file=line[0], line=line[1], instruction=met[-1].text,
            )  # fmt: skip


def _first_barriers(start: Block, without: Block | None) -> list[Inst]:
    """The barriers that a thread can come to first."""
    found: list[Inst] = []
    seen = {start, without}
    work = [start] if start is not without else []
    while work:
        block = work.pop()
        barriers = [inst for inst in map(barrier_of, block.nodes) if inst is not None]
        if barriers:
            found.append(barriers[0])
            continue
        for successor in block.successors:
            if successor not in seen:
                seen.add(successor)
                work.append(successor)
    return found
