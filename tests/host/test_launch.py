"""launch(): arguments in and out, shapes, limits, the check that can fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qgpu
from qgpu.host.launch import Execution, Interpreter, Job, Watch
from qgpu.isa import Instruction, Op
from qgpu.tokens import Exec, Halt, Uniform

DOT = """
__global__ void dot(const int *a, const int *b, int *out) {
    int i = threadIdx.x;
    atomicAdd(out, a[i] * b[i]);
}
"""
INDEX = """
__global__ void index(int *out, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    out[y * width + x] = 100 * y + x;
}
"""
SHARED = """
__global__ void turn(int *a) {
    extern __shared__ int s[];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
"""


def kernel(source: str) -> qgpu.Kernel:
    return qgpu.compile(source).kernel()


def dot_args() -> list[Any]:
    return [np.array([1, 2, 3], np.int32), np.array([4, 5, 6], np.int32), np.zeros(1, np.int32)]


def test_a_dot_product() -> None:
    args = dot_args()
    result = qgpu.launch(kernel(DOT), grid=1, block=3, args=args, check=True)
    assert result.args[2].tolist() == [32]
    assert args[2].tolist() == [0]
    assert result.check == "ok"
    assert isinstance(result.trace[0], Exec)
    assert isinstance(result.trace[-1], Halt)
    assert result.tokens == len(result.trace) <= 24
    assert result.exec_tokens == sum(isinstance(token, Exec) for token in result.trace)


def test_grids_and_blocks_of_two_dimensions() -> None:
    result = qgpu.launch(
        kernel(INDEX), grid=(2, 2), block=(3, 2), args=[np.zeros((4, 6), np.int32), 6], check=True
    )
    y, x = np.mgrid[0:4, 0:6]
    assert np.array_equal(result.args[0], 100 * y + x)
    assert result.args[1] is None


def test_dynamic_shared_memory_is_needed_and_counted() -> None:
    data = np.arange(8, dtype=np.int32)
    result = qgpu.launch(kernel(SHARED), block=8, args=[data], shared_words=8, check=True)
    assert result.args[0].tolist() == list(range(7, -1, -1))
    with pytest.raises(qgpu.LimitError, match="words of memory"):
        qgpu.launch(kernel(SHARED), block=8, args=[data], shared_words=510)


def test_blocks_and_registers_of_a_kernel() -> None:
    dot = kernel(DOT)
    assert dot.blocks
    assert dot.blocks[0].instructions
    assert 0 <= dot.registers <= 15


def test_an_empty_argument_list_and_an_empty_kernel() -> None:
    result = qgpu.launch(kernel("__global__ void k() {}"), check=True)
    assert result.args == []
    assert isinstance(result.trace[-1], Halt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "block is 0,1,1: every size must be at least 1"),
        ({"grid": 1 << 31}, "grid is 2147483648,1,1: every size must be less than 2147483648"),
        ({"grid": (1, 2, 3, 4)}, "grid is (1, 2, 3, 4): one to three positive integers"),
        ({"grid": 1.5}, "grid is 1.5: one to three positive integers"),
        ({"max_tokens": 0}, "max_tokens is 0: it must be at least 1"),
        ({"shared_words": -1}, "shared_words is -1: it cannot be negative"),
    ],
)
def test_bad_launches(options: dict[str, Any], message: str) -> None:
    with pytest.raises(qgpu.UsageError) as caught:
        qgpu.launch(kernel(DOT), args=dot_args(), **options)
    assert str(caught.value) == message


def test_limits_are_known_before_anything_is_fed() -> None:
    class Never(Interpreter):
        def execute(self, job: Job, watch: Watch) -> Execution:
            raise AssertionError("a token was fed")

    with pytest.raises(qgpu.LimitError) as caught:
        qgpu.launch(kernel(DOT), block=33, args=dot_args(), on=Never())
    assert (caught.value.need, caught.value.limit) == (33, 32)
    many = "".join(f"if (a[{i}] == {i}) a[{i + 1}] = a[{i}] / {i + 3};" for i in range(60))
    with pytest.raises(qgpu.LimitError) as caught:
        qgpu.launch(
            kernel(f"__global__ void k(int *a) {{ {many} }}"), args=[np.zeros(62, np.int32)],
            on=Never(qgpu.SMALL),
        )  # fmt: skip
    assert caught.value.exit_code == 3


class Faulty(Interpreter):
    """The interpreter under the name of the weights, with a fault put in."""

    name = "weights"

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def execute(self, job: Job, watch: Watch) -> Execution:
        done = super().execute(job, lambda token: None)
        trace, memory = list(done.tokens), list(done.memory)
        if self.fault == "token":
            at = max(i for i, token in enumerate(trace) if isinstance(token, Uniform))
            token = trace[at]
            trace[at] = Uniform(token.slot, token.fill, token.byte, token.payload ^ 1)
        if self.fault == "early":
            trace[5:] = []
        if self.fault == "late":
            trace.append(trace[0])
        if self.fault == "memory":
            memory[300] ^= 1 << 31
        for token in trace:
            watch(token)
        return Execution(trace, memory)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("token", r"token \d+ of the launch differs: the weights wrote <\|gpu_uniform_s\d_f0_b0_p33"
                  r"\|>, the interpreter says <\|gpu_uniform_s\d_f0_b0_p32\|>"),
        ("early", r"the weights stopped after 5 tokens, the interpreter goes on with <\|gpu_"),
        ("late", r"token \d+ of the launch differs: .* the interpreter says the launch is over"),
        ("memory", r"word 300 of the memory differs: 0x80000000 in the weights' state, 0x0 in"),
    ],
)  # fmt: skip
def test_the_check_of_weights_can_fail(fault: str, message: str) -> None:
    with pytest.raises(qgpu.CheckError, match=message):
        qgpu.launch(kernel(DOT), block=3, args=dot_args(), on=Faulty(fault), check=True)
    qgpu.launch(kernel(DOT), block=3, args=dot_args(), on=Faulty(fault))


def test_the_check_of_the_interpreter_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Interpreter.execute

    def execute(self: Interpreter, job: Job, watch: Watch) -> Execution:
        """A lowering that took every multiplication for a subtraction."""
        blocks = [
            type(block)(
                tuple(
                    Instruction(Op.SUB if i.op is Op.MUL else i.op, i.a, i.b, i.c, i.guard, i.dst)
                    for i in block.instructions
                ),
                block.target, block.branch, block.taken,
            )
            for block in job.blocks
        ]  # fmt: skip
        return real(self, Job(job.spec, blocks, job.memory, job.n_threads, job.max_tokens), watch)

    monkeypatch.setattr(Interpreter, "execute", execute)
    with pytest.raises(
        qgpu.CheckError, match=r"argument 3 differs at element 0: -?\d+ from the mach"
    ):
        qgpu.launch(kernel(DOT), block=3, args=dot_args(), check=True)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (a[t] == 2)\n__trap();", "k.cu:3: trap [trap]"),
        ("while (atomicAdd(a, 0) != 9)\n;",
         "the threads go round in loops that wait, and none gets on: k.cu:2"),
    ],
)  # fmt: skip
def test_a_launch_that_fails_says_where_and_why(body: str, message: str, check: bool) -> None:
    source = f"__global__ void k(int *a) {{ int t = threadIdx.x;\n{body}\n}}"
    failing = qgpu.compile(source, file="k.cu").kernel("k")
    with pytest.raises(qgpu.LaunchError) as caught:
        qgpu.launch(failing, block=4, args=[np.arange(4, dtype=np.int32)], check=check)
    assert str(caught.value).startswith(message)
