"""CUDA to PTX: what the device header offers, clang's errors, and untrusted sources."""

from __future__ import annotations

import re

import pytest

from qgpu.errors import CompileError, UsageError
from qgpu.kernel import LaunchShape
from qgpu.machine import REFERENCE
from qgpu.ptx.clang import clang_version, cuda_to_ptx, find_clang
from qgpu.ptx.lower import lower
from qgpu.ptx.parse import parse_ptx
from qgpu.ptxir import Inst

EMPTY = "__global__ void k(){}"


def opcodes(body: str, opt: str = "-O1") -> set[str]:
    """The opcodes of a kernel over ``int *a`` and ``long long *q``."""
    ptx = cuda_to_ptx(f"__global__ void k(int *a, long long *q) {{ {body} }}", opt=opt)
    items = parse_ptx(ptx).kernels[0].body
    return {".".join(item.opcode) for item in items if isinstance(item, Inst)}


def test_a_clang_is_found_and_says_its_version() -> None:
    assert re.search(r"clang version \d+", clang_version(find_clang()))


@pytest.mark.parametrize("opt", ["-O0", "-O1", "-O2", "-O3", "-Os"])
def test_every_optimisation_level(opt: str) -> None:
    kernels = parse_ptx(cuda_to_ptx("__global__ void k(int *a) { a[0] = 1; }", opt=opt)).kernels
    assert [kernel.name for kernel in kernels] == ["_Z1kPi"]


@pytest.mark.parametrize(
    ("body", "opcode"),
    [
        ("a[0] = threadIdx.x + blockDim.y * blockIdx.z + gridDim.x;", "mov.u32"),
        ("__syncthreads();", "bar.sync"),
        ("a[0] = __syncthreads_count(a[1]);", "bar.red.popc.u32"),
        ("a[0] = __syncthreads_and(a[1]) + __syncthreads_or(a[2]);", "bar.red.and.pred"),
        ("__syncwarp();", "bar.warp.sync"),
        ("a[0] = __shfl_sync(15, a[1], 2);", "shfl.sync.idx.b32"),
        ("a[0] = __shfl_up_sync(15, a[1], 2);", "shfl.sync.up.b32"),
        ("a[0] = __shfl_down_sync(15, a[1], 2, 2);", "shfl.sync.down.b32"),
        ("q[0] = __shfl_xor_sync(15, q[1], 2);", "shfl.sync.bfly.b32"),
        ("a[0] = __ballot_sync(15, a[1]);", "vote.sync.ballot.b32"),
        ("a[0] = __all_sync(15, a[1]) + __any_sync(15, a[2]);", "vote.sync.all.pred"),
        ("a[0] = __activemask();", "activemask.b32"),
        ("a[0] = __match_any_sync(15, a[1]);", "match.any.sync.b32"),
        ("int p; a[0] = __match_all_sync(15, q[1], &p) + p;", "match.all.sync.b64"),
        ("__threadfence_block();", "membar.cta"),
        ("__threadfence();", "membar.gl"),
        ("a[0] = __popc(a[1]);", "popc.b32"),
        ("a[0] = __clzll(q[1]);", "clz.b64"),
        ("a[0] = __brev(a[1]);", "brev.b32"),
        ("a[0] = __mulhi(a[1], a[2]);", "mul.hi.s32"),
        ("q[0] = __umul64hi(q[1], q[2]);", "mul.hi.u64"),
        ("a[0] = __byte_perm(a[1], a[2], a[3]);", "prmt.b32"),
        ("a[0] = __funnelshift_l(a[1], a[2], a[3]);", "shf.l.wrap.b32"),
        ("a[0] = __funnelshift_rc(a[1], a[2], a[3]);", "shf.r.clamp.b32"),
        ("a[0] = __sad(a[1], a[2], 3u);", "sad.s32"),
        ("a[0] = __usad(a[1], a[2], 3u);", "sad.u32"),
        ("a[0] = __dp4a(a[1], a[2], a[3]);", "dp4a.s32.s32"),
        ("a[0] = min(a[1], a[2]);", "min.s32"),
        ("a[0] = max((unsigned)a[1], 3u);", "max.u32"),
        ("a[0] = abs(a[1]);", "abs.s32"),
        ("*(int4 *)a = make_int4(1, 2, 3, 4);", "st.global.v4.b32"),
    ],
)
def test_the_device_header(body: str, opcode: str) -> None:
    assert opcode in opcodes(body)


@pytest.mark.parametrize("name", ["Add", "Sub", "Exch", "Min", "Max", "And", "Or", "Xor"])
@pytest.mark.parametrize("suffix", ["", "_block"])
def test_atomics(name: str, suffix: str) -> None:
    found = opcodes(f"a[1] = atomic{name}{suffix}(a, 2);")
    assert any(opcode.startswith("atom.") for opcode in found)


