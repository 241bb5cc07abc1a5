"""Kernel arguments: where arrays lie in the machine's memory and what each parameter reads.

Arrays are laid from byte ``FIRST_BYTE`` on, 8-byte aligned, in order; their elements keep their
width, so an int8 array is packed four to a word. Scalars are bound by the parameter's type.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgpu.errors import CompileError, LimitError, UsageError
from qgpu.host.names import plain_name
from qgpu.machine import WORD_BYTES, MachineSpec
from qgpu.ptxir import TYPE_BYTES, Function, Variable

Array = npt.NDArray[Any]
FIRST_BYTE = 8
ALIGNMENT = 8
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@dataclass(frozen=True)
class Placed:
    """One array in memory: from byte ``address`` on."""

    index: int
    address: int
    array: Array


@dataclass(frozen=True)
class Bound:
    """The arguments of a launch as the machine sees them."""

    params: tuple[int, ...]
    words: tuple[int, ...]
    placed: tuple[Placed, ...]
    data_base: int

    def read_back(self, memory: Sequence[int]) -> list[Array | None]:
        """The arguments after a launch that left ``memory``: arrays, and None for scalars."""
        raw = np.asarray(memory, dtype="<u4").tobytes()
        out: list[Array | None] = [None] * len(self.params)
        for item in self.placed:
            piece = raw[item.address : item.address + item.array.nbytes]
            array = np.frombuffer(piece, item.array.dtype)
            out[item.index] = array.reshape(item.array.shape).copy()
        return out

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(first byte, byte behind the last) of each array."""
        return [(p.address, p.address + p.array.nbytes) for p in self.placed]


def as_argument(value: Any, place: str) -> int | Array:
    """A Python or NumPy value as a scalar or an array that the machine can hold."""
    if isinstance(value, (list, tuple)):
        value = _from_list(value, place)
    if isinstance(value, np.ndarray) and value.ndim > 0:
        if value.dtype.name not in DTYPES:
            raise UsageError(
                f"{place} is an array of {value.dtype}; the machine holds {', '.join(DTYPES)}"
            )
        return np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
    try:
        return operator.index(value.item() if isinstance(value, np.ndarray) else value)
    except TypeError:
        raise UsageError(
            f"{place} is {type(value).__name__}; the machine takes integers and integer arrays"
        ) from None


def _from_list(value: Sequence[Any], place: str) -> Array:
    if not value:
        return np.zeros(0, np.int32)
    array = np.array(value)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{place} is not a list of integers")
    for dtype in (np.int32, np.uint32):
        if np.can_cast(np.min_scalar_type(array.min()), dtype) and np.can_cast(
            np.min_scalar_type(array.max()), dtype
        ):
            return array.astype(dtype)
    raise UsageError(f"{place} has integers beyond 32 bits; pass a NumPy int64 array instead")


def _count(n: int) -> str:
    return "1 argument" if n == 1 else f"{n} arguments"


def _scalar(param: Variable, value: int, place: str) -> int:
    if param.is_pointer and value:
        raise UsageError(
            f"{place} is an integer, but the kernel takes a pointer there: pass an array"
        )
    bits = 8 * TYPE_BYTES[param.type]
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise UsageError(f"{place} is {value}, which does not fit .{param.type}")
    return value & ((1 << bits) - 1)


def _by_value(param: Variable, value: int | Array, place: str) -> int:
    """A structure passed by value: an array of just its bytes."""
    size = TYPE_BYTES[param.type] * param.count
    if isinstance(value, int) or value.nbytes != size:
        raise UsageError(f"{place} is a structure of {size} bytes: pass an array of {size} bytes")
    return int.from_bytes(value.tobytes(), "little")


def bind(
    function: Function, args: Sequence[Any], spec: MachineSpec, *, pointer_bytes: int, file: str
) -> Bound:
    """Lay out ``args`` for ``function``; refuses what does not fit before anything runs."""
    if len(args) != len(function.params):
        raise UsageError(
            f"kernel {plain_name(function.name)} takes {_count(len(function.params))}, "
            f"{len(args)} given"
        )
    data = bytearray(FIRST_BYTE)
    params: list[int] = []
    placed: list[Placed] = []
    for index, (param, given) in enumerate(zip(function.params, args, strict=True)):
        place = f"argument {index + 1}"
        if param.type.startswith("f"):
            raise CompileError(
                f"parameter {index + 1} of {plain_name(function.name)} is floating point: "
                "this machine is integer",
                file=file, line=param.line, instruction=f".param .{param.type} {param.name}",
            )  # fmt: skip
        value = as_argument(given, place)
        if param.is_array:
            params.append(_by_value(param, value, place))
        elif isinstance(value, int):
            params.append(_scalar(param, value, place))
        elif TYPE_BYTES[param.type] != pointer_bytes:
            raise UsageError(f"{place} is an array, but the kernel reads a .{param.type} scalar")
        else:
            placed.append(Placed(index, len(data), value))
            params.append(len(data))
            data += value.tobytes()
            data += bytes(-len(data) % ALIGNMENT)
    if len(data) > spec.n_bytes:
        raise LimitError("words of memory for its arrays", len(data) // WORD_BYTES, spec.n_words)
    words = tuple(np.frombuffer(bytes(data), "<u4").tolist())
    return Bound(tuple(params), words, tuple(placed), len(data))
