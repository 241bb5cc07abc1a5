"""The machine's tokens: what each says, its place in the vocabulary, and how values are spelled.

Tokens are the machine's write-back bus: a value computed high in the layer stack reaches the
registers and the memory low in the stack only as the next tokens' ids. docs/machine.md tells the
protocol; ``KINDS`` declares every kind of token once, with its fields.

A *record* is a header (``Exec``, ``Mem``, ``Rom``) and after it values, one per slot. A value is
one 32-bit word a lane (ROM records use the same form for 127 bits), spelled by ``spell_value`` in
as few tokens as its content allows: the first token of a value clears all of it to the fill, each
token then sets its own piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache

from qgpu.isa import MachineBlock, encode_block, n_records
from qgpu.machine import WORD_BITS, MachineSpec

PIECE_BITS = 2  # bits of each lane in one Val token
N_PIECES = WORD_BITS // PIECE_BITS
BYTES = WORD_BITS // 8
PIECES_PER_BYTE = N_PIECES // BYTES


@dataclass(frozen=True)
class Exec:
    """Run machine block ``block`` for the lanes ``mask`` of ``warp`` in this forward pass."""

    block: int
    warp: int
    mask: int


@dataclass(frozen=True)
class Val:
    """Piece ``piece`` (two bits of every lane) of the value of ``slot``.

    Bit ``PIECE_BITS * lane + j`` of ``payload`` is bit ``PIECE_BITS * piece + j`` of the lane.
    """

    slot: int
    piece: int
    payload: int


@dataclass(frozen=True)
class Uniform:
    """Byte ``byte`` of a value that is the same in every active lane; ``fill`` 1: negative."""

    slot: int
    fill: int
    byte: int
    payload: int


@dataclass(frozen=True)
class Sign:
    """Opens a value with negative lanes: lanes of ``mask`` fill with ones, others with zeros."""

    slot: int
    mask: int


@dataclass(frozen=True)
class Mem:
    """A store: the lowest lane of ``mask`` goes to word ``address``, each lane l above it to the
    word (l - lowest) further on. The words follow as one value."""

    address: int
    mask: int


@dataclass(frozen=True)
class Rom:
    """Host only: record ``record`` of machine block ``block`` follows as one value."""

    block: int
    record: int


@dataclass(frozen=True)
class Warp:
    """Host only: lanes ``mask`` of ``warp`` start at machine block 0, its other lanes never."""

    warp: int
    mask: int


@dataclass(frozen=True)
class Go:
    """Host only: the launch begins; the model writes from here on."""


@dataclass(frozen=True)
class Barrier:
    """Every living lane has arrived: all wait no longer."""


@dataclass(frozen=True)
class Resume:
    """No other lane can go on: those that yielded go on."""


@dataclass(frozen=True)
class Halt:
    """No lane lives: the launch has ended."""


Token = Exec | Val | Uniform | Sign | Mem | Rom | Warp | Go | Barrier | Resume | Halt
KINDS: tuple[type, ...] = (
    Exec, Val, Uniform, Sign, Mem, Rom, Warp, Go, Barrier, Resume, Halt,
)  # fmt: skip
KIND_BITS = 4
VALUE_KINDS = (Val, Uniform, Sign)
HEADER_KINDS = (Exec, Mem, Rom)


def field_sizes(spec: MachineSpec, kind: type) -> dict[str, tuple[int, int]]:
    """Field -> (lowest value, number of values) of a kind of token."""
    masks = (1, spec.all_lanes)
    piece_values = 1 << (PIECE_BITS * spec.n_lanes)
    table: dict[type, dict[str, tuple[int, int]]] = {
        Exec: {"block": (0, spec.n_blocks), "warp": (0, spec.n_warps), "mask": masks},
        Val: {"slot": (0, spec.n_stages), "piece": (0, N_PIECES), "payload": (0, piece_values)},
        Uniform: {"slot": (0, spec.n_stages), "fill": (0, 2), "byte": (0, BYTES),
                  "payload": (0, 256)},
        Sign: {"slot": (0, spec.n_stages), "mask": masks},
        Mem: {"address": (0, spec.n_words), "mask": masks},
        Rom: {"block": (0, spec.n_blocks), "record": (0, n_records(spec))},
        Warp: {"warp": (0, spec.n_warps), "mask": (0, spec.all_lanes + 1)},
    }  # fmt: skip
    return table.get(kind, {})


@cache
def tokens(spec: MachineSpec) -> tuple[Token, ...]:
    """Every token of the machine; a token's place here is its offset in the vocabulary."""

    def spell(kind: type, sizes: list[tuple[int, int]], values: tuple[int, ...]) -> Iterator[Token]:
        if not sizes:
            yield kind(*values)
            return
        lowest, count = sizes[0]
        for value in range(lowest, lowest + count):
            yield from spell(kind, sizes[1:], (*values, value))

    return tuple(
        token for kind in KINDS for token in spell(kind, list(field_sizes(spec, kind).values()), ())
    )


@cache
def _offsets(spec: MachineSpec) -> dict[Token, int]:
    return {token: offset for offset, token in enumerate(tokens(spec))}


def offset_of(spec: MachineSpec, token: Token) -> int:
    """The token's offset from the first machine token id."""
    return _offsets(spec)[token]


