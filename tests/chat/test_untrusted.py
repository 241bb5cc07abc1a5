"""CUDA that a model writes is hostile until shown otherwise: files, endless work, size, budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qgpu
from qgpu.errors import Error, UsageError
from qgpu.host.chat.device import Device
from qgpu.host.chat.modes import AdvancedMode, Outcome
from qgpu.host.chat.toolcall import ToolCall
from qgpu.host.chat.untrusted import parse_argument
from qgpu.ptx import clang

KERNEL = 'extern "C" __global__ void k(int *out) '
SECRET = "the-secret-of-the-host"


def run(source: str, args: str = "zeros:4", block: str = "1", **device: Any) -> Outcome:
    mode = AdvancedMode(Device(qgpu.Interpreter(), **device))
    return mode.run(
        ToolCall("run_cuda", {"source": source, "grid": "1", "block": block, "args": args})
    )


def refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.value is None
    assert outcome.error is not None and outcome.retry
    assert "\n" not in outcome.error
    for part in parts:
        assert part in outcome.error
    assert SECRET not in outcome.content


def test_a_good_kernel_runs() -> None:
    outcome = run(KERNEL + "{ out[threadIdx.x] = threadIdx.x * 10; }", block="4")
    assert outcome.value == [[0, 10, 20, 30]]
    assert outcome.content == "args[0] = [0, 10, 20, 30]"
    assert outcome.details["ptx_bytes"] > 100


# --- reading files --------------------------------------------------------------------------------

READERS = {
    "include": '#include "{}"\n',
    "include with angles": "#include <{}>\n",
    "include through a macro": '#define F "{}"\n#include F\n',
    "include with a digraph": '%:include "{}"\n',
    "include spliced": '#inc\\\nlude "{}"\n',
    "include after a comment": '#/**/include "{}"\n',
    "include_next": '#include_next "{}"\n',
    "import": '#import "{}"\n',
    "embed": 'const int x[] = {\n#embed "{}"\n};\n',
    "has_include": '#if __has_include("{}")\n#error found\n#endif\n',
    "file-level asm": 'asm(".incbin \\"{}\\"");\n',
    "pragma": '#pragma GCC dependency "{}"\n',
}


@pytest.mark.parametrize("how", READERS)
def test_reading_a_file(tmp_path: Path, how: str) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text(f'static const char *secret = "{SECRET}";\n#error {SECRET}\n')
    prefix = READERS[how].replace("{}", str(secret))
    refused(run(prefix + KERNEL + "{ out[0] = 1; }"), "kernel.cu")


def test_asm_inside_the_kernel_cannot_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    refused(run(KERNEL + f'{{ asm volatile(".incbin \\"{secret}\\""); out[0] = 1; }}'))


def test_has_include_tells_nothing(tmp_path: Path) -> None:
    """Whether a file exists must not show in the result either."""
    body = "#ifdef __has_include\n#if __has_include({})\n#define FOUND 1\n#endif\n#endif\n"
    kernel = "#ifndef FOUND\n#define FOUND 0\n#endif\n" + KERNEL + "{ out[0] = FOUND + 5; }"
    there = tmp_path / "there.h"
    there.touch()
    outcomes = [
        run(body.replace("{}", f'"{path}"') + kernel) for path in (there, tmp_path / "no.h")
    ]
    assert outcomes[0].content.replace("there", "no") == outcomes[1].content.replace("there", "no")


def test_macros_of_the_host_tell_nothing() -> None:
    outcome = run(KERNEL + "{ const char *f = __FILE__; out[0] = f[0] != '/'; }")
    assert outcome.error is not None or outcome.value[0][0] == 1


@pytest.mark.parametrize(
    "text", ["@/etc/passwd", "@x.npy", "/etc/passwd", "open('/etc/passwd')", "[1,2", "1.5"]
)
def test_arguments_name_no_files(text: str) -> None:
    with pytest.raises(UsageError, match="is neither"):
        parse_argument(text)


# --- endless or enormous compilation --------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same limit, only shorter, so that the test is."""
    monkeypatch.setattr(clang, "TIMEOUT_S", 3)


@pytest.mark.usefixtures("hasty")
def test_endless_preprocessing() -> None:
    laughs = "#define A0 1+1\n" + "".join(
        f"#define A{n + 1} A{n}+A{n}+A{n}+A{n}+A{n}+A{n}+A{n}+A{n}\n" for n in range(12)
    )
    refused(run(laughs + KERNEL + "{ out[0] = A12; }"), "kernel.cu")


TEMPLATES = {
    "endless recursion": "template <int N> struct F { static const int v = F<N + 1>::v; };\n"
    + KERNEL + "{ out[0] = F<0>::v; }",
    "exponential": "template <int N, int M> struct F { static const int v = "
    "F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v; };\n"
    "template <int M> struct F<0, M> { static const int v = M; };\n"
    + KERNEL + "{ out[0] = F<25, 1>::v; }",
    "endless constexpr": "constexpr int f() { int n = 0; while (true) n ^= 1; return n; }\n"
    + KERNEL + "{ constexpr int v = f(); out[0] = v; }",
}  # fmt: skip


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("how", TEMPLATES)
def test_endless_templates(how: str) -> None:
    refused(run(TEMPLATES[how]), "kernel.cu")


