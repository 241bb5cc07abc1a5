"""MachineSpec: every limit of the machine, declared once. Nothing else in qgpu is a literal."""

from __future__ import annotations

from dataclasses import dataclass

WORD_BITS = 32
WORD_BYTES = 4


def bits_for(count: int) -> int:
    """The number of address bits that tell ``count`` things apart."""
    return max(1, (count - 1).bit_length())


@dataclass(frozen=True)
class MachineSpec:
    """Sizes of one machine.

    ``n_registers`` counts r0, which always reads zero. ``n_words`` is the flat memory, in 32-bit
    words, that global, shared, local and constant data share. ``n_stages`` is the number of
    instructions that one machine block executes in one forward pass.
    """

    name: str
    n_lanes: int = 4
    n_registers: int = 16
    n_warps: int = 8
    n_blocks: int = 128
    n_stages: int = 4
    n_words: int = 512

    @property
    def register_bits(self) -> int:
        return bits_for(self.n_registers)

    @property
    def warp_bits(self) -> int:
        return bits_for(self.n_warps)

    @property
    def block_bits(self) -> int:
        return bits_for(self.n_blocks)

    @property
    def word_bits(self) -> int:
        """Bits of a word address."""
        return bits_for(self.n_words)

    @property
    def n_threads(self) -> int:
        """The most threads that a CUDA block can have."""
        return self.n_warps * self.n_lanes

    @property
    def n_bytes(self) -> int:
        return self.n_words * WORD_BYTES

    @property
    def all_lanes(self) -> int:
        """The mask with every lane set; bit l is lane l."""
        return (1 << self.n_lanes) - 1


REFERENCE = MachineSpec("reference")
SMALL = MachineSpec("small", n_warps=2, n_blocks=32, n_stages=2, n_words=64)
SPECS = {spec.name: spec for spec in (REFERENCE, SMALL)}
