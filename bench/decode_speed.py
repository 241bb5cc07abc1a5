"""Decode speed on a GPU: plain forward passes, the captured modules, the fused step.

    python bench/decode_speed.py LAUNCHES --out FILE [--quick] [--tune] [--seconds 420]
    python bench/decode_speed.py LAUNCHES --out FILE --tuned FILE-OF-A-RUN-WITH-TUNE

Two models in stock transformers classes, bf16: the reference machine's layers alone, and those in
front of 24 random layers of Qwen3.5-2B's shape with its whole vocabulary (69 layers). LAUNCHES is
the file that `bench/replay.py prepare --limit 0` writes; its long launch is fed through prefill,
then written token by token, and every token and the memory are compared with the interpreter's.
FILE is written anew after each part, so that a run that is cut short has told what it found.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch

from bench.machine_fuzz import QWEN_2B
from bench.whole import whole_model
from qgpu.compiler.plan import build_plan
from qgpu.host.graph import CAPACITY, StepGraph
from qgpu.host.model import cache_argument
from qgpu.host.step import TUNED, Launch, Tuning
from qgpu.machine import REFERENCE
from tests.compiler.dense import circuit_model

PART = 4096
REPLAYS = 20
CANDIDATES = [(1, 2), (1, 4), (2, 4), (4, 4), (2, 8), (4, 8), (8, 8)]  # rows, warps


class Report:
    """What was found so far, on disk after each part; a part that fails is told and passed over."""

    def __init__(self, out: Path) -> None:
        self.out, self.found = out, {}  # type: Path, dict[str, Any]
        self.start = time.perf_counter()

    def part(self, name: str, run: Callable[[], Any]) -> None:
        start = time.perf_counter()
        try:
            self.found[name] = run()
        except Exception as problem:  # a later part may still work
            traceback.print_exc()
            self.found[name] = f"FAILED: {type(problem).__name__}: {str(problem)[:400]}"
        took = time.perf_counter() - start
        self.found.setdefault("seconds of parts", {})[name] = round(took, 1)
        self.out.write_text(json.dumps(self.found, indent=1))
        print(f"{name} ({took:.1f} s): {json.dumps(self.found[name])}", flush=True)


class Bench:
    """One model with the long launch."""

    def __init__(self, model: Any, launch: dict[str, Any], plan: Any, first_token: int,
                 tuned: Tuning) -> None:  # fmt: skip
        self.model, self.plan, self.memory, self.tuned = model, plan, launch["memory"], tuned
        self.prompt = [n + first_token for n in launch["prompt"]]
        self.trace = [n + first_token for n in launch["trace"]]
        _, self.cache = self.prefill(self.prompt)

    def prefill(self, ids: list[int]) -> tuple[list[int], Any]:
        """Argmax at every position, and the cache."""
        best: list[int] = []
        cache = None
        for start in range(0, len(ids), PART):
            part = torch.tensor([ids[start : start + PART]], device=self.model.device)
            out = self.model.model(part, **{self.argument: cache}, use_cache=True)
            cache = getattr(out, self.argument)
            for rows in out.last_hidden_state[0].split(1024):
                best += self.model.lm_head(rows).argmax(-1).tolist()
        return best, cache

    @property
    def argument(self) -> str:
        return cache_argument(self.model)

    def memory_right(self, cache: Any) -> bool:
        place = self.plan.memory_place
        state = cache.layers[place.layer].recurrent_states[0][0, place.heads]
        return [int(word) for word in place.words(state.float().cpu().numpy())] == self.memory

    def long_prefill(self) -> dict[str, Any]:
        start = time.perf_counter()
        best, cache = self.prefill(self.prompt + self.trace[:-1])
        return {
            "tokens": len(self.trace),
            "tokens/s": round(len(best) / (time.perf_counter() - start), 1),
            "every token right": best[len(self.prompt) - 1 :] == self.trace,
            "memory right": self.memory_right(cache),
        }

    def graph(self, capacity: int = CAPACITY, **options: Any) -> StepGraph:
        options = {"tuned": self.tuned, **options}
        return StepGraph(self.model, deepcopy(self.cache), self.argument, capacity, **options)

    def eager(self, count: int) -> dict[str, Any]:
        cache, number, right = deepcopy(self.cache), self.trace[0], 0
        start = time.perf_counter()
        for place in range(1, count + 1):
            token = torch.tensor([[number]], device=self.model.device)
            out = self.model(token, **{self.argument: cache}, use_cache=True)
            number = int(out.logits[0, -1].argmax())
            right += number == self.trace[place]
        return {"tokens": count, "right": right,
                "tokens/s": round(count / (time.perf_counter() - start), 1)}  # fmt: skip

    def written(self, steps: StepGraph, most: int, seconds: float = 1e9) -> dict[str, Any]:
        """The launch token by token, up to ``most`` tokens; stops at the first wrong one."""
        torch.cuda.synchronize()
        start, right, wrong = time.perf_counter(), 1, None
        for number in steps.run(self.trace[0], len(self.prompt)):
            if number != self.trace[right]:
                wrong = {"place": right, "id": number, "wanted": self.trace[right]}
                break
            right += 1
            if right >= min(most, len(self.trace)) or time.perf_counter() - start > seconds:
                break
        took = time.perf_counter() - start
        whole = right == len(self.trace)
        return {
            "fused": steps.refusal is None, "refusal": steps.refusal, "tokens right": right,
            "of": len(self.trace), "wrong": wrong, "tokens/s": round(right / took, 1),
            "memory right": self.memory_right(steps.cache) if whole else "not reached",
        }  # fmt: skip

    def whole_launch(self, seconds: float) -> dict[str, Any]:
        capacity = CAPACITY
        while capacity < len(self.prompt) + len(self.trace) + 1:
            capacity *= 2
        return self.written(self.graph(capacity), len(self.trace), seconds)


def time_launches(launches: list[Launch]) -> float:
    """Microseconds for each of ``launches``, replayed as a graph one after another."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for launch in launches[:2]:
            launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1000 * float(begin.elapsed_time(end)) / (REPLAYS * len(launches))


