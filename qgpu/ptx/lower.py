"""The lowering: one kernel of a PTX module, for one launch shape -> machine blocks.

The passes in order: inline calls, select nodes (64-bit data as pairs of words), optimise the
graph, pack nodes into machine blocks, allocate registers (spilling and packing again where they
do not suffice), lay the blocks out and encode targets.
"""

from __future__ import annotations

from itertools import pairwise

from qgpu.errors import LimitError, UsageError
from qgpu.isa import Forward, Guard, Instruction, MachineBlock, Op, Register, Source, Target
from qgpu.kernel import LaunchShape, Lowered
from qgpu.machine import MachineSpec
from qgpu.ptx.align import align
from qgpu.ptx.build_graph import build_graph, n_cuda_blocks
from qgpu.ptx.cfg import layout, liveness, loop_depths
from qgpu.ptx.coalesce import coalesce
from qgpu.ptx.inline import inline
from qgpu.ptx.memory import Memory
from qgpu.ptx.mir import Block, Condition, Edge, Graph, Node, Value, Virtual
from qgpu.ptx.named import refuse_mixed
from qgpu.ptx.optimise import find_values, optimise
from qgpu.ptx.pack import Limits, block_key, pack
from qgpu.ptx.promote import place_frames, promote
from qgpu.ptx.regalloc import (
    Group,
    Spiller,
    colour,
    find_liveness,
    find_partners,
    find_reads,
    interference,
)
from qgpu.ptx.shape_graph import hoist_arms
from qgpu.ptx.sink import sink_into_serial
from qgpu.ptx.spin import mark_waits
from qgpu.ptx.startup import use_initial_zeros
from qgpu.ptxir import Function, Inst, Module

MAX_SPILL_ROUNDS = 200
FENCES = ("membar", "fence")
Colours = dict[Virtual, int]


def lower(
    module: Module, kernel_name: str, spec: MachineSpec, shape: LaunchShape
) -> Lowered:
    """The kernel as machine blocks for this launch."""
    kernel = find_kernel(module, kernel_name)
    if len(shape.params) != len(kernel.params):
        raise UsageError(
            f"{kernel_name} takes {len(kernel.params)} arguments, not {len(shape.params)}"
        )
    if shape.n_threads > spec.n_threads:
        raise LimitError("threads in a CUDA block", shape.n_threads, spec.n_threads)
    function = inline(module, kernel)
    graph, memory = make_graph(module, function, spec, shape, frozenset())
    is_grid = n_cuda_blocks(shape) > 1
    refuse_mixed(graph, shape.n_threads, is_grid, module.file)
    unmet = align(graph, shape.n_threads, is_grid)
    if unmet:
        graph, memory = make_graph(module, function, spec, shape, unmet)
        align(graph, shape.n_threads, is_grid)
    groups, colours = allocate(graph, spec, shape, memory)
    if len(groups) > spec.n_blocks:
        raise LimitError("machine blocks", len(groups), spec.n_blocks)
    blocks = encode(groups, colours)
    return Lowered(
        kernel_name, blocks, max(colours.values(), default=0), memory.n_words,
        memory.image, [_sources(group) for group in groups],
        [_ptx_lines(group) for group in groups], memory.trap_word_address, tuple(memory.traps),
    )  # fmt: skip


def make_graph(
    module: Module, function: Function, spec: MachineSpec, shape: LaunchShape,
    unmet: frozenset[Inst],
) -> tuple[Graph, Memory]:  # fmt: skip
    """The kernel's graph, all passes done; ``unmet`` look for the lanes of their mask."""
    memory = Memory(module, function, spec, shape)
    graph = build_graph(function, spec, shape, memory, module.file, unmet)
    optimise(graph, shape.n_threads, spec.n_stages, memory.constants)
    if graph.local_base is not None:
        while promote(graph, memory):
            optimise(graph, shape.n_threads, spec.n_stages, memory.constants)
        place_frames(graph, memory, shape.n_threads)
        optimise(graph, shape.n_threads, spec.n_stages, memory.constants)
    sink_into_serial(graph, shape.n_threads, Limits(spec.n_stages, spec.n_registers - 1))
    coalesce(graph, shape.n_threads)
    use_initial_zeros(graph)
    while hoist_arms(graph, spec.n_stages):
        pass
    fences = any(isinstance(s, Inst) and s.opcode[0] in FENCES for s in function.body)
    mark_waits(graph, shape.n_threads, fences)
    return graph, memory


def find_kernel(module: Module, name: str) -> Function:
    function = module.functions.get(name)
    if function is None or not function.is_kernel:
        known = ", ".join(f.name for f in module.kernels) or "none"
        raise UsageError(f"there is no kernel {name!r}; the file has: {known}")
    return function


def _sources(group: Group) -> list[tuple[str, int] | None]:
    return [node.origin.source if node.origin is not None else None for node in group.nodes]


def _ptx_lines(group: Group) -> list[int | None]:
    return [node.origin.line if node.origin is not None else None for node in group.nodes]


# --- groups and registers -------------------------------------------------------------------------


