"""CUDA C -> PTX with a clang that has the NVPTX back end: the system's, or ziglang's from PyPI.

The source is untrusted (a language model may have written it). It reaches clang on standard input
in an empty folder, with no include path but the project's own header, under limits on time,
memory and output. What could make the preprocessor look at a file is refused before clang runs.
Inline assembly is PTX text that clang copies through: no assembler runs.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from qgpu.errors import CompileError, UsageError
from qgpu.ptx.absent import explain_error

TIMEOUT_S = 30
MEMORY_KIB = 4 << 20
OUTPUT_BYTES = 4 << 20
SOURCE_BYTES = 1 << 20
OPT_LEVELS = ("-O0", "-O1", "-O2", "-O3", "-Os")
SYSTEM_NAMES = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))

# Headers whose names CUDA sources mention out of habit: what they hold is in device.h already.
KNOWN_HEADERS = frozenset({
    "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h",
    "stdint.h", "stddef.h", "stdbool.h", "limits.h", "assert.h", "inttypes.h",
    "cstdint", "cstddef", "climits", "cassert", "cinttypes",
})  # fmt: skip
_GAP = r"(?:[ \t\f\v]|/\*.*?\*/)*"
_DIRECTIVE = re.compile(
    rf"(?:\#|%:){_GAP}(?:include_next|include|import|embed)\b[^\n]*|\.incbin", re.DOTALL
)
_PRAGMA_FILE = re.compile(r"\bdependency\b|##|%:%:")
_SPLICE = re.compile(r"\\[ \t\f\v]*(?:\r\n|\n\r|\r|\n)")
_KNOWN_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([\w.]+)[>"][^\n"]*$', re.MULTILINE)
# Preprocessor operators that look at files are not defined.
_NO_OPERATORS = ("-U__has_include", "-U__has_include_next", "-U__has_embed")


def find_clang() -> list[str]:
    """The command of the first clang that can make PTX; ``QGPU_CLANG`` names one outright."""
    return list(_find_clang(os.environ.get("QGPU_CLANG")))


@functools.lru_cache(maxsize=8)
def _find_clang(chosen: str | None) -> tuple[str, ...]:
    candidates = [(chosen,)] if chosen else [*_system_clangs(), *_zig_clang()]
    for command in candidates:
        if _makes_ptx(command):
            return command
    if chosen:
        raise UsageError(f"QGPU_CLANG={chosen} cannot make PTX")
    raise UsageError("no clang that can make PTX was found: pip install ziglang, or install clang")


def _system_clangs() -> list[tuple[str, ...]]:
    found = [shutil.which(name) for name in SYSTEM_NAMES]
    return [(path,) for path in dict.fromkeys(found) if path]


def _zig_clang() -> list[tuple[str, ...]]:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(next(iter(spec.submodule_search_locations)))
    zig = folder / ("zig.exe" if sys.platform == "win32" else "zig")
    return [(str(zig), "clang")] if zig.exists() else []


def _makes_ptx(command: tuple[str, ...]) -> bool:
    try:
        return ".entry" in cuda_to_ptx("__global__ void k() {}", clang=command)
    except (CompileError, OSError):
        return False


def clang_version(command: Sequence[str]) -> str:
    """The first line of ``clang --version``."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False,
                          timeout=TIMEOUT_S)  # fmt: skip
    return done.stdout.partition("\n")[0].strip()


def refuse_host_access(source: str, file: str) -> str:
    """Refuse whatever would look at a file; returns the source without known ``#include`` lines.

    A directive's name is never the result of a macro, so it stands in the text once spliced lines
    are joined. The search does not ask whether it stands in a comment or a string: no lexer here
    could be fooled where clang's is not.
    """
    if len(source.encode()) > SOURCE_BYTES:
        raise CompileError(f"the source is longer than {SOURCE_BYTES} bytes", file=file)
    if "\0" in source:
        raise CompileError("the source holds a NUL character", file=file)
    kept = _drop_known_includes(source)
    joined = _SPLICE.sub("", kept)
    found = _DIRECTIVE.search(joined)
    if found is None and ("_Pragma" in joined or ("dependency" in joined and "pragma" in joined)):
        found = _PRAGMA_FILE.search(joined)
    if found is not None:
        line = kept.count("\n", 0, found.start()) + 1
        raise CompileError(
            "a kernel cannot include or read files: it has what qgpu's own header declares",
            file=file, line=line, instruction=" ".join(found[0].split())[:80],
        )  # fmt: skip
    return kept


def _drop_known_includes(source: str) -> str:
    """``#include <stdint.h>`` and its like become empty lines."""
    return _KNOWN_INCLUDE.sub(lambda m: "" if m[1] in KNOWN_HEADERS else m[0], source)