def bytes_read(launch: Launch) -> int:
    """Bytes of the matrices that a launch reads."""
    sizes = launch.options
    if "ROWS" not in sizes:
        return 0
    rows = launch.grid[0] * sizes["ROWS"] * (2 if launch.name == "gate_up" else 1)
    if launch.name == "best_rows":
        rows = len(launch.args[2])
    return 2 * rows * int(sizes["K"])


def kernels(steps: StepGraph) -> dict[str, Any]:
    """Each kernel by itself, over all layers, so that no weight stays in the caches."""
    assert steps._fused is not None
    groups: dict[str, list[Launch]] = {}
    for launch in steps._fused.launches:
        key = launch.name + (" listed" if launch.options.get("LISTED") else "")
        key += f" {launch.options['K']}" if launch.name == "add_rows" else ""
        groups.setdefault(key, []).append(launch)
    found = {}
    for name, group in groups.items():
        steps.count.zero_()
        steps.position.fill_(1000)
        each = time_launches(group)
        read = sum(map(bytes_read, group)) / len(group)
        found[name] = {"of a step": len(group), "us": round(each, 2),
                       "GB/s": round(read / each / 1000)}  # fmt: skip
    return found


def tune(bench: Bench) -> dict[str, Any]:
    """Microseconds of each kernel with a matrix for every candidate of (rows, warps), and the
    candidate with which a step spends least in it."""
    found: dict[str, dict[str, float]] = {}
    totals: dict[str, dict[tuple[int, int], float]] = {name: {} for name in TUNED}
    for rows, warps in CANDIDATES:
        steps = bench.graph(tuned=dict.fromkeys(TUNED, (rows, warps)))
        for name, times in kernels(steps).items():
            kernel = name.split()[0]
            if kernel in TUNED:
                found.setdefault(name, {})[f"{rows} rows, {warps} warps"] = times["us"]
                spent = totals[kernel].get((rows, warps), 0) + times["us"] * times["of a step"]
                totals[kernel][rows, warps] = spent
    best = {name: min(spent, key=lambda c: spent[c]) for name, spent in totals.items() if spent}
    return {"best": best, "us": {name: dict(sorted(times.items(), key=lambda item: item[1])[:6])
                                 for name, times in found.items()}}  # fmt: skip


