"""Triton's interpreter with bf16 as the hardware has it.

The interpreter drops the bits below bf16 where an NVIDIA GPU rounds to the nearest, and multiplies
matrices of bf16 as if their bits were integers. On a machine with a GPU nothing is changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def true_bf16(patch: pytest.MonkeyPatch) -> None:
    """For the time of ``patch``, conversions round and products of bf16 are products."""
    if ON_GPU:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    plain_convert = interpreter._convert_float
    plain_dot = interpreter.InterpreterBuilder.create_dot

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        data = np.ascontiguousarray(data)
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(data).bfloat16().view(torch.uint16).numpy()
        if (source, target) == (tl.bfloat16, tl.float32):
            return torch.from_numpy(data).view(torch.bfloat16).float().numpy()
        return plain_convert(data, source, target, rounding)

    def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [
            interpreter.TensorHandle(convert(x.data, tl.bfloat16, tl.float32, None), tl.float32)
            if x.dtype == tl.bfloat16 else x
            for x in (a, b)
        ]  # fmt: skip
        return plain_dot(builder, *wide, *rest)

    patch.setattr(interpreter, "_convert_float", convert)
    patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
