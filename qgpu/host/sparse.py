"""Circuit: the compiled weights without a base behind them, as a backend.

The matrices are those of the merged checkpoint, stored sparse and run exactly, with Qwen3.5-2B's
widths by default. It needs neither torch nor a checkpoint, and is much faster than the dense model
on a CPU.
"""

from __future__ import annotations

from functools import cache

from qgpu.compiler.evaluate import Executor
from qgpu.compiler.plan import Widths, build_plan
from qgpu.host.launch import Execution, Job, Watch
from qgpu.machine import REFERENCE, MachineSpec

QWEN_2B = Widths(
    hidden=2048, intermediate=6144, n_key_heads=16, n_value_heads=16, head_dim=128, conv_kernel=4,
    eps=1e-6,
)  # fmt: skip


@cache
def _executor(spec: MachineSpec, widths: Widths) -> Executor:
    return Executor.build(build_plan(spec, widths))


class Circuit:
    """Runs launches on the circuit's own weights."""

    name = "weights"
    where = "sparse on the CPU, the circuit alone"

    def __init__(self, spec: MachineSpec = REFERENCE, widths: Widths = QWEN_2B) -> None:
        self.spec, self.widths = spec, widths

    def execute(self, job: Job, watch: Watch) -> Execution:
        run = _executor(job.spec, self.widths).run(job.prompt(), job.max_tokens, watch)
        return Execution(run.trace, [int(word) for word in run.memory])