HUGE = {
    "local": KERNEL + "{ int a[1 << 26]; for (int i = 0; i < 1 << 26; i++) a[i] = i * out[0];"
    " out[0] = a[out[1] & 1023]; }",
    "shared": "__shared__ int s[1 << 28];\n" + KERNEL + "{ s[out[0]] = 1; out[0] = s[out[1]]; }",
    "global": "__device__ int g[1 << 28];\n" + KERNEL + "{ g[out[0]] = 1; out[0] = g[5]; }",
    "initialised": "__device__ int g[1 << 24] = {1, 2, 3};\n" + KERNEL + "{ out[0] = g[out[0]]; }",
    "initialised far out": "__device__ int g[1 << 24] = {[(1 << 24) - 1] = 3};\n"
    + KERNEL + "{ out[0] = g[out[0]]; }",
    "unrolled": KERNEL + "{ int x = out[0];\n#pragma unroll\n"
    "for (int i = 0; i < 20000; i++) x = x * out[i & 3] + i; out[0] = x; }",
    "source": "// " + "x" * (2 << 20) + "\n" + KERNEL + "{ out[0] = 1; }",
}  # fmt: skip


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("how", HUGE)
def test_huge(how: str) -> None:
    outcome = run(HUGE[how])
    # The optimiser may fold an array away; what does not fit has to be refused in one line.
    if outcome.error is not None or how != "unrolled":
        refused(outcome)


@pytest.mark.parametrize("text", ["zeros:5000", "zeros:99999999999", "zeros:-1", "zeros:x", "[]"])
def test_huge_arguments(text: str) -> None:
    with pytest.raises(UsageError):
        parse_argument(text)


def test_arrays_beyond_the_memory() -> None:
    refused(run(KERNEL + "{ out[0] = 1; }", args="zeros:4000"), "words of memory")


# --- endless kernels ------------------------------------------------------------------------------

ENDLESS = KERNEL + "{ volatile int *p = out; while (p[1] == 0) p[0] += 1; }"


def test_an_endless_kernel_meets_a_budget() -> None:
    refused(run(ENDLESS, max_tokens=500))


def endless(kernel: str, args: list[Any], block: int = 1, **limits: Any) -> str:
    """The launch's own budgets, without the sanitizer in front."""
    device = Device(qgpu.Interpreter(), **limits)
    with pytest.raises(Error) as error:
        device.launch(qgpu.compile(kernel).kernel("k"), [1], [block], args)
    return str(error.value)


def test_the_token_budget() -> None:
    line = endless(ENDLESS, [np.zeros(4, np.int32)], max_tokens=500)
    assert line.startswith("the launch did not end within 500 tokens")


def test_the_time_budget() -> None:
    line = endless(ENDLESS, [np.zeros(4, np.int32)], max_seconds=0.2, max_tokens=10**9)
    assert line == "the launch took longer than 0.2 seconds"


def test_faults_go_back_as_text() -> None:
    refused(run("int nonsense("), "kernel.cu:1")
    refused(run(KERNEL + "{ out[0] = undeclared; }"), "kernel.cu:1", "undeclared")
    refused(run("__device__ int f() { return 1; }"), "kernel")
    refused(run(KERNEL + "{ out[0] = 1; }", block="33"), "threads")
    refused(run(KERNEL + "{ out[0] = 1; }", block="x"), "block")
    refused(run(KERNEL + "{ out[0] = 1; }", args="zeros:1\n5"), "argument")
    refused(run('extern "C" __global__ void k(float *p) { p[0] = p[1] * 2.0f; }'))


def test_the_sanitizer_speaks() -> None:
    outcome = run(KERNEL + "{ out[threadIdx.x + 3] = 1; }", block="4")
    refused(outcome, "sanitizer")
    assert "fix the kernel" in outcome.content and "kernel.cu:1" in outcome.content


def test_problems_of_the_call() -> None:
    mode = AdvancedMode(Device(qgpu.Interpreter()))
    assert mode.run(ToolCall("", problem="cut")).error == "cut"
    assert mode.run(ToolCall("other")).error == "there is no tool other, only run_cuda"
    missing = mode.run(ToolCall("run_cuda", {"block": "1"})).error
    assert missing == "the call has no parameter source with the CUDA kernel"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("-7", -7), ("0x10", 16), ("zeros:3", [0, 0, 0]),
        ("[1, -2, 0xffffffff]", [1, -2, -1]), ("[[1, 2], [3, 4]]", [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_arguments(text: str, value: Any) -> None:
    got = parse_argument(text)
    assert (got.tolist() if isinstance(got, np.ndarray) else got) == value


def test_forms_that_models_write() -> None:
    mode = AdvancedMode(Device(qgpu.Interpreter()))
    source = f"```cuda\n{KERNEL}{{ out[threadIdx.x] = 5; }}\n```"
    for block, args in (("(2, 1, 1)", '["zeros:2"]'), ("[2]", "[[0, 0]]"), ("2", "zeros:2;")):
        outcome = mode.run(ToolCall("run_cuda", {"source": source, "block": block, "args": args}))
        assert outcome.value == [[5, 5]], outcome.error
