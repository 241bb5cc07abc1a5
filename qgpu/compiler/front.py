"""The first three layers: headers, assembly of values, and the fetch of the block's plan.

Layer ``header``  keeps the last header (and the last Exec) and sees the token one back.
Layer ``assemble`` gathers the pieces of a value, so that every value token carries the whole word.
Layer ``plan``    reads the block's record 0 and tells which register, bank or ROM row is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qgpu.compiler.circuit import Head, Layer, bits_to, rows_of
from qgpu.compiler.embed import Embedding
from qgpu.compiler.space import ONE, Field, Form, Space, as_form
from qgpu.isa import record_layout
from qgpu.machine import WORD_BITS, MachineSpec
from qgpu.tokens import N_PIECES, PIECE_BITS

# What the header latch keeps of the last header token, and of the last Exec.
HEADER_FIELDS = ("is.exec", "is.mem", "is.rom", "mask", "lowest", "remain", "rotate", "bank.row",
                 "bank.write", "record", "block")  # fmt: skip
EXEC_FIELDS = ("block", "warp", "warp.hot")
SPENT_IN_HEADER = ("is.header", "is.rom", "mask", "lowest", "remain", "rotate", "bank.row",
                   "bank.write", "record", "block")  # fmt: skip


@dataclass
class Machine:
    """What the layers share: the spec, the space, and the fields that live long."""

    spec: MachineSpec
    space: Space
    embed: Embedding
    header: dict[str, Field] = field(default_factory=dict)
    current: dict[str, Field] = field(default_factory=dict)
    plan: dict[str, Field] = field(default_factory=dict)
    results: list[Field] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)

    def layer(self, name: str) -> Layer:
        self.layers.append(Layer(name))
        return self.layers[-1]

    @property
    def n_lanes(self) -> int:
        return self.spec.n_lanes


def latch(
    name: str, fields: Sequence[Field], out: Sequence[Field], write: Form, read: Form
) -> Head:
    """A head with one row: keeps ``fields`` from the last token with ``write``."""
    source = [form for one in fields for form in one]
    target = [form for one in out for form in one]
    return Head(name, {0: ONE}, {0: ONE}, bits_to(source), write, read, bits_to(target))


def named_fields(space: Space, prefix: str, layout: list[tuple[str, int]]) -> dict[str, Field]:
    """Fields for a ROM record, one per entry of its layout."""
    return {name: space.alloc(f"{prefix}.{name}", width) for name, width in layout}


def rom_head(m: Machine, record: int, out: dict[int, Form], read: Form) -> Head:
    """The ROM head of one record: row = block; written while a Rom record is fed."""
    spec = m.spec
    width = sum(w for _, w in record_layout(spec, record))
    return Head(
        f"rom.{record}",
        rows_of(m.header["block"], spec.n_blocks, 1),
        rows_of(m.current["block"], spec.n_blocks, 1),
        bits_to(m.plan["value"][:width]),
        m.plan["write.rom"][record],
        read,
        out,
    )


def build_front(m: Machine) -> None:
    _header_layer(m)
    _assemble_layer(m)
    _plan_layer(m)


def _header_layer(m: Machine) -> None:
    layer, e, space = m.layer("header"), m.embed, m.space
    m.header = {n: space.alloc(f"header.{n}", len(e[n])) for n in HEADER_FIELDS}
    m.current = {n: space.alloc(f"current.{n}", len(e[n])) for n in EXEC_FIELDS}
    layer.heads.append(
        latch(
            "header", [e[n] for n in HEADER_FIELDS], list(m.header.values()), e["is.header"][0], ONE
        )
    )
    # Go starts with no current warp, so it overwrites the last Exec with zeros.
    layer.heads.append(
        latch("current", [e[n] for n in EXEC_FIELDS], list(m.current.values()),
              e["is.exec"][0] + e["is.go"][0], ONE)
    )  # fmt: skip
    previous = space.alloc("previous.slot", m.spec.n_stages)
    layer.heads.append(
        Head("previous", {0: ONE}, {0: ONE}, bits_to(e["slot"]), e["is.value"][0],
             e["is.value"][0], bits_to(previous), lag=1)
    )  # fmt: skip
    # A value token opens a value unless the token before it was of the same slot.
    opens = space.alloc("opens", 1)
    layer.relu(e["is.value"][0], opens[0])
    for slot, before in zip(e["slot"], previous, strict=True):
        layer.both([slot, before], -opens[0])
    # What only the latches needed makes room.
    spent = [e[n] for n in SPENT_IN_HEADER]
    layer.clear(*spent)
    space.free(*spent)
    m.plan["opens"] = opens
    m.plan["previous"] = previous


def _assemble_layer(m: Machine) -> None:
    layer, e, space, n = m.layer("assemble"), m.embed, m.space, m.n_lanes
    gathered = space.alloc("gathered", n * WORD_BITS)
    for p in range(N_PIECES):
        dims = [
            lane * WORD_BITS + p * PIECE_BITS + j for lane in range(n) for j in range(PIECE_BITS)
        ]
        layer.heads.append(
            Head(f"piece{p}", {0: ONE}, {0: ONE}, bits_to(e["data"][d] for d in dims),
                 e["piece"][p] + m.plan["opens"][0], e["is.value"][0],
                 bits_to(gathered[d] for d in dims))
        )  # fmt: skip
    # Lane order for registers and ROM, bank order for memory: rotate by the header's amount.
    value = m.plan["value"] = space.alloc("value", n * WORD_BITS)
    for turn, line in enumerate(m.header["rotate"]):
        for lane in range(n):
            bank = (lane + turn) % n
            for i in range(WORD_BITS):
                layer.select(line, gathered[lane * WORD_BITS + i], value[bank * WORD_BITS + i])
    is_value = e["is.value"][0]
    writes = {
        "write.register": (m.header["is.exec"], m.header["mask"]),
        "write.bank": (m.header["is.mem"], m.header["bank.write"]),
        "write.rom": (m.header["is.rom"], m.header["record"]),
    }
    for name, (kind, lines) in writes.items():
        m.plan[name] = space.alloc(name, len(lines))
        for line, out in zip(lines, m.plan[name], strict=True):
            layer.both([is_value, kind[0], line], out)
    spent = [e["data"], gathered, e["piece"], m.plan["opens"], m.plan["previous"]]
    layer.clear(*spent)
    space.free(*spent)


def _plan_layer(m: Machine) -> None:
    layer, e, space, spec = m.layer("plan"), m.embed, m.space, m.spec
    layout = record_layout(spec, 0)
    fields = named_fields(space, "plan", layout)
    m.plan |= fields
    flat = [form for name, _ in layout for form in fields[name]]
    layer.heads.append(rom_head(m, 0, bits_to(flat), ONE))
    destination = m.plan["destination"] = space.alloc("destination", spec.register_bits)
    turn = m.plan["turn"] = space.alloc("turn", spec.n_stages)
    for s in range(spec.n_stages):
        for bit, out in zip(fields[f"dst{s}"], destination, strict=True):
            layer.both([e["slot"][s], bit], out)
        layer.both([e["later"][s], fields[f"writes{s}"][0], m.header["is.exec"][0]], turn[s])


def register_rows(m: Machine, bits: Sequence[Form]) -> dict[int, Form]:
    """Rows of the register file: register number and warp, as forms."""
    return rows_of([*bits, *m.current["warp"]], m.spec.n_warps * m.spec.n_registers, 1)


def register_head(m: Machine, name: str, lane: int, bits: Sequence[Form], out: Sequence[Form],
                  read: Form) -> Head:  # fmt: skip
    """One lane's register file: written by value tokens, read at register ``bits``."""
    start = lane * WORD_BITS
    return Head(
        f"{name}.lane{lane}",
        register_rows(m, m.plan["destination"]),
        register_rows(m, bits),
        bits_to(m.plan["value"][start : start + WORD_BITS]),
        m.plan["write.register"][lane],
        read,
        bits_to(out),
    )


def stage_records(m: Machine, stage: int, layer: Layer, control: dict[str, Field],
                  operands: dict[str, list[Field]]) -> None:  # fmt: skip
    """Reads a stage's control lines, and its immediates into all lanes of the operands."""
    flat = [form for field_ in control.values() for form in field_]
    read = m.embed["is.exec"][0]
    layer.heads.append(rom_head(m, 1 + 2 * stage, bits_to(flat), read))
    immediates: dict[int, Form] = {}
    for k, name in enumerate("abc"):
        for i in range(WORD_BITS):
            form = as_form(0)
            for lane in range(m.n_lanes):
                form = form + operands[name][lane][i]
            immediates[k * WORD_BITS + i] = form
    layer.heads.append(rom_head(m, 2 + 2 * stage, immediates, read))
