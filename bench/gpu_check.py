"""The corpus on a real NVIDIA GPU: the very PTX that the toolchain makes, every word compared.

    python bench/gpu_check.py prepare --out DIR           needs qgpu; a self-contained folder
    python bench/gpu_check.py run DIR --out results.json  needs an NVIDIA driver, nothing else

``run`` talks to the driver (libcuda) through ctypes: it loads each PTX text as it is, so the
driver's own compiler is the second opinion. Cases run in a child process that is started anew
after a fault, so one bad kernel cannot spoil the others. Each array has guard bytes on both sides.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import selectors
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CASE_SECONDS = 30
GUARD = b"\xa5" * 256
Record = dict[str, Any]


# --- prepare --------------------------------------------------------------------------------------


def _parameter(param: Any, arg: Any, final: Any, sizes: dict[str, int]) -> Record:
    """One kernel parameter as bytes; an array with what it must be afterwards."""
    if isinstance(arg, int):
        size = sizes[param.type]
        return {"kind": "value", "bytes": (arg % (1 << (8 * size))).to_bytes(size, "little").hex()}
    if param.is_array:
        return {"kind": "value", "bytes": arg.tobytes().hex()}
    return {"kind": "array", "type": arg.dtype.name, "bytes": arg.tobytes().hex(),
            "expect": final.tobytes().hex()}  # fmt: skip


def prepare(out: Path, levels: list[str], n_fuzz: int, seed: int, only: str = "") -> None:
    """Compile every case and write the PTX and one JSON with launches, inputs and results."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from qgpu.host.program import compile as compile_program
    from qgpu.ptx.clang import cuda_to_ptx
    from qgpu.ptxir import TYPE_BYTES
    from tests.cases import all_cases

    cases = [case for case in all_cases() if only in case.name]
    if n_fuzz:
        from bench.fuzz import fuzz_cases

        cases += fuzz_cases(seed, n_fuzz)
    folder = out / "ptx"
    folder.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    for case in cases:
        for level in levels if case.kind == "cuda" else levels[:1]:
            name = case.name if level == levels[0] else f"{case.name}{level}"
            ptx = case.source
            if case.kind == "cuda":
                ptx = cuda_to_ptx(case.source, file=f"{case.name}.cu", opt=level)
            kernel = compile_program(ptx, "ptx", file=f"{name}.ptx").kernel(case.kernel)
            (folder / f"{name}.ptx").write_text(ptx)
            triples = zip(kernel.params, case.args, case.final, strict=True)
            records.append({
                "name": name, "kernel": kernel.name, "ptx": f"ptx/{name}.ptx",
                "grid": case.grid, "block": case.block, "shared": 4 * case.dynamic_shared_words,
                "params": [_parameter(*triple, TYPE_BYTES) for triple in triples],
            })  # fmt: skip
    (out / "cases.json").write_text(json.dumps(records))
    print(f"{len(records)} cases in {out}")


# --- the driver -----------------------------------------------------------------------------------


class DriverError(Exception):
    """A call into the driver failed."""


class Driver:
    """The few driver calls that a launch takes, through ctypes."""

    def __init__(self) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise DriverError("no NVIDIA driver here: libcuda.so.1 is not found") from None
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device.value
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self.cuda, name)(*args)
        if status:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(status, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'error').decode()} ({status})")

    def card(self) -> Record:
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, self.device)
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(major), 75, self.device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, self.device)
        return {"card": name.value.decode(), "compute_capability": f"{major.value}.{minor.value}",
                "cuda_driver": f"{version.value // 1000}.{version.value % 1000 // 10}"}  # fmt: skip

    def load(self, ptx: bytes) -> ctypes.c_void_p:
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        # CU_JIT_ERROR_LOG_BUFFER = 5 and its size = 6
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), ctypes.c_void_p(4096))
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), ptx + b"\0", 2, options, values)
        except DriverError as error:
            raise DriverError(f"{error}: {log.value.decode().strip()}") from None
        return module

    def allocate(self, data: bytes) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(len(data)))
        self.call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))
        return pointer

    def read(self, pointer: ctypes.c_uint64, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, pointer, ctypes.c_size_t(size))
        return data.raw

    def launch(self, case: Record, ptx: bytes) -> list[bytes | None]:
        """Run one case; the final bytes of each array, guards included."""
        module, function = self.load(ptx), ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, case["kernel"].encode())
        held: list[Any] = []
        arrays: list[tuple[ctypes.c_uint64, int] | None] = []
        for param in case["params"]:
            data = bytes.fromhex(param["bytes"])
            if param["kind"] == "array":
                guarded = GUARD + data + GUARD
                pointer = self.allocate(guarded)
                arrays.append((pointer, len(guarded)))
                held.append(ctypes.c_uint64(pointer.value + len(GUARD)))
            else:
                arrays.append(None)
                held.append(ctypes.create_string_buffer(data, len(data)))
        pointers = (ctypes.c_void_p * max(1, len(held)))(
            *(ctypes.cast(ctypes.byref(h), ctypes.c_void_p) for h in held)
        )
        self.call("cuLaunchKernel", function, *case["grid"], *case["block"], case["shared"], None,
                  pointers, None)  # fmt: skip
        self.call("cuCtxSynchronize")
        final = [self.read(*array) if array else None for array in arrays]
        for array in arrays:
            if array:
                self.call("cuMemFree_v2", array[0])
        self.call("cuModuleUnload", module)
        return final


