"""Launches for the chat: one backend, its budgets, and a record of every launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import qgpu
from qgpu.errors import CheckError, Error, LaunchError

KERNELS = Path(__file__).with_name("kernels")
MAX_TOKENS = 50_000
MAX_SECONDS = 600.0
MAX_LAUNCHES = 256


@dataclass(frozen=True)
class LaunchRecord:
    """What one launch was and cost; ``result`` stays in memory only, for the trace page."""

    kernel: str
    backend: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    tokens: int
    exec_tokens: int
    blocks: int
    ptx_bytes: int
    seconds: float
    check: str | None
    compiled: qgpu.Kernel | None = field(default=None, repr=False, compare=False)
    result: qgpu.Result | None = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel, "backend": self.backend,
            "grid": list(self.grid), "block": list(self.block),
            "tokens": self.tokens, "exec_tokens": self.exec_tokens, "blocks": self.blocks,
            "ptx_bytes": self.ptx_bytes, "seconds": round(self.seconds, 6), "check": self.check,
        }  # fmt: skip


@cache
def stock_program(file: str) -> qgpu.Program:
    """The compiled stock kernels of one source file."""
    path = KERNELS / file
    return qgpu.compile(path.read_text(encoding="utf-8"), file=path.name)


@dataclass
class Device:
    """Launches on ``backend`` within the budgets; ``records`` keeps every launch of a turn.

    ``stop`` is asked during a launch: true ends it.
    """

    backend: Any
    check: bool = False
    max_tokens: int = MAX_TOKENS
    max_seconds: float = MAX_SECONDS
    max_launches: int = MAX_LAUNCHES
    stop: Callable[[], bool] | None = None
    records: list[LaunchRecord] = field(default_factory=list)

    @property
    def n_words(self) -> int:
        return int(self.backend.spec.n_words)

    @property
    def n_threads(self) -> int:
        return int(self.backend.spec.n_threads)

    def begin_turn(self) -> None:
        self.records = []

    def launch(
        self,
        kernel: qgpu.Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_words: int = 0,
    ) -> list[Any]:
        """One launch; the arguments as they are afterwards."""
        if len(self.records) >= self.max_launches:
            raise LaunchError(f"this would take more than {self.max_launches} launches")
        ask = self._budget()
        try:
            with self._asking(ask):
                result = qgpu.launch(
                    kernel, tuple(grid), tuple(block), list(args), on=self.backend,
                    check=self.check, shared_words=shared_words, max_tokens=self.max_tokens,
                    watch=lambda token: ask(),
                )  # fmt: skip
        except CheckError:
            self._record(kernel, grid, block, None)
            raise
        self._record(kernel, grid, block, result)
        return result.args

    def _asking(self, ask: Callable[[], None]) -> AbstractContextManager[None]:
        """A model also asks while it reads the launch."""
        if not hasattr(self.backend, "hf"):
            return nullcontext()
        from qgpu.host.chat.interrupt import asking

        return asking(self.backend.hf, ask)

    def _budget(self) -> Callable[[], None]:
        """What raises once the launch was stopped or took too long."""
        end = time.monotonic() + self.max_seconds

        def ask() -> None:
            if self.stop is not None and self.stop():
                raise LaunchError("the launch was stopped")
            if time.monotonic() > end:
                raise LaunchError(f"the launch took longer than {self.max_seconds:g} seconds")

        return ask

    def _record(
        self,
        kernel: qgpu.Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        result: qgpu.Result | None,
    ) -> None:
        record = LaunchRecord(
            kernel=kernel.name,
            backend=self.backend.name,
            grid=tuple(grid),
            block=tuple(block),
            tokens=result.tokens if result else 0,
            exec_tokens=result.exec_tokens if result else 0,
            blocks=len(result.lowered.blocks) if result else 0,
            ptx_bytes=len(kernel.ptx),
            seconds=result.seconds if result else 0.0,
            check=result.check if result else "mismatch",
            compiled=kernel,
            result=result,
        )
        self.records.append(record)


def explain(error: Error) -> str:
    """An error as one line for the model and the person."""
    if isinstance(error, CheckError):
        return f"check failed, the number is not used: {error}"
    return str(error)
