"""The two ways a question reaches the GPU: an expression, or a kernel that the model writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from qgpu.errors import CheckError, Error, LaunchError
from qgpu.host.chat.calculate import Calculator
from qgpu.host.chat.device import Device, explain
from qgpu.host.chat.prompts import (
    ADVANCED_EXAMPLES,
    ADVANCED_SYSTEM,
    COMPUTE,
    COMPUTE_TOOL,
    CUDA_TOOL,
    NORMAL_EXAMPLES,
    NORMAL_SYSTEM,
    RUN_CUDA,
)
from qgpu.host.chat.source import Message, Tool
from qgpu.host.chat.toolcall import ToolCall

MODES = ("normal", "advanced")
MAX_SHOWN = 256  # elements of an array that go back to the model


@dataclass
class Outcome:
    """What a tool call came to. ``content`` is what the model reads next.

    ``value`` is the number or the arrays, None if there is none to use; ``retry``: the model may
    try again. ``details`` is for the person: the expression, or the kernel and its size.
    """

    content: str
    value: Any = None
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    retry: bool = False
    details: dict[str, Any] = field(default_factory=dict)


class Mode(Protocol):
    """A tool, how to ask for it, and what a call of it does."""

    name: str
    tool: Tool

    def opening(self) -> list[Message]: ...

    def run(self, call: ToolCall) -> Outcome: ...


def _refused(error: str, **details: Any) -> Outcome:
    return Outcome(f"error: {error}", error=error, retry=True, details=details)


def failed(error: Error, **details: Any) -> Outcome:
    """An error on the way to the number; a failed check is not the model's to mend."""
    text = explain(error)
    retry = not isinstance(error, CheckError)
    return Outcome(f"error: {text}", error=text, retry=retry, details=details)


class NormalMode:
    """Expressions over the stock kernels."""

    name = "normal"
    tool = COMPUTE_TOOL

    def __init__(self, device: Device) -> None:
        self._calculator = Calculator(device)

    def opening(self) -> list[Message]:
        return [{"role": "system", "content": NORMAL_SYSTEM}, *NORMAL_EXAMPLES]

    def run(self, call: ToolCall) -> Outcome:
        if call.problem:
            return _refused(call.problem)
        if call.name != COMPUTE:
            return _refused(f"there is no tool {call.name}, only {COMPUTE}")
        expression = call.arguments.get("expression")
        if expression is None:
            return _refused(f"{COMPUTE} needs the parameter expression")
        try:
            answer = self._calculator.calculate(expression)
        except Error as error:
            return failed(error, expression=expression)
        return Outcome(
            str(answer), answer.plain, answer.notes, details={"expression": answer.expression}
        )


class AdvancedMode:
    """Kernels that the model writes. The source is untrusted: see ``qgpu.host.chat.untrusted``."""

    name = "advanced"
    tool = CUDA_TOOL

    def __init__(self, device: Device) -> None:
        self._device = device

    def opening(self) -> list[Message]:
        spec = self._device.backend.spec
        system = ADVANCED_SYSTEM.format(
            n_threads=spec.n_threads, n_words=spec.n_words, n_blocks=spec.n_blocks
        )
        return [{"role": "system", "content": system}, *ADVANCED_EXAMPLES]

    def run(self, call: ToolCall) -> Outcome:
        from qgpu.host.chat.untrusted import KernelCall, run_kernel

        if call.problem:
            return _refused(call.problem)
        if call.name != RUN_CUDA:
            return _refused(f"there is no tool {call.name}, only {RUN_CUDA}")
        details: dict[str, Any] = {"source": call.arguments.get("source", "")}
        try:
            request = KernelCall.from_arguments(call.arguments)
            done = run_kernel(self._device, request)
        except Error as error:
            return failed(error, **details)
        details |= {"ptx_bytes": done.ptx_bytes, "findings": done.findings}
        if done.findings:
            listed = "\n".join(done.findings)
            return Outcome(
                f"error: the sanitizer found faults, fix the kernel:\n{listed}",
                error=f"sanitizer: {done.findings[0]}", retry=True, details=details,
            )  # fmt: skip
        return Outcome(_show(done.arrays), done.plain, details=details)


def _show(arrays: Sequence[Any]) -> str:
    lines = []
    for index, array in enumerate(arrays):
        if array is None:
            continue
        shown = array.ravel()[:MAX_SHOWN].tolist()
        more = f" (the first {MAX_SHOWN} of {array.size})" if array.size > MAX_SHOWN else ""
        lines.append(f"args[{index}] = {shown}{more}")
    return "\n".join(lines) or "the kernel ran; it has no array arguments to read a result from"


def make_mode(name: str, device: Device) -> Mode:
    if name == "normal":
        return NormalMode(device)
    if name == "advanced":
        return AdvancedMode(device)
    raise LaunchError(f"there is no mode {name}; there are {', '.join(MODES)}")
