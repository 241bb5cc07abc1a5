"""The serializer: which value piece or store comes next, as an output code.

It sees the block's results (latched since Exec), the header's mask and the token's own place
(``slot``, ``after``), so "what is left" needs no state of its own. Two candidates are carried in
parallel: the slot that is being spelled (``now``) and the slot whose turn is next (``next``).
"""

from __future__ import annotations

from dataclasses import dataclass

from qgpu.compiler.circuit import Layer
from qgpu.compiler.front import Machine, latch
from qgpu.compiler.space import Field, Form, total
from qgpu.machine import WORD_BITS
from qgpu.tokens import (
    BYTES,
    KIND_BITS,
    KINDS,
    N_PIECES,
    PIECE_BITS,
    PIECES_PER_BYTE,
    Mem,
    Sign,
    Uniform,
    Val,
    code_bits,
    field_widths,
)


@dataclass
class Candidate:
    """One slot's value, masked, and what is known of it."""

    slot: list[Form]
    words: list[Field]
    differs: Field  # > 0: the active lanes are not all equal
    unlike: Field  # per piece: bits that differ from the fill
    uniform: Form
    waiting: Field  # pieces to be written
    first: Field  # one-hot, the first of them


class Output:
    """Collects the output code's bits: ``say(layer, gate, kind, ...)`` where the gate is 1."""

    def __init__(self, m: Machine) -> None:
        self.spec = m.spec
        self.bits = m.space.alloc("output", code_bits(m.spec))

    def kind(self, kind: type) -> Form:
        number = KINDS.index(kind)
        return total(bit for i, bit in enumerate(self.bits[:KIND_BITS]) if number >> i & 1)

    def part(self, kind: type, name: str) -> list[Form]:
        at = KIND_BITS
        for field, width in field_widths(self.spec, kind):
            if field == name:
                return list(self.bits[at : at + width])
            at += width
        raise KeyError(name)

    def number(self, kind: type, name: str, value: int) -> Form:
        return total(bit for i, bit in enumerate(self.part(kind, name)) if value >> i & 1)


def next_slot(m: Machine, layer: Layer) -> None:
    """One-hot: the slot whose value comes after the present one, or the store's after Mem."""
    turn, spec = m.plan["turn"], m.spec
    upcoming = m.plan["next.slot"]
    for s in range(spec.n_stages):
        layer.relu(turn[s] - total(turn[:s]), upcoming[s])
        layer.both([m.embed["is.mem"][0], m.plan[f"stores{s}"][0]], upcoming[s])


def gather(m: Machine, layer: Layer) -> list[Candidate]:
    """Both candidates' words, zero in lanes outside the header's mask."""
    space, n = m.space, m.n_lanes
    candidates = []
    for name, slot in (("now", m.embed["slot"]), ("next", m.plan["next.slot"])):
        words = [space.alloc(f"{name}.word{lane}", WORD_BITS) for lane in range(n)]
        for s, line in enumerate(slot):
            for lane, source in enumerate(m.results[s].split(WORD_BITS)):
                active = line + m.header["mask"][lane] - 1
                for bit, out in zip(source, words[lane], strict=True):
                    layer.select(active, bit, out)
        candidates.append(
            Candidate(
                list(slot), words,
                space.alloc(f"{name}.differs", 1, 1 / 64),
                space.alloc(f"{name}.unlike", N_PIECES, 1 / 8),
                space.alloc(f"{name}.uniform", 1)[0],
                space.alloc(f"{name}.waiting", N_PIECES),
                space.alloc(f"{name}.first", N_PIECES),
            )
        )  # fmt: skip
    return candidates


