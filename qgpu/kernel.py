"""What the lowering is asked for and what it returns: the seam between qgpu.ptx and qgpu.host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qgpu.isa import MachineBlock

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchShape:
    """One launch as the lowering sees it.

    ``params`` are the kernel parameters as bit patterns (a pointer is its byte address, narrowed
    later); ``data_base`` is the first free byte behind the array arguments.
    """

    grid: Dim3 = (1, 1, 1)
    block: Dim3 = (1, 1, 1)
    params: tuple[int, ...] = ()
    dynamic_shared_bytes: int = 0
    data_base: int = 8

    @property
    def n_threads(self) -> int:
        x, y, z = self.block
        return x * y * z


@dataclass
class Lowered:
    """A kernel as machine blocks for one launch shape.

    ``image`` maps word addresses to initial values (module data behind the arrays); ``n_words``
    is the memory used in all; ``sources[b]`` is the (file, line) of each stage of block b, or None,
    and ``ptx_lines[b]`` the line in the PTX. A launch after which the word ``trap_word`` is n, not
    zero, has failed for the reason ``traps[n - 1]``.
    """

    name: str
    blocks: list[MachineBlock]
    n_registers: int
    n_words: int
    image: dict[int, int] = field(default_factory=dict)
    sources: list[list[tuple[str, int] | None]] = field(default_factory=list)
    ptx_lines: list[list[int | None]] = field(default_factory=list)
    trap_word: int | None = None
    traps: tuple[str, ...] = ()

    def trap_reason(self, memory: Sequence[int]) -> str | None:
        """Why a launch that left this memory has failed; None if it has not."""
        number = memory[self.trap_word] if self.trap_word is not None else 0
        return self.traps[number - 1] if number else None

    def place(self, block: int) -> str:
        """Where a machine block comes from: file and line of the source, or the PTX line."""
        places = [f"{file}:{line}" for file, line in filter(None, self.sources[block])]
        lines = [f"PTX line {line}" for line in filter(None, self.ptx_lines[block])]
        return next(iter(places + lines), f"B{block}")

    @property
    def listing(self) -> str:
        return "\n".join(block.listing(index) for index, block in enumerate(self.blocks))
