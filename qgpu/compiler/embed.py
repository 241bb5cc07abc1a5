"""What a machine token's embedding row says: named fields of bits, a function of the token alone.

Everything static about a token is spelled out here (one-hot forms, the memory bank that each lane
falls on, "all pieces after this one"), so that the layers need no logic to decode tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from qgpu.compiler.space import Field, Space
from qgpu.isa import n_records
from qgpu.machine import WORD_BITS, MachineSpec
from qgpu.tokens import (
    N_PIECES,
    PIECES_PER_BYTE,
    VALUE_KINDS,
    Barrier,
    Exec,
    Go,
    Mem,
    Resume,
    Rom,
    Sign,
    Token,
    Uniform,
    Val,
    Warp,
    lanes_of,
    read_value,
)


def one_hot(index: int, n: int) -> list[int]:
    return [int(i == index) for i in range(n)]


def bits_of(number: int, n: int) -> list[int]:
    return [number >> i & 1 for i in range(n)]


def field_sizes(spec: MachineSpec) -> dict[str, int]:
    """Every embedding field and its number of dims."""
    lanes = spec.n_lanes
    return {
        "is.exec": 1, "is.value": 1, "is.header": 1, "is.mem": 1, "is.rom": 1, "is.go": 1,
        "is.barrier": 1, "is.resume": 1, "is.warp": 1,
        "slot": spec.n_stages,  # one-hot, value tokens
        "later": spec.n_stages,  # slots whose turn is still to come
        "piece": N_PIECES,  # pieces that a value token sets
        "after": N_PIECES,  # pieces whose turn is still to come
        "data": lanes * WORD_BITS,  # the bits it sets, fill included
        "block": spec.block_bits,  # Exec and Rom
        "warp": spec.warp_bits, "warp.hot": spec.n_warps,  # Exec and Warp
        "mask": lanes,  # Exec and Mem
        "lowest": lanes,  # one-hot, the lowest lane of the mask
        "remain": lanes,  # lanes whose store is still to come
        "start": lanes,  # Warp: lanes that come alive
        "moves": lanes,  # lanes whose pc this token sets (Exec: mask, Warp: all)
        "rotate": lanes,  # one-hot: bank of lane 0 (headers)
        "bank.row": lanes * (spec.word_bits - 2),  # Mem: row in each bank
        "bank.write": lanes,  # Mem: banks that are written
        "record": n_records(spec),  # Rom, one-hot
    }  # fmt: skip


@dataclass
class Embedding:
    """The fields, allocated; each lives until the layer that clears it."""

    spec: MachineSpec
    fields: dict[str, Field]

    def __getitem__(self, name: str) -> Field:
        return self.fields[name]


def allocate(spec: MachineSpec, space: Space) -> Embedding:
    return Embedding(spec, {n: space.alloc(n, size) for n, size in field_sizes(spec).items()})


def _value_fields(spec: MachineSpec, token: Val | Uniform | Sign) -> dict[str, list[int]]:
    match token:
        case Val(_, piece, _):
            pieces, after = one_hot(piece, N_PIECES), piece + 1
        case Uniform(_, _, byte, _):
            first = byte * PIECES_PER_BYTE
            pieces = [int(first <= p < first + PIECES_PER_BYTE) for p in range(N_PIECES)]
            after = first + PIECES_PER_BYTE
        case Sign():
            pieces, after = [0] * N_PIECES, 0
    words = read_value(spec, [token])
    return {
        "is.value": [1],
        "slot": one_hot(token.slot, spec.n_stages),
        "later": [int(s > token.slot) for s in range(spec.n_stages)],
        "piece": pieces,
        "after": [int(p >= after) for p in range(N_PIECES)],
        "data": [bit for word in words for bit in bits_of(word, WORD_BITS)],
    }


def _mem_fields(spec: MachineSpec, token: Mem) -> dict[str, list[int]]:
    lanes, n = lanes_of(token.mask), spec.n_lanes
    rows, writes = [0] * n, [0] * n
    for lane in lanes:
        word = (token.address + lane - lanes[0]) % spec.n_words
        rows[word % n], writes[word % n] = word // n, 1
    return {
        "is.mem": [1],
        "rotate": one_hot((token.address - lanes[0]) % n, n),
        "bank.row": [bit for row in rows for bit in bits_of(row, spec.word_bits - 2)],
        "bank.write": writes,
        "remain": [int(lane > lanes[-1]) for lane in range(n)],
    }


def token_fields(spec: MachineSpec, token: Token) -> dict[str, list[int]]:
    """The bits of the token's embedding row, by field; absent fields are zero."""
    n = spec.n_lanes
    fields: dict[str, list[int]] = {}
    if isinstance(token, VALUE_KINDS):
        return _value_fields(spec, token)
    if isinstance(token, Exec | Mem | Rom):
        fields |= {"is.header": [1], "rotate": one_hot(0, n)}
    if isinstance(token, Exec | Mem):
        fields |= {
            "mask": bits_of(token.mask, n),
            "lowest": one_hot(lanes_of(token.mask)[0], n),
        }
    if isinstance(token, Exec | Warp):
        fields |= {
            "warp": bits_of(token.warp, spec.warp_bits),
            "warp.hot": one_hot(token.warp, spec.n_warps),
        }
    match token:
        case Exec(block, _, mask):
            fields |= {
                "is.exec": [1],
                "block": bits_of(block, spec.block_bits),
                "later": [1] * spec.n_stages,
                "remain": [1] * n,
                "moves": bits_of(mask, n),
            }
        case Mem():
            fields |= _mem_fields(spec, token)
        case Rom(block, record):
            fields |= {
                "is.rom": [1],
                "block": bits_of(block, spec.block_bits),
                "record": one_hot(record, n_records(spec)),
            }
        case Warp(_, mask):
            fields |= {"is.warp": [1], "start": bits_of(mask, n), "moves": [1] * n}
        case Go():
            fields |= {"is.go": [1]}
        case Barrier():
            fields |= {"is.barrier": [1]}
        case Resume():
            fields |= {"is.resume": [1]}
    return fields
