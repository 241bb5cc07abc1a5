"""Decode speed of the circuit on a GPU: plain forward passes against the captured step.

    python bench/decode_speed.py LAUNCHES --out FILE [--seconds 120]

The model is the reference machine's layers in stock transformers classes, bf16, without a base
behind them. LAUNCHES is the file that `bench/replay.py prepare` writes; its long launch is fed
through prefill in parts, then written token by token, and every token is compared.
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
import torch

from bench.machine_fuzz import QWEN_2B
from qgpu.compiler.plan import build_plan
from qgpu.host.graph import StepGraph
from qgpu.host.model import cache_argument
from qgpu.machine import REFERENCE
from tests.compiler.dense import circuit_model

EAGER_TOKENS = 60
PART = 4096


def prefill(model: Any, ids: list[int]) -> tuple[list[int], Any]:
    """Argmax at every position, and the cache."""
    best: list[int] = []
    cache = None
    for start in range(0, len(ids), PART):
        part = torch.tensor([ids[start : start + PART]], device="cuda")
        out = model(part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best += out.logits[0].argmax(-1).tolist()
    return best, cache


def memory_of(plan: Any, cache: Any) -> list[int]:
    place = plan.memory_place
    state = cache.layers[place.layer].recurrent_states[0][0, place.heads]
    return [int(word) for word in place.words(state.float().cpu().numpy())]


@torch.inference_mode()
def measure(launch: dict[str, Any], seconds: float) -> dict[str, Any]:
    plan = build_plan(REFERENCE, QWEN_2B)
    model = circuit_model(plan, torch.bfloat16, "cuda")
    prompt, trace = launch["prompt"], launch["trace"]
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "layers": len(plan.layers) + 1, "long launch": len(trace),
    }  # fmt: skip
    start = time.perf_counter()
    best, cache = prefill(model, prompt + trace[:-1])
    found["prefill tokens/s"] = round(len(best) / (time.perf_counter() - start), 1)
    found["prefill right"] = best[len(prompt) - 1 :] == trace
    found["prefill memory right"] = memory_of(plan, cache) == launch["memory"]
    _, cache = prefill(model, prompt)
    steps = StepGraph(model, cache, cache_argument(model), 1 << 16)
    start, right = time.perf_counter(), 1
    for number in steps.run(trace[0], len(prompt)):
        if number != trace[right]:
            break
        right += 1
        if right == len(trace) or time.perf_counter() - start > seconds:
            break
    found["written by graph"], found["all right"] = right, right == len(trace)
    found["graph tokens/s"] = round(right / (time.perf_counter() - start), 1)
    if found["all right"]:
        found["memory right"] = memory_of(plan, steps.cache) == launch["memory"]
    _, cache = prefill(model, prompt)
    start, number = time.perf_counter(), trace[0]
    for _ in range(EAGER_TOKENS):
        out = model(torch.tensor([[number]], device="cuda"), past_key_values=cache, use_cache=True)
        number = int(out.logits[0, -1].argmax())
    found["eager tokens/s"] = round(EAGER_TOKENS / (time.perf_counter() - start), 1)
    found["eager last right"] = number == trace[EAGER_TOKENS]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150)
    args = parser.parse_args()
    found = measure(json.loads(args.launches.read_text())["long"], args.seconds)
    args.out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