def tuning_of(path: Path) -> Tuning:
    """What a run with --tune found best for the circuit."""
    best = json.loads(path.read_text())["circuit: tuning"]["best"]
    return {name: (rows, warps) for name, (rows, warps) in best.items()}


def profile(steps: StepGraph, position: int, first: int) -> dict[str, Any]:
    """Milliseconds a token in each kernel, by torch's profiler, over one burst."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        next(steps.run(first, position))
        torch.cuda.synchronize()
    count = int(steps.count)
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)[:16]
    return {
        row.key[:60]: {"ms a token": round(row.self_device_time_total / 1000 / count, 4),
                       "calls a token": round(row.count / count, 1)}
        for row in rows
    }  # fmt: skip


def measure(
    report: Report, name: str, bench: Bench, args: argparse.Namespace, share: float
) -> None:
    """All parts for one model; the whole launch is written for ``share`` of the time left."""
    part = report.part
    trace, n = bench.trace, len(bench.prompt)
    fused: list[StepGraph] = []
    part(f"{name}: build of the fused step", lambda: fused.append(bench.graph()) or "captured")
    if not fused:
        return
    part(f"{name}: fused, 200 tokens", lambda: bench.written(fused[0], 200))
    fused[0].load(bench.cache)
    part(f"{name}: fused, 1,000 tokens", lambda: bench.written(fused[0], 1000))
    fused[0].load(bench.cache)
    part(f"{name}: profile", lambda: profile(fused[0], n, trace[0]))
    part(f"{name}: kernels", lambda: kernels(fused[0]))
    fused.clear()
    if args.tune:
        part(f"{name}: tuning", lambda: tune(bench))
    if args.quick:
        return
    part(f"{name}: without early starts, 1,000 tokens",
         lambda: bench.written(bench.graph(pdl=False), 1000))  # fmt: skip
    part(f"{name}: modules, captured, 300 tokens",
         lambda: bench.written(bench.graph(fused=False), 300))  # fmt: skip
    part(f"{name}: modules, eager", lambda: bench.eager(60))
    part(f"{name}: prefill of the whole launch", bench.long_prefill)
    left = args.seconds - (time.perf_counter() - report.start)
    part(f"{name}: the whole launch, written", lambda: bench.whole_launch(max(left * share, 10)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="200 tokens and the kernels only")
    parser.add_argument("--tune", action="store_true", help="try rows and warps of each kernel")
    parser.add_argument("--tuned", type=Path, help="take rows and warps from this result")
    parser.add_argument("--only", choices=("circuit", "whole"))
    parser.add_argument("--seconds", type=float, default=420, help="no token is begun later")
    args = parser.parse_args()
    launch = json.loads(args.launches.read_text())["long"]
    report, plan = Report(args.out), build_plan(REFERENCE, QWEN_2B)
    report.found.update({
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"), "circuit layers": len(plan.layers),
    })  # fmt: skip
    with torch.inference_mode():
        run(report, plan, launch, args)


def run(report: Report, plan: Any, launch: dict[str, Any], args: argparse.Namespace) -> None:
    circuit = circuit_model(plan, torch.bfloat16, "cuda")
    tuned = {} if args.tuned is None else tuning_of(args.tuned)
    report.found["rows and warps"] = {**TUNED, **tuned}
    if args.only != "whole":
        share = 1.0 if args.only else 0.5
        measure(report, "circuit", Bench(circuit, launch, plan, 0, tuned), args, share)
    if args.only != "circuit":
        model, first_token = whole_model(plan, circuit)
        measure(report, "whole", Bench(model, launch, plan, first_token, tuned), args, 1.0)


if __name__ == "__main__":
    main()