# --- run ------------------------------------------------------------------------------------------


def _differences(case: Record, final: list[bytes | None]) -> tuple[int, list[str]]:
    """(words compared, what differs)."""
    n_words, found = 0, []
    for index, (param, have) in enumerate(zip(case["params"], final, strict=True)):
        if have is None:
            continue
        want = bytes.fromhex(param["expect"])
        n_words += -(-len(want) // 4)
        inner = have[len(GUARD) : len(GUARD) + len(want)]
        if inner != want:
            at = next(n for n, (a, b) in enumerate(zip(inner, want, strict=True)) if a != b)
            a, b = inner[at : at + 16].hex(), want[at : at + 16].hex()
            found.append(f"argument {index} ({param['type']}) from byte {at}: {a}, expected {b}")
        if have != GUARD + inner + GUARD:
            found.append(f"argument {index}: a write outside the array")
    return n_words, found


def work(folder: Path, start: int) -> None:
    """The child: cases from ``start`` on, one JSON line each; ends at the first driver fault."""
    cases = json.loads((folder / "cases.json").read_text())
    driver = Driver()
    for index in range(start, len(cases)):
        case = cases[index]
        print(json.dumps({"start": index}), flush=True)
        try:
            final = driver.launch(case, (folder / case["ptx"]).read_bytes())
            n_words, differences = _differences(case, final)
            print(json.dumps({"index": index, "words": n_words, "differences": differences}),
                  flush=True)  # fmt: skip
        except DriverError as error:
            print(json.dumps({"index": index, "words": 0, "differences": [str(error)]}), flush=True)
            return


def _child(folder: Path, start: int, results: dict[int, Record]) -> int:
    """Run one child; returns the case to go on with."""
    child = subprocess.Popen(
        [sys.executable, __file__, "work", str(folder), "--start", str(start)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    running, deadline = start, time.monotonic() + CASE_SECONDS
    watch = selectors.DefaultSelector()
    watch.register(child.stdout, selectors.EVENT_READ)
    while True:
        if not watch.select(max(0.0, deadline - time.monotonic())):
            child.kill()
            results[running] = {"words": 0, "differences": [f"no end within {CASE_SECONDS} s"]}
            return running + 1
        line = child.stdout.readline()
        if not line:
            break
        said = json.loads(line)
        deadline = time.monotonic() + CASE_SECONDS
        if "start" in said:
            running = said["start"]
        else:
            results[said.pop("index")] = said
    errors = child.communicate()[1].strip().splitlines()
    if running not in results:
        reason = errors[-1] if errors else f"the process ended with {child.returncode}"
        results[running] = {"words": 0, "differences": [reason]}
    return running + 1


def run(folder: Path, out: Path) -> int:
    """All cases; writes the results and returns the exit status."""
    cases = json.loads((folder / "cases.json").read_text())
    card = Driver().card()
    results: dict[int, Record] = {}
    began, at = time.monotonic(), 0
    while at < len(cases):
        at = _child(folder, at, results)
    wrong = {cases[n]["name"]: results[n]["differences"] for n in results
             if results[n]["differences"]}  # fmt: skip
    report = {
        **card,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "cases": len(cases),
        "right": len(cases) - len(wrong),
        "words": sum(result["words"] for result in results.values()),
        "wrong": wrong,
        "names": [case["name"] for case in cases],
    }
    out.write_text(json.dumps(report, indent=1) + "\n")
    for name, differences in wrong.items():
        print(f"{name}: {'; '.join(differences)}")
    print(f"{report['right']} of {report['cases']} right, {report['words']} words, "
          f"{report['seconds']} s on {report['card']}")  # fmt: skip
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare", help="compile the corpus into a self-contained folder")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--opt", action="append", help="clang level (O1); repeat for more")
    one.add_argument("--only", default="", help="cases whose name has this text")
    one.add_argument("--fuzz", type=int, default=0, help="add this many random programs")
    one.add_argument("--seed", type=int, default=0)
    two = commands.add_parser("run", help="run a prepared folder on the GPU")
    two.add_argument("folder", type=Path)
    two.add_argument("--out", type=Path, required=True)
    three = commands.add_parser("work", help="internal: one child of run")
    three.add_argument("folder", type=Path)
    three.add_argument("--start", type=int, required=True)
    given = parser.parse_args()
    match given.command:
        case "prepare":
            prepare(
                given.out,
                [f"-{level}" for level in given.opt or ["O1"]],
                given.fuzz,
                given.seed,
                given.only,
            )
        case "run":
            return run(given.folder, given.out)
        case "work":
            work(given.folder, given.start)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DriverError as error:
        sys.exit(f"error: {error}")
