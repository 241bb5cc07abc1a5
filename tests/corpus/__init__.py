"""The corpus: kernels of every kind with inputs and the words that they must leave.

Each module holds one family and exports ``CASES``. The kernels run unchanged on an NVIDIA GPU:
no data races, atomics only where their order cannot show, nothing that depends on the warp's size
except in cases that say so (``warp_sensitive``).
"""

from __future__ import annotations

from tests.cases import Case
from tests.corpus import (
    algorithms,
    arithmetic,
    atomics,
    bits,
    control,
    grids,
    hashes,
    memory,
    ptx_forms,
    ptx_integer,
    sync,
    text,
    traps,
    waits,
    warp,
)

FAMILIES = (
    algorithms,
    arithmetic,
    atomics,
    bits,
    control,
    grids,
    hashes,
    memory,
    ptx_forms,
    ptx_integer,
    sync,
    text,
    traps,
    waits,
    warp,
)
CASES: tuple[Case, ...] = tuple(case for family in FAMILIES for case in family.CASES)