def inspect(m: Machine, layer: Layer, candidates: list[Candidate]) -> None:
    """Are all lanes equal? Which pieces are not the fill?"""
    mask = m.header["mask"]
    for c in candidates:
        for i in range(m.n_lanes):
            for j in range(m.n_lanes):
                if i == j:
                    continue
                both_active = mask[i] + mask[j] - 2
                for x, y in zip(c.words[i], c.words[j], strict=True):
                    layer.relu(x - y + both_active, c.differs[0])
        for word in c.words:
            sign = word[WORD_BITS - 1]
            for bit in range(WORD_BITS - 1):
                out = c.unlike[bit // PIECE_BITS]
                layer.relu(word[bit] - sign, out)
                layer.relu(sign - word[bit], out)


def choose(m: Machine, layer: Layer, candidates: list[Candidate], signed: Form) -> None:
    """The pieces left to write; ``signed``: some lane of the next value is negative."""
    now, following = candidates
    for c in candidates:
        layer.relu(1 - c.differs[0], c.uniform)
    for p in range(N_PIECES):
        layer.step(now.unlike[p], now.waiting[p], m.embed["after"][p])
        layer.step(following.unlike[p], following.waiting[p])
    layer.step(total(word[WORD_BITS - 1] for word in following.words), signed)


def rank(layer: Layer, candidates: list[Candidate], signed: Form, opens_signed: Form) -> None:
    """The first piece of each; whether the next value opens with Sign."""
    for c in candidates:
        for p in range(N_PIECES):
            layer.relu(c.waiting[p] - total(c.waiting[:p]), c.first[p])
    layer.relu(signed - candidates[1].uniform, opens_signed)


def spell(m: Machine, layer: Layer, candidates: list[Candidate], opens_signed: Form,
          out: Output) -> None:  # fmt: skip
    """Writes the value token's code: the present slot's next piece, else the next slot's first."""
    now, following = candidates
    left = now.first.sum
    _pieces(m, layer, now, out, -now.uniform)
    _pieces(m, layer, following, out, -following.uniform - left - opens_signed)
    _bytes(m, layer, now, out, now.uniform - 1)
    _bytes(m, layer, following, out, following.uniform - 1 - left)
    # A uniform value that is all fill: byte 0, spelled out.
    bare = total(following.slot) + following.uniform - 1 - left - following.first.sum
    _slot(layer, bare, following, out, Uniform)
    for lane, lowest in enumerate(m.header["lowest"]):
        sign = following.words[lane][WORD_BITS - 1]
        ones = out.number(Uniform, "payload", 0xFF) + out.number(Uniform, "fill", 1)
        layer.relu(bare + lowest - 1, ones, sign)
    sign_first = opens_signed - left
    _slot(layer, sign_first, following, out, Sign)
    for lane, bit in enumerate(out.part(Sign, "mask")):
        layer.select(sign_first, following.words[lane][WORD_BITS - 1], bit)


def _slot(layer: Layer, gate: Form, c: Candidate, out: Output, kind: type) -> None:
    """Kind and slot; ``gate`` is 1 at most once over a candidate's uses."""
    layer.relu(gate, out.kind(kind))
    for s, line in enumerate(c.slot):
        number = out.number(kind, "slot", s)
        if number:
            layer.relu(gate + line - 1, number)


def _pieces(m: Machine, layer: Layer, c: Candidate, out: Output, when: Form) -> None:
    _slot(layer, c.first.sum + when, c, out, Val)
    payload = out.part(Val, "payload")
    for p in range(N_PIECES):
        gate = c.first[p] + when
        number = out.number(Val, "piece", p)
        if number:
            layer.relu(gate, number)
        for lane, word in enumerate(c.words):
            for j in range(PIECE_BITS):
                bit = payload[PIECE_BITS * lane + j]
                layer.select(gate, word[PIECE_BITS * p + j], bit)


def _bytes(m: Machine, layer: Layer, c: Candidate, out: Output, when: Form) -> None:
    _slot(layer, c.first.sum + when, c, out, Uniform)
    payload = out.part(Uniform, "payload")
    for q in range(BYTES):
        gate = total(c.first[q * PIECES_PER_BYTE : (q + 1) * PIECES_PER_BYTE]) + when
        number = out.number(Uniform, "byte", q)
        if number:
            layer.relu(gate, number)
        for lane, lowest in enumerate(m.header["lowest"]):
            for i, bit in enumerate(payload):
                layer.select(gate + lowest - 1, c.words[lane][8 * q + i], bit)
    for lane, lowest in enumerate(m.header["lowest"]):
        fill = out.number(Uniform, "fill", 1)
        layer.select(c.first.sum + when + lowest - 1, c.words[lane][WORD_BITS - 1], fill)


@dataclass
class Stores:
    """The block's stores that are still to come, and the group that goes first."""

    pending: Field
    near: dict[tuple[int, int], Form]  # lanes (i, j): address j - address i = j - i
    leader: Field
    breaks: dict[tuple[int, int], Form]
    group: Field
    address: Field


def find_stores(m: Machine, layer: Layer) -> Stores:
    """Latches the store's addresses; finds pending lanes and pairs that fit into one group."""
    space, n, bits = m.space, m.n_lanes, m.spec.word_bits
    address, valid = m.plan["store.address"], m.plan["store.valid"]
    exec_, go = m.embed["is.exec"][0], m.embed["is.go"][0]
    layer.heads.append(
        latch("store", [address, valid], [address, valid], exec_ + go, 1 - exec_ - go)
    )
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    near = dict(zip(pairs, space.alloc("store.near", len(pairs)), strict=True))
    breaks = dict(zip(pairs, space.alloc("store.breaks", len(pairs)), strict=True))
    stores = Stores(
        space.alloc("store.pending", n), near, space.alloc("store.leader", n), breaks,
        space.alloc("store.group", n), space.alloc("store.word", bits),
    )  # fmt: skip
    words = [f.number for f in address.split(bits)]
    for i, j in pairs:
        layer.equal(words[j] - words[i] - (j - i), near[i, j])
    for lane in range(n):
        layer.both([valid[lane], m.header["remain"][lane]], stores.pending[lane])
    return stores


def lead_stores(m: Machine, layer: Layer, stores: Stores) -> None:
    pending = stores.pending
    for lane in range(m.n_lanes):
        layer.relu(pending[lane] - total(pending[:lane]), stores.leader[lane])
    for (i, j), out in stores.breaks.items():
        layer.relu(pending[j] - stores.near[i, j], out)


def group_stores(m: Machine, layer: Layer, stores: Stores) -> None:
    n, bits = m.n_lanes, m.spec.word_bits
    for lane, address in enumerate(m.plan["store.address"].split(bits)):
        leader = stores.leader[lane]
        layer.relu(leader, stores.group[lane])
        for other in range(lane + 1, n):
            broken = total(stores.breaks[lane, k] for k in range(lane + 1, other + 1))
            layer.relu(leader + stores.pending[other] - 1 - broken, stores.group[other])
        for bit, out in zip(address, stores.address, strict=True):
            layer.both([leader, bit], out)


def say_store(layer: Layer, stores: Stores, candidates: list[Candidate], out: Output) -> None:
    now, following = candidates
    gate = stores.leader.sum - now.first.sum - total(following.slot)
    layer.relu(gate, out.kind(Mem))
    for source, name in ((stores.address, "address"), (stores.group, "mask")):
        for bit, target in zip(source, out.part(Mem, name), strict=True):
            layer.select(gate, bit, target)
