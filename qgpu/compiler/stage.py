"""One stage of a machine block: seven layers that execute one instruction for all lanes.

  fetch    registers into operands A, B, C and guard G; results of earlier stages forwarded
  decode   op lines per lane (op and guard), adder digits, shift and byte selectors, mul products
  carry    carries of the adder, coarse shift, mul column sums
  compare  comparison results, mul digits
  sum      sums and addresses, fine shift, minimum and maximum
  memory   the load; logic, byte and lane permutes, counts
  finish   mul's final sum; control of the next stage

Each operation's circuit adds its result to the stage's result field only where its own line is on,
so results never mix. alu.py and multiply.py hold the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from qgpu.compiler import alu, multiply
from qgpu.compiler.circuit import Head, Layer, bits_to, rows_of
from qgpu.compiler.front import Machine, latch, named_fields, register_head, stage_records
from qgpu.compiler.space import Field, Form, total
from qgpu.isa import record_layout
from qgpu.machine import WORD_BITS

OPERANDS = "abc"
# Lines that are needed per lane, ANDed with the guard.
LANE_LINES = (
    "MOV", "SUM", "LT", "GE", "EQ", "NE", "MIN", "MAX", "AND", "OR", "XOR", "SHL", "SHR", "SAR",
    "MUL_LO", "MUL_HI", "POPC", "CLZ", "BREV", "PRMT", "SHFL", "BALLOT", "TID", "LD", "ST",
)  # fmt: skip


@dataclass
class Lane:
    """The fields of one lane within a stage."""

    index: int
    a: Field
    b: Field
    c: Field
    guard: Field
    on: dict[str, Form]  # op lines ANDed with the guard
    otherwise: Form  # the guard is false: the result is C
    result: Field
    address: Field  # word address, then a count of bits beyond the memory
    scratch: Field  # products and columns of mul; byte selectors; shifted words
    digits: Field
    carry: Field
    select: Field  # shift: left 8, right 8, coarse left 4, coarse right 4; lanes of a shuffle
    flags: Field  # carry in, propagate count, shift >= 32, pick a, pick b


@dataclass
class Workspace:
    """The fields that every stage uses anew."""

    control: dict[str, Field]
    lanes: list[Lane]
    fields: list[Field]

    def line(self, name: str) -> Form:
        return self.control[name][0]


def allocate(m: Machine) -> Workspace:
    """Fields shared by all stages; ``result`` is set by each stage."""
    space, n = m.space, m.n_lanes
    control = named_fields(space, "control", record_layout(m.spec, 1))
    sizes = {
        "a": WORD_BITS, "b": WORD_BITS, "c": WORD_BITS, "guard": 1, "on": len(LANE_LINES) + 1,
        "address": m.spec.word_bits + 1, "scratch": 2 * WORD_BITS, "digits": 8, "carry": 8,
        "select": 24 + n, "flags": 5,
    }  # fmt: skip
    units = {"scratch": 1 / 32, "address": 1 / 4, "digits": 1 / 2, "flags": 1 / 8}
    lanes, fields = [], []
    for lane in range(n):
        f = {k: space.alloc(f"lane{lane}.{k}", v, units.get(k, 1.0)) for k, v in sizes.items()}
        fields += list(f.values())
        on = dict(zip(LANE_LINES, f["on"], strict=False))
        lanes.append(
            Lane(lane, f["a"], f["b"], f["c"], f["guard"], on, f["on"][len(LANE_LINES)], f["a"],
                 f["address"], f["scratch"], f["digits"], f["carry"], f["select"], f["flags"])
        )  # fmt: skip
    return Workspace(control, lanes, fields)


def operands_of(w: Workspace) -> dict[str, list[Field]]:
    return {name: [getattr(lane, name) for lane in w.lanes] for name in OPERANDS}


def build_stage(m: Machine, w: Workspace, stage: int, last: bool) -> None:
    """Appends the stage's seven layers."""
    names = ("fetch", "decode", "carry", "compare", "sum", "memory", "finish")
    layers = [m.layer(f"stage{stage}.{name}") for name in names]
    fetch, decode, carry, compare, add, memory, finish = layers
    result = m.space.alloc(f"result{stage}", m.n_lanes * WORD_BITS)
    for lane, field in zip(w.lanes, result.split(WORD_BITS), strict=True):
        lane.result = field
    _fetch(m, w, fetch, stage)
    if stage > 0:
        keep_result(m, decode, stage - 1)
    else:
        _read_branch(m, decode)
    _decode(w, decode)
    for lane in w.lanes:
        alu.digits(w, lane, decode)
        alu.shift_select(w, lane, decode)
        alu.byte_select(w, lane, decode)
        alu.lane_select(m, w, lane, decode)
        multiply.products(w, lane, decode)
        alu.carries(lane, carry)
        alu.shift_coarse(lane, carry)
        multiply.columns(w, lane, carry)
        alu.compares(lane, compare)
        multiply.digits(w, lane, compare)
        alu.sums(w, lane, add)
        alu.addresses(m.spec.word_bits, w, lane, add)
        alu.shift_fine(lane, add)
        alu.picks(lane, add)
        multiply.adder(w, lane, add)
        alu.logic(lane, memory)
        alu.counts(lane, memory)
        alu.bytes_out(lane, memory)
        alu.across(m, w, lane, memory)
        multiply.carries(w, lane, memory)
        multiply.finish(lane, finish)
    _memory(m, w, memory)
    _stores(m, w, memory)
    memory.clear(*w.control.values())
    for lane in w.lanes:
        memory.clear(lane.a, lane.b, lane.c)
    m.results.append(result)
    if not last:
        stage_records(m, stage + 1, finish, w.control, operands_of(w))
    finish.clear(*(f for f in w.fields if f.name.split(".")[1] not in OPERANDS))


