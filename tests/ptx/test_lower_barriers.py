"""Barriers with numbers: what is the one barrier of the machine, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from qgpu.errors import CompileError, LaunchError
from qgpu.ptx import build_graph
from tests.cases import Case
from tests.levels import in_blocks
from tests.ptx.lowering import ptx_kernel, run_both

HEAD = """ld.param.u64 %d1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;
add.u64 %d1, %d1, %d2; setp.lt.u32 %p1, %r1, 4; """
OTHERS = """ld.param.u64 %d5, [p0]; xor.b32 %r9, %r1, 7; mul.wide.u32 %d6, %r9, 4;
add.u64 %d5, %d5, %d6; ld.global.u32 %r8, [%d5];"""
REVERSED = list(range(7, -1, -1))


@pytest.mark.parametrize(
    ("body", "right"),
    [
        (f"st.global.u32 [%d1], %r1; bar.sync 1; {OTHERS} bar.sync 2; st.global.u32 [%d1], %r8;",
         REVERSED),
        (f"""st.global.u32 [%d1], %r1; @%p1 bra A; bar.sync 3; bra E; A: bar.sync 3;
         E: {OTHERS} bar.sync 0; st.global.u32 [%d1], %r8;""", REVERSED),
        (f"""st.global.u32 [%d1], %r1; barrier.sync 1, 32; {OTHERS} barrier.sync 2, 8;
         st.global.u32 [%d1], %r8;""", REVERSED),
        ("@%p1 bra E; bar.sync 1; bar.sync 2; st.global.u32 [%d1], 5; E:", [0] * 4 + [5] * 4),
        ("""mov.u32 %r3, 0; L: bar.sync 1; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 3;
         @%p2 bra L; bar.sync 2; st.global.u32 [%d1], %r3;""", [3] * 8),
        ("""setp.eq.u32 %p2, %r1, 5; bar.red.popc.u32 %r2, 4, %p2; bar.sync 2;
         st.global.u32 [%d1], %r2;""", [1] * 8),
    ],
)  # fmt: skip
def test_numbers_that_all_threads_go_by(body: str, right: list[int]) -> None:
    got = run_both(ptx_kernel(f"{HEAD} {body} ret;", n_params=1), [[0] * 8], block=(8, 1, 1))
    assert got.blocks[0] == got.ptx[0] == right


MIXED = "threads can wait at barriers of different numbers at the same time"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@%p1 bra A; bar.sync 1; bra E; A: bar.sync 2; E:", MIXED),
        ("@%p1 bar.sync 1; bar.sync 2;", MIXED),
        (
            """mov.u32 %r3, 0; L: bar.sync 1; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, %r1;
         @%p2 bra L; bar.sync 2;""",
            MIXED,
        ),
        (
            """setp.eq.u32 %p2, %r1, 5; vote.sync.any.pred %p3, %p2, -1; @%p3 bra A; bar.sync 1;
         bra E; A: bar.sync 2; E:""",
            MIXED,
        ),
        ("and.b32 %r2, %r1, 1; bar.sync %r2;", "a barrier whose number is known only as"),
        ("bar.sync 1, 64;", "a barrier for a part of the threads is not supported"),
        ("mov.u32 %r2, 4; bar.sync 1, %r2;", "a barrier for a part of the threads"),
        ("bar.arrive 1, 32;", "only barriers at which every thread waits are supported"),
        ("barrier.cluster.arrive;", "only barriers at which every thread waits are supported"),
    ],
)
def test_what_a_single_barrier_cannot_do_is_refused(body: str, message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        run_both(ptx_kernel(f"{HEAD} {body} ret;", n_params=1), [[0] * 8], block=(8, 1, 1))
    assert "bar" in str(caught.value)


def test_a_thread_that_ends_does_not_wait_in_the_next_cuda_block() -> None:
    body = f"{HEAD} bar.sync 1; @%p1 bra E; bar.sync 2; st.global.u32 [%d1], 5; E: ret;"
    got = run_both(ptx_kernel(body, n_params=1), [[0] * 8], grid=(2, 1, 1), block=(8, 1, 1))
    assert got.blocks[0] == got.ptx[0] == [0] * 4 + [5] * 4


LEAVERS = ("T == 0", "T == 2", "T > 0", "T >= 4", "T & 1")


def case_of_leavers(leaves: str, n: int, g: int) -> Case:
    """Some threads end between two barriers, the others after more of them; a thread that began
    the next CUDA block too early would find words of the last one, or leave its own there."""
    source = f"""__global__ void k(int *o) {{
    __shared__ int s[16]; int T = threadIdx.x, n = blockDim.x, b = blockIdx.x;
    s[T] = b * 100 + T;
    __syncthreads();
    o[b * n + T] = s[(T + 1) % n];
    if ({leaves}) return;
    __syncthreads(); s[T] = -1; __syncthreads();
    if (T == 1) return;
    s[T] = -2; __syncthreads(); s[T] = -3;
}}"""
    right = np.array([b * 100 + (t + 1) % n for b in range(g) for t in range(n)], dtype=np.int32)
    return Case("leavers", source, "k", (g, 1, 1), (n, 1, 1), (np.zeros_like(right),), {0: right})


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("leaves", LEAVERS)
def test_all_threads_go_to_the_next_cuda_block_together(leaves: str, n: int) -> None:
    for g in (2, 3):
        for opt in ("-O0", "-O1", "-O3"):
            case = case_of_leavers(leaves, n, g)
            assert not case.differences(in_blocks(case, opt=opt)[0]), (g, opt)


def test_a_thread_that_misses_a_barrier_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the barriers of the kernel not counted, some would leave at another one."""
    monkeypatch.setattr(build_graph, "_count_barriers", lambda graph: graph.fresh())
    case = case_of_leavers("T == 2", 4, 3)
    with suppress(LaunchError):  # or threads that wait for ever
        assert case.differences(in_blocks(case)[0])