def _command(clang: Sequence[str], header: Path, opt: str, arch: str) -> list[str]:
    return [
        *clang, "-x", "cuda", "--cuda-device-only", f"--cuda-gpu-arch={arch}",
        "-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++", "-std=gnu++17", "-fno-trigraphs",
        *_NO_OPERATORS,
        "-Wno-unknown-cuda-version", "-Xclang", "-target-feature", "-Xclang", "+ptx64",
        "-fno-unroll-loops", "-fno-jump-tables", "-fno-vectorize", "-fno-slp-vectorize",
        # One counter a loop: each pointer that loop strength reduction would step is a write-back.
        "-mllvm", "-disable-lsr",
        "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-ftemplate-depth=256",
        # A loop that waits for another thread is no undefined behaviour on a GPU: it stays.
        "-fno-finite-loops",
        "-gline-tables-only", "-w", "-ferror-limit=20", "-fno-caret-diagnostics",
        "-fno-color-diagnostics", "-include", str(header), opt, "-S", "-o", "-", "-",
    ]  # fmt: skip


def _limited(command: list[str]) -> list[str]:
    """The command under limits of memory, time and file size, where there is a POSIX shell."""
    if os.name != "posix":
        return command
    blocks = OUTPUT_BYTES // 512
    limits = f"ulimit -v {MEMORY_KIB} 2>/dev/null; ulimit -t {TIMEOUT_S}; ulimit -f {blocks};"
    return ["/bin/sh", "-c", f'{limits} ulimit -c 0; exec "$@"', "sh", *command]


def _environment(folder: str) -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    return keep | {"HOME": folder, "TMPDIR": folder, "TMP": folder, "LC_ALL": "C"}


def _run(command: list[str], source: str, file: str, timeout_s: float) -> tuple[int, str, str]:
    """Exit status, output, errors of one run in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="qgpu-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        work = Path(folder, "work")
        work.mkdir()
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                _limited(command), stdin=subprocess.PIPE, stdout=out_file, stderr=err_file,
                cwd=work, env=_environment(str(work)), start_new_session=True,
            )  # fmt: skip
            try:
                process.communicate(source.encode(), timeout=timeout_s)
            except subprocess.TimeoutExpired:
                _end(process)
                raise CompileError(f"clang took more than {timeout_s:g} s", file=file) from None
            except BaseException:
                _end(process)
                raise
        output = out.read_bytes()[: OUTPUT_BYTES + 1]
        errors = err.read_bytes()[:100_000].decode(errors="replace")
    if len(output) >= OUTPUT_BYTES:
        raise CompileError(f"clang wrote more than {OUTPUT_BYTES} bytes of PTX", file=file)
    text = output.decode(errors="replace").replace(f"{work}{os.sep}", "")
    return process.returncode, text, errors


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the compiler and what it started."""
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _first_error(errors: str, status: int, file: str) -> CompileError:
    """clang's first error as one line with the source's own file and line."""
    if "frontend command failed" in errors or "PLEASE submit a bug report" in errors:
        status = -1
    for text in errors.splitlines() if status > 0 else ():
        match = re.match(r"(?:(.*?):(\d+):(?:\d+:)? )?(?:fatal )?error: (.*)", text)
        if match:
            line = int(match[2]) if match[2] else None
            return CompileError(explain_error(match[3]), file=match[1] or file, line=line)
    if status < 0 or status > 128:
        return CompileError(
            "clang stopped at a limit (memory, time or output) or crashed", file=file
        )
    return CompileError(
        errors.strip().partition("\n")[0] or f"clang ended with {status}", file=file
    )


def cuda_to_ptx(
    source: str,
    *,
    file: str = "kernel.cu",
    opt: str = "-O1",
    clang: Sequence[str] | str | None = None,
    arch: str = "sm_75",
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Compile CUDA C; clang's first error becomes a ``CompileError`` with file and line."""
    if opt not in OPT_LEVELS:
        raise UsageError(f"unknown optimisation {opt!r}: one of {', '.join(OPT_LEVELS)}")
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise UsageError(f"unknown architecture {arch!r}: such as sm_75")
    kept = refuse_host_access(source, file)
    command = [clang] if isinstance(clang, str) else list(clang or find_clang())
    name = re.sub(r'(["\\])', r"\\\1", re.sub(r"[\r\n]", " ", file))
    with resources.as_file(resources.files("qgpu.ptx").joinpath("device.h")) as header:
        full = _command(command, header.resolve(), opt, arch)
        status, ptx, errors = _run(full, f'#line 1 "{name}"\n{kept}\n', file, timeout_s)
    if status != 0:
        raise _first_error(errors, status, file)
    return ptx