def _fetch(m: Machine, w: Workspace, layer: Layer, stage: int) -> None:
    read = m.embed["is.exec"][0]
    for name in OPERANDS:
        for lane in w.lanes:
            bits, out = w.control[f"{name}.reg"], getattr(lane, name)
            layer.heads.append(register_head(m, name, lane.index, bits, out, read))
    for lane in w.lanes:
        bits = w.control["g.reg"]
        layer.heads.append(register_head(m, "guard", lane.index, bits, lane.guard, read))
    for s in range(stage):
        for lane in w.lanes:
            source = m.results[s].split(WORD_BITS)[lane.index]
            for name in OPERANDS:
                for bit, out in zip(source, getattr(lane, name), strict=True):
                    layer.select(w.line(f"{name}.fwd{s}"), bit, out)
            layer.select(w.line(f"g.fwd{s}"), source[0], lane.guard[0])


def _decode(w: Workspace, layer: Layer) -> None:
    """Op lines per lane: the op's line, where the guard lets it through."""
    for lane in w.lanes:
        guard = lane.guard[0]
        for name, out in lane.on.items():
            line = w.line(name)
            layer.both([line, w.line("guard.none")], out)
            layer.both([line, w.line("guard.if"), guard], out)
            layer.both([line, w.line("guard.ifnot"), 1 - guard], out)
        layer.both([w.line("guard.if"), 1 - guard], lane.otherwise)
        layer.both([w.line("guard.ifnot"), guard], lane.otherwise)


def keep_result(m: Machine, layer: Layer, stage: int) -> None:
    """Keeps a stage's result for the value tokens that will spell it out."""
    exec_ = m.embed["is.exec"][0]
    for lane, field in enumerate(m.results[stage].split(WORD_BITS)):
        layer.heads.append(latch(f"result{stage}.lane{lane}", [field], [field], exec_, 1 - exec_))


def _read_branch(m: Machine, layer: Layer) -> None:
    """The branch condition's register, a bit per lane; a forwarded one is added at the end."""
    condition = m.plan["condition"] = m.space.alloc("condition", m.n_lanes)
    for lane in range(m.n_lanes):
        layer.heads.append(
            register_head(m, "branch", lane, m.plan["branch.reg"], [condition[lane]],
                          m.embed["is.exec"][0])
        )  # fmt: skip


def bank_rows(m: Machine, bank: int) -> list[Form]:
    width = m.spec.word_bits - 2
    return list(m.header["bank.row"][bank * width : (bank + 1) * width])


def _memory(m: Machine, w: Workspace, layer: Layer) -> None:
    """A copy of the memory per stage: for each lane a head per bank, 32 bits a row."""
    n, bits = m.n_lanes, m.spec.word_bits
    for lane in w.lanes:
        for bank in range(n):
            low = lane.address[:2]
            match = total(b if bank >> i & 1 else -b for i, b in enumerate(low)) - bank.bit_count()
            enable = lane.on["LD"] + match - lane.address[bits]
            start = bank * WORD_BITS
            layer.heads.append(
                Head(
                    f"memory.lane{lane.index}.bank{bank}",
                    rows_of(bank_rows(m, bank), m.spec.n_words // n, 1),
                    rows_of(lane.address[2:bits], m.spec.n_words // n, enable),
                    bits_to(m.plan["value"][start : start + WORD_BITS]),
                    m.plan["write.bank"][bank],
                    lane.on["LD"],
                    bits_to(lane.result),
                )
            )


def _stores(m: Machine, w: Workspace, layer: Layer) -> None:
    """Address and validity of the block's store, for the serializer; the data is the result."""
    bits = m.spec.word_bits
    if "store.address" not in m.plan:
        m.plan["store.address"] = m.space.alloc("store.address", m.n_lanes * bits)
        m.plan["store.valid"] = m.space.alloc("store.valid", m.n_lanes)
    for lane, address in zip(w.lanes, m.plan["store.address"].split(bits), strict=True):
        store = lane.on["ST"]
        for bit, out in zip(lane.address[:bits], address, strict=True):
            layer.both([store, bit], out)
        valid = m.plan["store.valid"][lane.index]
        layer.relu(store + m.header["mask"][lane.index] - 1 - lane.address[bits], valid)
        for bit, out in zip(lane.c, lane.result, strict=True):
            layer.select(store, bit, out)
