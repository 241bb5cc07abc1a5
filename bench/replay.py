"""The corpus on the weights of a merged checkpoint, at speed.

    python bench/replay.py prepare --out DIR [--limit N]      needs clang; traces as numbers
    python bench/replay.py run DIR --model MODEL --out FILE   needs torch and transformers
    python bench/replay.py sparse DIR --out FILE              the executor instead of a model

``run`` feeds each drafted trace (prompt and the interpreter's tokens) through prefill, many in a
batch, and compares the model's argmax at every position of the trace with the next token, and the
memory in the recurrent state with the interpreter's; then it lets the model write a sample of the
launches one token at a time. Rows of a batch are padded on the right with Exec tokens: no position
before sees them, and no Exec writes memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from qgpu.errors import Error
from qgpu.machine import REFERENCE
from qgpu.tokens import offset_of

BATCH_TOKENS = 16_384
# Over 20,000 tokens: full-width values of a generator, live around a loop.
LONG_KERNEL = """
__global__ void k(unsigned *out, int n) {
    unsigned x = threadIdx.x + 1, s = 0;
#pragma unroll 1
    for (int i = 0; i < n; i++) { x = x * 1664525u + 1013904223u; s ^= x >> (i & 15); }
    out[threadIdx.x] = s;
}"""
LONG_TURNS = 700
HEAD_CHUNK = 2_048


def prepare(out: Path, limit: int | None) -> None:
    """Lower every case for the reference machine; write prompts, traces and memories as offsets."""
    import numpy as np

    from tests.cases import Case, all_cases
    from tests.levels import in_blocks, prompt_of

    def launch(case: Case) -> dict[str, Any]:
        _, lowered, run = in_blocks(case)
        return {
            "name": case.name,
            "prompt": [offset_of(REFERENCE, t) for t in prompt_of(case, lowered)],
            "trace": [offset_of(REFERENCE, t) for t in run.tokens],
            "memory": [int(word) for word in run.memory],
        }

    launches: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for case in list(all_cases())[:limit]:
        try:
            launches.append(launch(case))
        except Error as problem:
            left_out[case.name] = str(problem)
    arrays = (np.zeros(4, np.uint32), LONG_TURNS)
    long = launch(Case("long", LONG_KERNEL, "k", (1, 1, 1), (4, 1, 1), arrays, {}))
    out.mkdir(parents=True, exist_ok=True)
    data = {"launches": launches, "left out": left_out, "long": long}
    (out / "launches.json").write_text(json.dumps(data))
    print(f"{len(launches)} launches, {len(left_out)} left out; long: {len(long['trace'])} tokens")


def batches(launches: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Launches of about the same length together, at most BATCH_TOKENS a batch."""
    ordered = sorted(launches, key=lambda x: len(x["prompt"]) + len(x["trace"]))
    found: list[list[dict[str, Any]]] = [[]]
    for launch in ordered:
        length = len(launch["prompt"]) + len(launch["trace"])
        if found[-1] and (len(found[-1]) + 1) * length > BATCH_TOKENS:
            found.append([])
        found[-1].append(launch)
    return found


def replay_batch(model: Any, batch: list[dict[str, Any]]) -> dict[str, str]:
    """Fault by name, for one batch through prefill."""
    import torch

    rows = [x["prompt"] + x["trace"][:-1] for x in batch]
    longest = max(map(len, rows))
    ids = torch.tensor(
        [[n + model.first_token for n in row + [0] * (longest - len(row))] for row in rows],
        device=model.device,
    )
    faults: dict[str, str] = {}
    with torch.inference_mode():
        cache = model.new_cache()
        hidden = model.hf.model(
            input_ids=ids, use_cache=True, **{model._cache_argument: cache}
        ).last_hidden_state
        for row, launch in enumerate(batch):
            start = len(launch["prompt"]) - 1
            wanted = torch.tensor(launch["trace"], device=model.device) + model.first_token
            for at in range(0, len(wanted), HEAD_CHUNK):
                piece = hidden[row, start + at : start + min(at + HEAD_CHUNK, len(wanted))]
                wrong = model.hf.lm_head(piece).argmax(-1) != wanted[at : at + HEAD_CHUNK]
                if wrong.any():
                    place = at + int(wrong.nonzero()[0])
                    faults.setdefault(launch["name"], f"token {place} differs")
            if model.memory(cache, row) != launch["memory"]:
                faults.setdefault(launch["name"], "memory differs")
    return faults


def write_one(model: Any, launch: dict[str, Any]) -> tuple[str, float]:
    """The launch written token by token: (fault or "", seconds of writing)."""
    names = model._tokens
    cache = model.new_cache()
    written: list[int] = []
    start = time.perf_counter()
    try:
        for token in model.write([names[n] for n in launch["prompt"]], cache):
            if not written:
                start = time.perf_counter()
            written.append(offset_of(model.spec, token))
            if written[-1] != launch["trace"][len(written) - 1]:
                return f"token {len(written) - 1} differs", 0.0
    except Error as problem:
        return str(problem), 0.0
    seconds = time.perf_counter() - start
    return ("" if model.memory(cache) == launch["memory"] else "memory differs"), seconds


