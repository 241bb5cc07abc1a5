"""--check: a launch held against the reference that its backend is meant to equal."""

from __future__ import annotations

import numpy as np

from qgpu.errors import CheckError
from qgpu.host.arguments import Array, Bound
from qgpu.host.launch import Job
from qgpu.host.program import Kernel
from qgpu.interp.machine import Machine
from qgpu.kernel import LaunchShape
from qgpu.tokens import Token, name_of


class Checker:
    """Weights: every token and the final memory against the block interpreter, as they come.

    The block interpreter itself is held against the PTX executed lane by lane.
    """

    def __init__(
        self, kernel: Kernel, shape: LaunchShape, bound: Bound, job: Job, backend: str
    ) -> None:
        self._kernel, self._shape, self._bound, self._job = kernel, shape, bound, job
        self._weights = backend != "interp"
        self._seen = 0
        self._machine = Machine(job.spec, job.blocks)
        self._expected = self._machine.iter_tokens(
            job.memory, job.n_threads, max_tokens=job.max_tokens
        )

    def token(self, token: Token) -> None:
        """Compare the next token that the weights wrote."""
        if not self._weights:
            return
        self._seen += 1
        expected = next(self._expected, None)
        if token != expected:
            raise CheckError(
                f"token {self._seen} of the launch differs: the weights wrote {name_of(token)}, "
                f"the interpreter says {name_of(expected) if expected else 'the launch is over'}"
            )

    def finish(self, memory: list[int], failed: bool) -> None:
        """Compare what the launch left behind; a launch that failed left no arrays to speak of."""
        if self._weights:
            self._finish_weights(memory)
        elif not failed:
            self._finish_arrays(memory)

    def _finish_weights(self, memory: list[int]) -> None:
        missing = next(self._expected, None)
        if missing is not None:
            raise CheckError(
                f"the weights stopped after {self._seen} tokens, "
                f"the interpreter goes on with {name_of(missing)}"
            )
        for address, (got, want) in enumerate(zip(memory, self._machine.memory, strict=True)):
            if got != want:
                raise CheckError(
                    f"word {address} of the memory differs: {got:#x} in the weights' state, "
                    f"{want:#x} in the interpreter"
                )

    def _finish_arrays(self, memory: list[int]) -> None:
        got = self._bound.read_back(memory)
        want = run_ptx_arrays(self._kernel, self._shape, self._bound, self._job)
        for index, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            if mine is None or theirs is None or np.array_equal(mine, theirs):
                continue
            place = int(np.flatnonzero(mine.ravel() != theirs.ravel())[0])
            raise CheckError(
                f"argument {index + 1} differs at element {place}: "
                f"{mine.ravel()[place]} from the machine blocks, "
                f"{theirs.ravel()[place]} from the PTX itself"
            )


def run_ptx_arrays(
    kernel: Kernel, shape: LaunchShape, bound: Bound, job: Job
) -> list[Array | None]:
    """The arguments after the PTX itself was executed lane by lane."""
    from qgpu.interp.ptx import run_ptx

    memory = np.asarray(bound.words, "<u4").tobytes()
    after = run_ptx(kernel.program.module, kernel.name, shape, memory, spec=job.spec)
    return bound.read_back(np.frombuffer(after, "<u4").tolist())
