"""Kernels that a language model wrote: read the call, compile, examine, launch.

Nothing here trusts the source. ``qgpu.ptx.clang`` gives clang no file to read and bounds its time,
memory and output; the sanitizer runs the PTX under a budget; the launch has budgets of tokens and
seconds. Arguments are literals: no form of them names a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import qgpu
from qgpu.errors import CompileError, UsageError
from qgpu.host.chat.device import Device
from qgpu.host.launch import prepare
from qgpu.interp.sanitize import sanitize
from qgpu.ptx.clang import cuda_to_ptx
from qgpu.ptx.parse import parse_ptx

FILE = "kernel.cu"
MAX_ARRAY = 4096
MAX_PTX = 200_000
MAX_INSTRUCTIONS = 1_000_000  # of the sanitizer's run, which is of unoptimised code
MAX_FINDINGS = 5
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)")


@dataclass(frozen=True)
class KernelCall:
    """A launch as the model asked for it."""

    source: str
    kernel: str | None
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[int | npt.NDArray[Any], ...]
    shared_words: int = 0

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, str]) -> KernelCall:
        """From the tool call's parameters, which are text."""
        source = arguments.get("source", "")
        if not source.strip():
            raise UsageError("the call has no parameter source with the CUDA kernel")
        return cls(
            source=_strip_fence(source),
            kernel=arguments.get("kernel", "").strip() or None,
            grid=_dimension("grid", arguments.get("grid", "1")),
            block=_dimension("block", arguments.get("block", "1")),
            args=tuple(map(parse_argument, _split_arguments(arguments.get("args", "")))),
            shared_words=_dimension("shared", arguments.get("shared", "0"), least=0)[0],
        )


@dataclass
class KernelRun:
    """What a launch of the model's kernel left: its arrays, or what the sanitizer found."""

    ptx_bytes: int
    findings: list[str] = field(default_factory=list)
    arrays: list[npt.NDArray[Any] | None] = field(default_factory=list)

    @property
    def plain(self) -> list[Any]:
        return [None if array is None else array.tolist() for array in self.arrays]


def _strip_fence(source: str) -> str:
    """Models put code between ``` lines, also where none are wanted."""
    lines = source.strip("\n").split("\n")
    if lines and lines[0].lstrip().startswith("```"):
        lines = lines[1:]
        if lines and lines[-1].strip() == "```":
            lines = lines[:-1]
    return "\n".join(lines)


def _integer(text: str, place: str) -> int:
    text = text.strip().replace("_", "")
    if not _INTEGER.fullmatch(text):
        raise UsageError(f"{place}: {text[:40]!r} is not an integer")
    value = int(text, 16 if "x" in text.lower() else 10)
    if not -(1 << 31) <= value < 1 << 32:
        raise UsageError(f"{place}: {value} does not fit 32 bits")
    return value


def _dimension(name: str, text: str, least: int = 1) -> tuple[int, ...]:
    """``4``, ``4,2`` or what else models write: ``(4, 2, 1)``, ``[4, 2]``."""
    parts = text.strip().strip("()[]").split(",")
    sizes = tuple(_integer(part, name) for part in parts if part.strip())
    if not 1 <= len(sizes) <= 3 or min(sizes) < least:
        raise UsageError(f"{name} is {text.strip()[:40]!r}: one to three positive integers")
    return sizes


def _split_arguments(text: str) -> list[str]:
    """One argument a line; a JSON list of them is understood too."""
    text = text.strip()
    if text.startswith("["):
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if isinstance(data, list) and any(isinstance(item, (str, list)) for item in data):
            return [item if isinstance(item, str) else json.dumps(item) for item in data]
    return [line.strip().rstrip(";") for line in text.splitlines() if line.strip()]


def parse_argument(text: str) -> int | npt.NDArray[Any]:
    """``[1,2,3]``, ``zeros:N`` or an integer; anything else, a file above all, is refused."""
    text = text.strip()
    if text.startswith("zeros:"):
        count = _integer(text[len("zeros:") :], "zeros:N")
        if not 1 <= count <= MAX_ARRAY:
            raise UsageError(f"{text[:40]}: N must be 1 to {MAX_ARRAY}")
        return np.zeros(count, np.int32)
    if text.startswith("[") and text.endswith("]"):
        items = text[1:-1].replace("[", " ").replace("]", " ").split(",")
        values = [_integer(item, "an array element") for item in items if item.strip()]
        if not 1 <= len(values) <= MAX_ARRAY:
            raise UsageError(f"an array must have 1 to {MAX_ARRAY} elements")
        return np.array(values, np.int64).astype(np.uint32).view(np.int32)
    try:
        return _integer(text, "an argument")
    except UsageError:
        raise UsageError(
            f"the argument {text[:40]!r} is neither [1,2,3] nor zeros:N nor an integer"
        ) from None


def compile_untrusted(source: str) -> qgpu.Program:
    """Compile, and refuse PTX far beyond what the machine holds before it is even parsed."""
    ptx = cuda_to_ptx(source, file=FILE)
    if len(ptx) > MAX_PTX:
        raise CompileError(
            f"the kernel compiles to {len(ptx)} bytes of PTX; the machine holds far less than "
            f"{MAX_PTX}: make it smaller",
            file=FILE,
        )
    return qgpu.Program(source, "cuda", FILE, ptx, parse_ptx(ptx, FILE))


def run_kernel(device: Device, call: KernelCall) -> KernelRun:
    """Compile, examine and launch; every refusal is a qgpu.Error that the model can read."""
    program = compile_untrusted(call.source)
    kernel = program.kernel(call.kernel)
    run = KernelRun(ptx_bytes=len(kernel.ptx.encode()))
    run.findings = examine(device, kernel, call)
    if not run.findings:
        run.arrays = device.launch(kernel, call.grid, call.block, call.args, call.shared_words)
    return run


def examine(device: Device, kernel: qgpu.Kernel, call: KernelCall) -> list[str]:
    """The sanitizer's findings, one line each."""
    spec = device.backend.spec
    bound, shape, _ = prepare(kernel, spec, call.grid, call.block, call.args, call.shared_words)
    memory = np.asarray(bound.words, "<u4").tobytes()
    findings = sanitize(
        kernel.program.as_written, kernel.name, shape, memory, bound.ranges,
        spec=spec, max_instructions=MAX_INSTRUCTIONS,
    )  # fmt: skip
    shown = [str(finding) for finding in findings[:MAX_FINDINGS]]
    if len(findings) > MAX_FINDINGS:
        shown.append(f"and {len(findings) - MAX_FINDINGS} more")
    return shown
