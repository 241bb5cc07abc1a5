"""qgpu: a SIMT GPU compiled into the weights of Qwen3.5.

import numpy as np, qgpu
kernel = qgpu.compile(source).kernel("dot")
result = qgpu.launch(kernel, grid=1, block=3, args=[a, b, np.zeros(1, np.int32)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qgpu.errors import (
    CheckError,
    CheckpointError,
    CompileError,
    Error,
    LaunchError,
    LimitError,
    UsageError,
)
from qgpu.host.launch import Interpreter, Result, launch
from qgpu.host.program import Kernel, Program, compile
from qgpu.machine import REFERENCE, SMALL, MachineSpec

if TYPE_CHECKING:
    from qgpu.host.model import Model as Model

__all__ = [
    "REFERENCE", "SMALL", "CheckError", "CheckpointError", "CompileError", "Error", "Interpreter",
    "Kernel", "LaunchError", "LimitError", "MachineSpec", "Model", "Program", "Result",
    "UsageError", "compile", "launch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """``Model`` needs torch and transformers, which only its users should wait for."""
    if name == "Model":
        from qgpu.host.model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
