"""Decode speed of the circuit alone on a GPU: eager, and with the layers in a CUDA graph."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import torch

from bench.machine_fuzz import QWEN_2B
from qgpu.compiler.plan import build_plan
from qgpu.machine import REFERENCE
from qgpu.tokens import Go, offset_of
from tests.compiler.dense import circuit_model


def main() -> None:
    plan = build_plan(REFERENCE, QWEN_2B)
    model = circuit_model(plan, torch.bfloat16, "cuda")
    ids = torch.tensor([[offset_of(REFERENCE, Go())] * 64], device="cuda")
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
        one = ids[:, :1]

        def timed(n: int) -> float:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(n):
                model(one, past_key_values=cache, use_cache=True).logits[0, -1].argmax().item()
            return n / (time.perf_counter() - start)

        timed(3)
        print(json.dumps({"layers": len(plan.layers) + 1, "eager tokens/s": timed(30),
                          "card": torch.cuda.get_device_name()}))  # fmt: skip


if __name__ == "__main__":
    main()