def run_long(model: Any, launch: dict[str, Any]) -> dict[str, Any]:
    """One long launch on both paths: its trace through prefill, and written token by token."""
    names = model._tokens
    start = time.perf_counter()
    wrong, memory = model.verify_trace(
        [names[n] for n in launch["prompt"]], [names[n] for n in launch["trace"]]
    )
    prefill = time.perf_counter() - start
    model.graph = True
    fault, seconds = write_one(model, launch)
    return {
        "tokens": len(launch["trace"]),
        "prefill fault": wrong, "prefill memory equal": memory == launch["memory"],
        "prefill tokens/s": round(len(launch["trace"]) / prefill, 1),
        "written fault": fault, "written tokens/s": round(len(launch["trace"]) / seconds, 1)
        if seconds else 0.0,
    }  # fmt: skip


def run(folder: Path, model_path: Path, out: Path, sample: int, eager: int, *, long: bool) -> None:
    import torch

    from qgpu.host.model import Model

    model = Model.load(model_path)
    data = json.loads((folder / "launches.json").read_text())
    launches = data["launches"]
    start = time.perf_counter()
    faults: dict[str, str] = {}
    for batch in batches(launches):
        faults |= replay_batch(model, batch)
    seconds = time.perf_counter() - start
    traced = sum(len(x["trace"]) for x in launches)
    fed = traced + sum(len(x["prompt"]) for x in launches)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "layers": len(model.hf.model.layers),
        "prefill": {"launches": len(launches), "faults": faults, "trace tokens": traced,
                    "tokens fed": fed, "seconds": round(seconds, 1)},
    }  # fmt: skip
    examples = {path.stem for path in (Path(__file__).parent.parent / "examples").glob("*.cu")}
    chosen = [x for x in launches if x["name"] in examples]
    if sample:
        chosen += launches[:: max(1, len(launches) // sample)][:sample]
    for mode, some in (("graph", chosen), ("eager", chosen[:eager])):
        model.graph = mode == "graph"
        report = {"launches": 0, "tokens": 0, "seconds": 0.0, "faults": {}}
        for launch in some:
            fault, spent = write_one(model, launch)
            report["launches"] += 1
            report["tokens"] += len(launch["trace"]) - 1
            report["seconds"] += spent
            if fault:
                report["faults"][launch["name"]] = fault
        if some:
            report["tokens/s"] = round(report["tokens"] / max(report["seconds"], 1e-9), 1)
            result[f"one token at a time, {mode}"] = report
    if long:
        result["long launch"] = run_long(model, data["long"])
    out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


def run_sparse(folder: Path, out: Path) -> None:
    """Every trace through the circuit's own matrices, sparse, without torch."""
    from bench.machine_fuzz import QWEN_2B
    from qgpu.compiler.evaluate import Executor
    from qgpu.compiler.plan import build_plan
    from qgpu.tokens import tokens

    names = tokens(REFERENCE)
    executor = Executor.build(build_plan(REFERENCE, QWEN_2B))
    launches = json.loads((folder / "launches.json").read_text())["launches"]
    faults: dict[str, str] = {}
    start = time.monotonic()
    for launch in launches:
        fed = [names[n] for n in launch["prompt"] + launch["trace"]]
        n = len(launch["prompt"])
        executor.reset()
        said = [executor.named(row) for row in executor.feed(fed[:-1])[n - 1 :]]
        if said != fed[n:]:
            faults[launch["name"]] = "a token differs"
        elif executor.memory().tolist() != launch["memory"]:
            faults[launch["name"]] = "memory differs"
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "launches": len(launches), "faults": faults,
        "trace tokens": sum(len(x["trace"]) for x in launches),
        "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip
    out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--limit", type=int)
    two = commands.add_parser("run")
    two.add_argument("folder", type=Path)
    two.add_argument("--model", type=Path, required=True)
    two.add_argument("--out", type=Path, required=True)
    two.add_argument(
        "--sample", type=int, default=12, help="launches that are written too, beside the examples"
    )
    two.add_argument("--eager", type=int, default=2, help="of these, also without a CUDA graph")
    two.add_argument("--long", action="store_true", help="also a launch of over 20,000 tokens")
    three = commands.add_parser("sparse")
    three.add_argument("folder", type=Path)
    three.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "prepare":
        prepare(args.out, args.limit)
    elif args.command == "sparse":
        run_sparse(args.folder, args.out)
    else:
        run(args.folder, args.model, args.out, args.sample, args.eager, long=args.long)


if __name__ == "__main__":
    main()