def test_atomics_with_limits_and_compare() -> None:
    found = opcodes(
        "unsigned *u = (unsigned *)a; unsigned long long *w = (unsigned long long *)q;"
        "u[1] = atomicInc(u, 3u) + atomicDec(u, 4u) + atomicCAS(u, 1u, 2u);"
        "w[1] = atomicAdd(w, 3ull) + atomicCAS(w, 1ull, 2ull) + atomicMax(w, 9ull);"
    )
    kinds = [opcode for opcode in found if opcode.startswith("atom")]
    for part in ("inc.u32", "dec.u32", "cas.b32", "add.u64", "cas.b64", "max.u64"):
        assert any(opcode.endswith(part) for opcode in kinds), part


def test_types_and_limits_of_the_header() -> None:
    source = """#include <stdint.h>
    static_assert(sizeof(uint8_t) == 1 && sizeof(int64_t) == 8 && sizeof(size_t) == 8, "");
    static_assert(warpSize == 4 && INT_MIN < 0 && UINT_MAX == 0xffffffff, "");
    static_assert(sizeof(int3) == 12 && alignof(int4) == 16 && alignof(uchar4) == 4, "");
    __launch_bounds__(32, 1) __global__ void k(dim3 *d) { *d = dim3(1, 2); }"""
    assert ".entry" in cuda_to_ptx(source)


def test_output_does_not_depend_on_where_it_was_made() -> None:
    assert cuda_to_ptx(EMPTY) == cuda_to_ptx(EMPTY)