def make_groups(
    graph: Graph, n_threads: int, limits: Limits, packed: dict[object, list[list[Node]]]
) -> list[Group]:
    """Every machine block in the order of its number. The machine blocks of a serial block stand
    in reverse, its first one last: the lane that is inside then always goes before those that
    wait to enter, so it runs through alone. ``packed`` keeps what was packed before."""
    facts = find_values(graph, n_threads)
    _, live_out = liveness(graph)
    chains: dict[Block, list[Group]] = {}
    for block in graph.blocks:
        key = block_key(block, live_out[block], limits)
        if key not in packed:
            packed[key] = pack(block, live_out[block], facts, limits)
        chain = [Group(nodes, block, False) for nodes in packed[key]]
        chain[-1].is_last = True
        for group, following in pairwise(chain):
            group.successors = [following]
        chains[block] = chain
    for block, chain in chains.items():
        chain[-1].successors = [chains[successor][0] for successor in block.successors]
    groups: list[Group] = []
    for block in layout(graph):
        groups += reversed(chains[block]) if block.serial else chains[block]
    for group in groups:
        find_reads(group)
    find_liveness(groups)
    return groups


def allocate(
    graph: Graph, spec: MachineSpec, shape: LaunchShape, memory: Memory
) -> tuple[list[Group], Colours]:
    """Pack and colour; while registers do not suffice, spill some and pack again."""
    unspillable: set[Virtual] = set()
    packed: dict[object, list[list[Node]]] = {}
    for spill_round in range(MAX_SPILL_ROUNDS):
        limits = Limits(spec.n_stages, spec.n_registers - 1, in_order=spill_round > 0)
        groups = make_groups(graph, shape.n_threads, limits, packed)
        conflicts = interference(groups)
        weights = _weights(graph, shape.n_threads)
        weights |= dict.fromkeys(unspillable, 1e9)
        colours, failed = colour(
            conflicts, spec.n_registers - 1, weights, find_partners(groups)
        )
        if not failed:
            return groups, colours
        if not limits.in_order:
            continue  # the nodes' own order may already do
        victims = [reg for reg in failed if reg not in unspillable]
        if not victims:
            others = [reg for reg in conflicts if reg not in unspillable]
            victims = sorted(others, key=lambda reg: weights.get(reg, 0.0))[:1]
        if not victims:
            break
        for victim in victims:
            slot = memory.spill_slot()
            unspillable |= Spiller(graph, victim, slot, shape.n_threads).run()
    raise LimitError("registers", len(conflicts), spec.n_registers - 1)


def _weights(graph: Graph, n_threads: int) -> dict[Virtual, float]:
    """What it costs to keep a register in memory: the number of its uses and definitions."""
    depths = loop_depths(graph)
    weights: dict[Virtual, float] = {}
    for block in graph.blocks:
        scale = 8.0 ** min(depths[block], 4)
        for node in block.nodes:
            for reg in (*node.sources(), *([node.dst] if node.dst else [])):
                weights[reg] = weights.get(reg, 0.0) + scale
    return weights


# --- encoding -------------------------------------------------------------------------------------


def encode(groups: list[Group], colours: Colours) -> list[MachineBlock]:
    numbers = {group: n for n, group in enumerate(groups)}
    entries: dict[Block, int] = {}
    followers: dict[Group, int] = {}
    for group in groups:
        if not group.is_last:
            followers[group] = numbers[group.successors[0]]
    inner = {followers[g] for g in followers}
    for n, group in enumerate(groups):
        if n not in inner:
            entries[group.block] = n
    return [_encode_group(group, colours, entries, followers) for group in groups]


def _encode_group(
    group: Group, colours: Colours, entries: dict[Block, int], followers: dict[Group, int]
) -> MachineBlock:
    stages: dict[Virtual, int] = {}
    instructions: list[Instruction] = []
    last = {node.dst: n for n, node in enumerate(group.nodes) if node.dst is not None}

    def source(value: Value | None) -> Source | None:
        if not isinstance(value, Virtual):
            return value
        return Forward(stages[value]) if value in stages else Register(colours.get(value, 0))

    def guard(condition: Condition | None) -> Guard | None:
        if condition is None:
            return None
        found = source(condition.reg)
        assert isinstance(found, Register | Forward)
        return Guard(found, condition.negate)

    for stage, node in enumerate(group.nodes):
        dst = 0
        if node.dst in group.writes and last[node.dst] == stage:
            dst = colours[node.dst]
        instruction = Instruction(
            node.op, source(node.a), source(node.b), source(node.c), guard(node.guard), dst
        )
        if _is_idle(instruction):
            instruction = Instruction(node.op, instruction.a)
        instructions.append(instruction)
        if node.dst is not None:
            stages[node.dst] = stage
    if not group.is_last:
        serial = group.block.serial
        return MachineBlock(tuple(instructions), Target(followers[group], serial=serial))

    def target(edge: Edge) -> Target:
        if edge.block is None:
            return Target(exit=True)
        return Target(
            entries[edge.block], barrier=edge.barrier, serial=edge.block.serial,
            yields=edge.yields,
        )  # fmt: skip

    block = group.block
    taken = target(block.taken) if block.taken is not None else None
    return MachineBlock(
        tuple(instructions), target(block.target), guard(block.condition), taken
    )


def _is_idle(instruction: Instruction) -> bool:
    """A copy of a register to itself."""
    return (
        instruction.op is Op.MOV
        and instruction.guard is None
        and isinstance(instruction.a, Register)
        and instruction.a.index == instruction.dst
    )
