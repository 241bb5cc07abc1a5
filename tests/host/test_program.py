"""Programs and their kernels: names, choice, errors."""

from __future__ import annotations

import pytest

import qgpu
from qgpu.host.names import plain_name

TWO = """
__global__ void one(int *a) { a[0] = 1; }
__global__ void two(int *a) { a[0] = 2; }
"""


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("dot", "dot"),
        ("_Z3dotPKiS0_Pi", "dot"),
        ("_ZL3dotPi", "dot"),
        ("_ZN2ns3fooEPi", "foo"),
        ("_ZN12_GLOBAL__N_13dotEPi", "dot"),
        ("_Z3dotILi4EEvPi", "dot"),
        ("_Zoo", "_Zoo"),
    ],
)
def test_plain_names(mangled: str, plain: str) -> None:
    assert plain_name(mangled) == plain


def test_kernels_are_found_by_either_name() -> None:
    program = qgpu.compile(TWO)
    assert [program.kernel(name).plain for name in ("one", "two", "_Z3twoPi")] == [
        "one", "two", "two",
    ]  # fmt: skip
    assert "st." in program.kernel("one").ptx
    assert len(program.kernel("one").params) == 1


def test_an_unknown_or_missing_name_lists_the_kernels() -> None:
    program = qgpu.compile(TWO, file="two.cu")
    with pytest.raises(qgpu.UsageError) as caught:
        program.kernel("three")
    assert str(caught.value) == "two.cu has no kernel three; it has one, two"
    with pytest.raises(qgpu.UsageError) as caught:
        program.kernel()
    assert str(caught.value) == "two.cu has 2 kernels (one, two): name one"


def test_ptx_is_taken_as_it_is_and_errors_name_its_line() -> None:
    ptx = qgpu.compile(TWO).ptx
    assert qgpu.compile(ptx, "ptx").kernel("one").ptx == ptx
    with pytest.raises(qgpu.CompileError) as caught:
        qgpu.compile(ptx + "nonsense\n", "ptx", file="x.ptx")
    assert caught.value.file == "x.ptx"
    assert caught.value.line == len(ptx.splitlines()) + 1


def test_a_syntax_error_names_the_file_and_the_line() -> None:
    with pytest.raises(qgpu.CompileError) as caught:
        qgpu.compile("\n__global__ void k(int *a) { a[0] = ; }", file="bad.cu")
    assert (caught.value.file, caught.value.line) == ("bad.cu", 2)


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(qgpu.UsageError, match="unknown kind of source 'opencl'"):
        qgpu.compile("", "opencl")
    with pytest.raises(qgpu.UsageError, match="the source is bytes"):
        qgpu.compile(b"")  # type: ignore[arg-type]
