"""The layer plan: the whole machine as an ordered list of layers, for one spec and one width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from qgpu.compiler import embed, schedule, serialize, stage
from qgpu.compiler.circuit import GAIN, Layer
from qgpu.compiler.front import Machine, build_front, stage_records
from qgpu.compiler.space import Field, Space, SpaceError, total
from qgpu.errors import CompileError, LimitError
from qgpu.machine import WORD_BITS, MachineSpec

N_CIRCUIT_LAYERS = 45
N_GUARDS = 32
CODE_COPIES = 3
CODE_VALUE = 2.0**24


@dataclass(frozen=True)
class Widths:
    """The widths of the base that the circuit is built for, from its config."""

    hidden: int
    intermediate: int
    n_key_heads: int
    n_value_heads: int
    head_dim: int
    conv_kernel: int
    eps: float

    @property
    def n_pins(self) -> int:
        """The least n >= 2 for which hidden / n is a power of 4, so that the norm's scale is exact.

        Two or more, since a constant that bf16 cannot hold is split over two pins.
        """
        n = self.hidden
        while n % 4 == 0:
            n //= 4
        return n if n >= 2 else 4


@dataclass(frozen=True)
class MemoryPlace:
    """Where the machine's memory lies in the recurrent state: one head per bank, in one layer.

    Word a is row a // n_banks of the head of bank a % n_banks; its bits are value dims 0..31.
    """

    layer: int
    heads: list[int]
    n_words: int

    def words(self, tables: np.ndarray) -> np.ndarray:
        """[n_words] uint32 from the heads' tables [n_banks, rows, values]."""
        rows = self.n_words // len(self.heads)
        bits = (tables[:, :rows, :WORD_BITS] > GAIN / 2).astype(np.uint32)
        words = (bits << np.arange(WORD_BITS, dtype=np.uint32)).sum(-1, dtype=np.uint32)
        return words.T.reshape(-1)


@dataclass
class Plan:
    """Layers in order and the embedding's fields.

    ``code`` are the dims of the output code: CODE_COPIES for each bit, written by the last layer as
    +-CODE_VALUE, next to which all that Qwen's own layers add is below half a bf16 ulp.
    """

    spec: MachineSpec
    widths: Widths
    space: Space
    embedding: embed.Embedding
    layers: list[Layer]
    code: list[Field]

    @property
    def memory_place(self) -> MemoryPlace:
        """The copy of the memory that the first lane of the first stage reads."""
        for index, layer in enumerate(self.layers):
            heads = [
                h for h, head in enumerate(layer.heads) if head.name.startswith("memory.lane0.")
            ]
            if heads:
                return MemoryPlace(index, heads, self.spec.n_words)
        raise AssertionError("a plan has a memory layer")


@cache
def build_plan(
    spec: MachineSpec,
    widths: Widths,
    guards: tuple[int, ...] = tuple(range(N_GUARDS)),
    weak: frozenset[int] = frozenset(),
) -> Plan:
    """The plan, with the guard dims of silence.py and the code kept off the ``weak`` dims.

    Raises CompileError or LimitError where the base is too narrow.
    """
    try:
        plan = _build(spec, widths, guards, weak)
    except SpaceError as error:
        raise CompileError(f"hidden size {widths.hidden} is too narrow: {error}") from None
    if len(plan.layers) > N_CIRCUIT_LAYERS:
        raise LimitError("circuit layers", len(plan.layers), N_CIRCUIT_LAYERS)
    for layer in plan.layers:
        if len(layer.heads) > widths.n_key_heads:
            raise LimitError(f"heads in {layer.name}", len(layer.heads), widths.n_key_heads)
        if len(layer.neurons) > widths.intermediate:
            raise LimitError(f"neurons in {layer.name}", len(layer.neurons), widths.intermediate)
    return plan


def _build(
    spec: MachineSpec, widths: Widths, guards: tuple[int, ...], weak: frozenset[int]
) -> Plan:
    space = Space(widths.hidden, widths.n_pins, guards)
    embedding = embed.allocate(spec, space)
    m = Machine(spec, space, embedding)
    build_front(m)
    work = stage.allocate(m)
    plan_layer = m.layers[-1]
    stage_records(m, 0, plan_layer, work.control, stage.operands_of(work))
    m.plan["next.slot"] = space.alloc("next.slot", spec.n_stages)
    for s in range(spec.n_stages):
        stage.build_stage(m, work, s, last=s == spec.n_stages - 1)
    # The next slot is known early, and the first fetch has neurons to spare.
    serialize.next_slot(m, next(layer for layer in m.layers if layer.name == "stage0.fetch"))
    space.free(*work.control.values(), *work.fields)
    output = _back(m)
    return Plan(spec, widths, space, embedding, m.layers, _name(m, output, weak))


def _name(m: Machine, output: serialize.Output, weak: frozenset[int]) -> list[Field]:
    """The last layer: the output bits as a code of +-CODE_VALUE on dims that nothing needs now."""
    layer = m.layer("name")
    words = [f for name, f in m.space.live.items() if ".word" in name]
    m.space.free(*words)
    code = [m.space.alloc(f"code{i}", CODE_COPIES, avoid=weak) for i in range(len(output.bits))]
    for bit, dims in zip(output.bits, code, strict=True):
        layer.relu(1, total(dims) * -CODE_VALUE)
        layer.relu(bit, total(dims) * (2 * CODE_VALUE))
    return code


def _back(m: Machine) -> serialize.Output:
    """The layers behind the stages: spell results, find stores, schedule, name the next token."""
    gather, inspect, choose, rank, spell, compare, pick, say = (
        m.layer(name)
        for name in ("gather", "inspect", "choose", "rank", "spell", "compare", "pick", "say")
    )
    stage.keep_result(m, gather, m.spec.n_stages - 1)
    candidates = serialize.gather(m, gather)
    stores = serialize.find_stores(m, gather)
    schedule.forward_condition(m, gather)
    serialize.inspect(m, inspect, candidates)
    serialize.lead_stores(m, inspect, stores)
    states = schedule.branch(m, inspect)
    signed, opens_signed = m.space.alloc("next.signed", 1)[0], m.space.alloc("next.opens", 1)[0]
    serialize.choose(m, choose, candidates, signed)
    serialize.group_stores(m, choose, stores)
    warps = schedule.survey(m, choose, states)
    serialize.rank(rank, candidates, signed, opens_signed)
    schedule.can_run(m, rank, warps)
    output = serialize.Output(m)
    serialize.spell(m, spell, candidates, opens_signed, output)
    serialize.say_store(spell, stores, candidates, output)
    schedule.choose_warp(spell, warps)
    order = schedule.compare_lanes(m, compare, states, warps)
    schedule.pick_lanes(m, pick, order)
    schedule.say_schedule(m, say, order, warps, candidates, stores, output)
    return output