def test_source_lines_point_at_the_kernel() -> None:
    source = "__global__ void k(int *a)\n{\n  a[0] = __popc(threadIdx.x);\n}\n"
    body = parse_ptx(cuda_to_ptx(source, file="dir/my kernel.cu")).kernels[0].body
    places = {item.opcode[0]: item.source for item in body if isinstance(item, Inst)}
    assert places["popc"] == places["st"] == ("dir/my kernel.cu", 3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n__global__ void k() { foo(); }", "a.cu:2: use of undeclared identifier 'foo'"),
        ("__global__ void k() {", "a.cu:1: expected '}'"),
        ("__global__ int k() {}", "a.cu:1: kernel function type 'int ()' must have void return"),
        ("__global__ void k() { printf(0); }",
         "a.cu:1: there is no printf here: write to an array instead"),
        ("__global__ void k(int **a) {\n*a = (int *)malloc(4); }",
         "a.cu:2: there is no malloc, because there is no heap"),
        ("__global__ void k(int *a) { *a = sqrtf(*a); }",
         "a.cu:1: this machine computes integers only: there is no sqrtf"),
        ("__global__ void k(int *a) { float4 f; }",
         "a.cu:1: this machine computes integers only: there is no float4"),
        ("__global__ void k(int *a) { *a = __float2int_rn(*a); }",
         "a.cu:1: this machine computes integers only: there is no __float2int_rn"),
        ("__global__ void k(int *a) { *a = clock64(); }",
         "a.cu:1: this machine cannot tell the time: there is no clock64"),
        ("__global__ void k(int *a) { std::swap(a[0], a[1]); }",
         "a.cu:1: there is no C++ library here, so no std::"),
        ("namespace cg = cooperative_groups;",
         "a.cu:1: there is no C++ library here, so no such namespace"),
        ("__global__ void k() { k<<<1, 1>>>(); }",
         "a.cu:1: a kernel cannot launch a kernel here"),
        ("__global__ void k() { cudaDeviceSynchronize(); }",
         "a.cu:1: there is no cudaDeviceSynchronize: kernels only, no host library"),
        ("__global__ void k(int *a) { *a = half_of(*a) + cube(*a); }",
         "a.cu:1: use of undeclared identifier 'half_of'"),
        ("#error no\n", "a.cu:1: no"),
    ],
)  # fmt: skip
def test_the_first_error_of_clang(source: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        cuda_to_ptx(source, file="a.cu")
    assert str(caught.value).startswith(message)


def test_wrong_calls() -> None:
    with pytest.raises(UsageError, match="unknown optimisation"):
        cuda_to_ptx(EMPTY, opt="-O9")
    with pytest.raises(UsageError, match="unknown architecture"):
        cuda_to_ptx(EMPTY, arch="--version")


INCLUDE = '#include "/etc/passwd"'


@pytest.mark.parametrize(
    "source",
    [
        INCLUDE,
        "#include </etc/passwd>",
        '#inc\\\nlude "/etc/passwd"',
        '#inc\\ \r\nlude "/etc/passwd"',
        '%: include "/etc/passwd"',
        '/* x */ # /* y */ include "/etc/passwd"',
        '#include_next "/etc/passwd"',
        '#import "/etc/passwd"',
        "const char x[] = {\n#embed </etc/passwd>\n};",
        '#define F "/etc/passwd"\n#include F',
        f'#define q(a) #a\n#warning don\'t R"(\n{INCLUDE}\n//)"',
        f"#ifdef X\n'\n#endif\n{INCLUDE}\n#ifdef X\n'\n#endif",
        f"int a = 1'000;\n{INCLUDE}\nint b = 1'0;",
        '#pragma GCC dependency "/etc/passwd"',
        '_Pragma("GCC dependency \\"/etc/passwd\\"")',
        '#define s(x) #x\n#define c(a, b) a##b\n_Pragma(s(GCC c(depend,ency) "/etc/passwd"))',
        'asm(".incbin \\"/etc/passwd\\"");',
    ],
)
def test_files_are_not_read(source: str) -> None:
    with pytest.raises(CompileError, match="cannot include or read files"):
        cuda_to_ptx(f"{source}\n{EMPTY}")


@pytest.mark.parametrize(
    "test",
    [
        '__has_include("/etc/passwd")',
        '__has_inc\\\nlude("/etc/passwd")',
        'C(__has_,include)("/etc/passwd")',
        'C(__has_,embed)("/etc/passwd")',
    ],
)
def test_files_are_not_looked_for(test: str) -> None:
    with pytest.raises(CompileError, match="is not defined"):
        cuda_to_ptx(f"#define C(a, b) a##b\n#if {test}\n#endif\n{EMPTY}")


def test_assembly_reaches_no_assembler() -> None:
    source = '__global__ void k() { asm(".inc" "bin \\"/etc/passwd\\";"); }'
    ptx = cuda_to_ptx(source)
    assert "root" not in ptx
    with pytest.raises(CompileError, match="syntax error"):
        parse_ptx(ptx)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("template <int N> struct A { enum { v = A<N + 1>::v }; };\nint x = A<0>::v;",
         "recursive template instantiation"),
        ("constexpr int f() { for (int i = 0;; i++) {} return 0; }\nconstexpr int x = f();",
         "constant expression"),
        pytest.param("int x = " + "(" * 100_000 + "1" + ")" * 100_000 + ";",
                     "bracket nesting level", id="brackets"),
        ("#pragma clang __debug crash\n", "clang stopped at a limit"),
        pytest.param("x" * 2_000_000, "longer than", id="long"),
        ("\0", "NUL"),
    ],
)  # fmt: skip
def test_sources_that_try_to_exhaust_the_compiler(source: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        cuda_to_ptx(source)


def test_a_preprocessor_bomb_ends() -> None:
    lines = [f"#define A0 {'1+' * 16}"]
    lines += [f"#define A{n} {f'A{n - 1} ' * 16}" for n in range(1, 9)]
    with pytest.raises(CompileError, match=r"took more than|stopped at a limit"):
        cuda_to_ptx("\n".join([*lines, "#if A8 1", "#endif"]), timeout_s=3)


def test_a_huge_array_is_refused() -> None:
    source = "__device__ char x[1 << 30]; __global__ void k(int *a) { a[0] = x[a[1]]; }"
    with pytest.raises(CompileError, match="1073741824 bytes"):
        parse_ptx(cuda_to_ptx(source))


@pytest.mark.parametrize("opt", ["-O1", "-O3"])
def test_a_loop_that_does_nothing_but_wait_stays(opt: str) -> None:
    assert "bra" in {opcode.split(".")[0] for opcode in opcodes("while (a[0]) ; a[1] = 1;", opt)}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("float f = a[0];\na[1] = f * f;",
         "k.cu:2: this machine computes integers only, not .f32 [cvt.rn.f32.s32"),
        ("a[1] = 0;\nint *p = new int[a[0]];\np[a[0]] = 1; a[2] = p[a[1]];",
         "k.cu:3: there is no operator new[], because there is no heap"),
        ('a[0] = 1;\nasm volatile("bar.arrive 1, 64;");', "k.cu:3: "),
    ],
)  # fmt: skip
def test_a_refused_instruction_names_the_line_of_the_cuda_source(body: str, message: str) -> None:
    source = f"__global__ void k(int *a) {{\n{body}\n}}"
    module = parse_ptx(cuda_to_ptx(source, file="k.cu"), "k.ptx")
    with pytest.raises(CompileError) as caught:
        lower(module, module.kernels[0].name, REFERENCE, LaunchShape(params=(8,)))
    assert str(caught.value).startswith(message)
