"""Random machine programs: block interpreter against executor, and against the dense model.

    python bench/machine_fuzz.py --spec reference --seconds 60 [--dense cpu|cuda] [--decode N]

Reports as JSON how many programs and tokens ran and whether every token, the memory and (dense)
every recurrent state agreed. Exits 1 at the first difference, printing the program's seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from qgpu.compiler.evaluate import Executor
from qgpu.compiler.plan import Widths, build_plan
from qgpu.interp.machine import run_blocks
from qgpu.machine import SPECS
from qgpu.tokens import offset_of
from tests.compiler.programs import Program, random_program

QWEN_2B = Widths(2048, 6144, 16, 16, 128, 4, 1e-6)


def check_executor(executor: Executor, program: Program, want: list, memory: list[int]) -> str:
    prompt = program.prompt
    executor.reset()
    rows = executor.feed([*prompt, *want[:-1]])[len(prompt) - 1 :]
    for place, token in enumerate(want):
        if executor.named(rows[place]) != token:
            return f"executor, token {place}: {executor.named(rows[place])}, not {token}"
    return "" if executor.memory().tolist() == memory else "executor: memory differs"


def check_dense(model, executor: Executor, program: Program, want: list, decode: bool) -> str:
    """Prefill of the whole trace and every state; then the trace again, token by token."""
    import torch

    spec, device = program.spec, model.device
    ids = [offset_of(spec, token) for token in program.prompt + want]
    n = len(ids) - len(want)
    fed = torch.tensor([ids[:-1]], device=device)
    with torch.no_grad():
        out = model(fed, use_cache=True)
        if out.logits[0, n - 1 :].argmax(-1).tolist() != ids[n:]:
            return "dense prefill: token differs"
        for index, layer in enumerate(executor.layers):
            if layer.n_heads:
                state = out.past_key_values.layers[index].recurrent_states[0][0]
                got = state[: layer.n_heads].float().cpu().numpy()
                if not np.array_equal(got, layer.table):
                    head, row, dim = (int(i[0]) for i in np.nonzero(got != layer.table))
                    name = executor.plan.layers[index].heads[head].name
                    return (
                        f"dense prefill: state of {name}, row {row}, dim {dim}: "
                        f"{got[head, row, dim]}, not {layer.table[head, row, dim]}"
                    )
        if decode:
            out = model(fed[:, :n], use_cache=True)
            for place in range(n, len(ids)):
                token = out.logits[0, -1].argmax()
                if token != ids[place]:
                    return f"dense decode: token {place - n} differs"
                out = model(token[None, None], past_key_values=out.past_key_values, use_cache=True)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", default="reference", choices=SPECS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dense", choices=("cpu", "cuda"))
    parser.add_argument("--decode", type=int, default=0, help="programs that also run by decode")
    args = parser.parse_args()
    plan = build_plan(SPECS[args.spec], QWEN_2B)
    executor, model = Executor.build(plan), None
    if args.dense:
        import torch

        from tests.compiler.dense import circuit_model

        model = circuit_model(plan, torch.bfloat16, args.dense)
    start, n, written = time.monotonic(), 0, 0
    while time.monotonic() - start < args.seconds:
        program = random_program(plan.spec, random.Random(args.seed + n))
        run = run_blocks(
            plan.spec, program.blocks, program.memory, program.n_threads, max_tokens=10_000
        )
        want = list(run.tokens)
        fault = check_executor(executor, program, want, list(run.memory))
        if not fault and model is not None:
            fault = check_dense(model, executor, program, want, n < args.decode)
        if fault:
            print(json.dumps({"seed": args.seed + n, "fault": fault}))
            sys.exit(1)
        n, written = n + 1, written + len(want)
    print(json.dumps({"spec": args.spec, "dense": args.dense, "programs": n, "tokens": written,
                      "seconds": round(time.monotonic() - start, 1), "faults": 0}))  # fmt: skip


if __name__ == "__main__":
    main()
