"""Arrays in memory, scalars in parameters, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qgpu.errors import CompileError, LimitError, UsageError
from qgpu.host.arguments import as_argument, bind
from qgpu.machine import REFERENCE, SMALL, MachineSpec
from qgpu.ptxir import Function, Variable


def function(*types: str) -> Function:
    params = [Variable(f"p{i}", "param", type) for i, type in enumerate(types)]
    return Function("_Z1kv", True, params)


def bound(types: list[str], args: list[Any], spec: MachineSpec = REFERENCE) -> Any:
    return bind(function(*types), args, spec, pointer_bytes=8, file="k.ptx")


def test_arrays_lie_from_byte_8_on_each_8_byte_aligned() -> None:
    got = bound(["u64", "u32", "u64"], [np.array([1, 2, 3], np.int32), 7, np.array([9], np.int32)])
    assert got.params == (8, 7, 24)
    assert got.words == (0, 0, 1, 2, 3, 0, 9, 0)
    assert got.data_base == 32
    assert got.ranges == [(8, 20), (24, 28)]


def test_sub_word_arrays_are_packed_and_come_back_in_their_type_and_shape() -> None:
    array = np.array([[-1, 127, -128], [1, 2, 3]], np.int8)
    got = bound(["u64"], [array])
    assert got.words[2] == 0x0180_7FFF
    (back,) = got.read_back(got.words)
    assert back.dtype == np.int8
    assert np.array_equal(back, array)
    assert not np.shares_memory(back, array)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_every_type_survives_the_way_in_and_out(dtype: str) -> None:
    info = np.iinfo(dtype)
    array = np.array([info.min, info.max, 1, 0, info.max // 3], dtype)[::-1]
    got = bound(["u64", "u64"], [array.byteswap().view(array.dtype.newbyteorder()), array])
    first, second = got.read_back(got.words)
    assert np.array_equal(first, array)
    assert np.array_equal(second, array)


@pytest.mark.parametrize(
    ("type", "value", "pattern"),
    [
        ("u32", -1, 0xFFFFFFFF), ("u32", 0xFFFFFFFF, 0xFFFFFFFF), ("u64", -2, 2**64 - 2),
        ("u16", -3, 0xFFFD), ("u8", np.uint8(200), 200), ("s32", np.int64(-5), 0xFFFFFFFB),
        ("b64", 0, 0), ("u32", np.array(5), 5), ("u8", True, 1),
    ],
)  # fmt: skip
def test_scalars_become_bit_patterns_of_their_parameter(
    type: str, value: Any, pattern: int
) -> None:
    assert bound([type], [value]).params == (pattern,)


@pytest.mark.parametrize(
    ("types", "args", "message"),
    [
        (["u32"], [], "kernel k takes 1 argument, 0 given"),
        (["u32"], [1 << 32], "argument 1 is 4294967296, which does not fit .u32"),
        (["u8"], [-129], "argument 1 is -129, which does not fit .u8"),
        (["u32"], [np.zeros(1, np.int32)],
         "argument 1 is an array, but the kernel reads a .u32 scalar"),
        (["u64"], [np.zeros(1, np.float32)], "argument 1 is an array of float32; the machine holds "
         "int8, uint8, int16, uint16, int32, uint32, int64, uint64"),
        (["u32"], [1.5], "argument 1 is float; the machine takes integers and integer arrays"),
        (["u32"], [None], "argument 1 is NoneType; the machine takes integers and integer arrays"),
        (["u64"], [["a"]], "argument 1 is not a list of integers"),
    ],
)  # fmt: skip
def test_refusals_are_one_clear_line(types: list[str], args: list[Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        bound(types, args)
    assert str(caught.value) == message


def test_arrays_beyond_the_memory_are_refused_with_the_numbers() -> None:
    with pytest.raises(LimitError) as caught:
        bound(["u64"], [np.zeros(63, np.int32)], SMALL)
    assert (caught.value.need, caught.value.limit) == (66, 64)
    bound(["u64"], [np.zeros(62, np.int32)], SMALL)


def test_a_floating_point_parameter_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="parameter 1 of k is floating point"):
        bound(["f32"], [1])


def test_a_structure_is_passed_as_its_bytes() -> None:
    kernel = Function("k", True, [Variable("s", "param", "b8", count=8, is_array=True)])
    given = np.array([1, 2], np.int32)
    got = bind(kernel, [given], REFERENCE, pointer_bytes=8, file="k.ptx")
    assert got.params == (0x2_0000_0001,)
    with pytest.raises(UsageError, match="structure of 8 bytes"):
        bind(kernel, [given[:1]], REFERENCE, pointer_bytes=8, file="k.ptx")


def test_lists_become_the_narrowest_32_bit_type() -> None:
    assert as_argument([1, -2], "a").dtype == np.int32  # type: ignore[union-attr]
    assert as_argument([1, 0xFFFFFFFF], "a").dtype == np.uint32  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="beyond 32 bits"):
        as_argument([1 << 33], "a")