def name_of(token: Token) -> str:
    """The token's text in the tokenizer, such as ``<|gpu_exec_b3_w0_m15|>``."""
    parts = [f"{f.name[0]}{getattr(token, f.name)}" for f in fields(token)]
    return "<|" + "_".join(["gpu", type(token).__name__.lower(), *parts]) + "|>"


def code_bits(spec: MachineSpec) -> int:
    """Bits of the output code by which the last circuit layer names the next token."""
    return KIND_BITS + max(
        sum(width for _, width in field_widths(spec, kind)) for kind in KINDS
    )


def field_widths(spec: MachineSpec, kind: type) -> list[tuple[str, int]]:
    """Fields of the kind with their widths in the output code, least significant first."""
    return [
        (name, max(1, (lowest + count - 1).bit_length()))
        for name, (lowest, count) in field_sizes(spec, kind).items()
    ]


def code_of(spec: MachineSpec, token: Token) -> int:
    """The token's output code: its kind, then its fields; unused bits are zero."""
    code, shift = KINDS.index(type(token)), KIND_BITS
    for (_, width), value in zip(field_widths(spec, type(token)), astuple(token), strict=True):
        code |= value << shift
        shift += width
    return code


# --- spelling -----------------------------------------------------------------------------------


def lanes_of(mask: int) -> list[int]:
    """The lanes of a mask, lowest first."""
    return [lane for lane in range(mask.bit_length()) if mask >> lane & 1]


def spell_value(spec: MachineSpec, slot: int, words: Sequence[int], mask: int) -> list[Token]:
    """The tokens of one value: ``words[lane]`` for the lanes of ``mask`` (never empty).

    A value that is the same in all those lanes goes by bytes, any other by pieces of two bits a
    lane; bytes or pieces that equal the fill (the sign, spread) are left out.
    """
    lanes = lanes_of(mask)
    if len({words[lane] for lane in lanes}) == 1:
        word = words[lanes[0]]
        fill = word >> (WORD_BITS - 1)
        filled = 0xFF if fill else 0
        data = word.to_bytes(BYTES, "little")
        spelled: list[Token] = [
            Uniform(slot, fill, n, byte) for n, byte in enumerate(data) if byte != filled
        ]
        return spelled or [Uniform(slot, fill, 0, filled)]
    negative = sum(1 << lane for lane in lanes if words[lane] >> (WORD_BITS - 1))
    piece_mask = (1 << PIECE_BITS) - 1
    fill = sum(piece_mask << (PIECE_BITS * lane) for lane in lanes_of(negative))
    spelled = [Sign(slot, negative)] if negative else []
    for piece in range(N_PIECES):
        payload = sum(
            (words[lane] >> (PIECE_BITS * piece) & piece_mask) << (PIECE_BITS * lane)
            for lane in lanes
        )
        if payload != fill:
            spelled.append(Val(slot, piece, payload))
    return spelled


def read_value(spec: MachineSpec, spelled: Iterable[Token]) -> list[int]:
    """The words that a value's tokens spell, one a lane: the inverse of ``spell_value``."""
    words = [0] * spec.n_lanes
    ones = (1 << WORD_BITS) - 1
    piece_mask = (1 << PIECE_BITS) - 1
    for place, token in enumerate(spelled):
        match token:
            case Sign(_, mask):
                words = [ones if mask >> lane & 1 else 0 for lane in range(spec.n_lanes)]
            case Uniform(_, fill, byte, payload):
                if place == 0:
                    words = [ones if fill else 0] * spec.n_lanes
                words = [w & ~(0xFF << (8 * byte)) | payload << (8 * byte) for w in words]
            case Val(_, piece, payload):
                at = PIECE_BITS * piece
                words = [
                    w & ~(piece_mask << at) | (payload >> (PIECE_BITS * lane) & piece_mask) << at
                    for lane, w in enumerate(words)
                ]
            case _:
                raise ValueError(f"{token} does not spell a value")
    return words


def program_tokens(spec: MachineSpec, blocks: Sequence[MachineBlock]) -> list[Token]:
    """What the host feeds to load a program into the ROM; records of zeros need no token."""
    fed: list[Token] = []
    for index, block in enumerate(blocks):
        for record, bits in enumerate(encode_block(spec, block)):
            if bits:
                words = [bits >> (WORD_BITS * lane) & 0xFFFFFFFF for lane in range(spec.n_lanes)]
                fed += [Rom(index, record), *spell_value(spec, 0, words, spec.all_lanes)]
    return fed


def memory_tokens(spec: MachineSpec, words: Sequence[int], base: int = 0) -> list[Token]:
    """What the host feeds to lay ``words`` into memory from word ``base`` on; it starts zero."""
    fed: list[Token] = []
    for start in range(0, len(words), spec.n_lanes):
        group = list(words[start : start + spec.n_lanes])
        if any(group):
            mask = (1 << len(group)) - 1
            padded = group + [0] * (spec.n_lanes - len(group))
            fed += [Mem(base + start, mask), *spell_value(spec, 0, padded, mask)]
    return fed


def launch_tokens(spec: MachineSpec, n_threads: int) -> list[Token]:
    """What the host feeds to start ``n_threads`` threads: a Warp token for every warp, then Go."""
    fed: list[Token] = []
    for warp in range(spec.n_warps):
        live = min(max(n_threads - warp * spec.n_lanes, 0), spec.n_lanes)
        fed.append(Warp(warp, (1 << live) - 1))
    return [*fed, Go()]
