"""What vLLM writes after given ids, with a checkpoint; in whatever Python has vLLM.

    python bench/vllm_run.py MODEL CASES.json OUT.json

CASES is a list of {"name", "prompt": ids, "tokens": at most, "stop": id or null}. The vllm part of
bench/text_check.py writes it, runs this and compares: vLLM wants packages of its own, and nothing
of qgpu is imported here.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def version() -> str:
    """The distributions that brought vLLM: the builds for CPUs have names of their own."""
    found = {d.metadata["Name"]: d.version for d in distributions()}
    return ", ".join(f"{name} {v}" for name, v in found.items() if name.startswith("vllm"))


def main() -> None:
    from vllm import LLM, SamplingParams

    model, cases, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    llm = LLM(model, dtype="bfloat16", max_model_len=1024, max_num_seqs=1, enforce_eager=True)
    result: dict[str, Any] = {"version": version(), "cases": {}}
    for case in json.loads(cases.read_text()):
        start = time.perf_counter()
        stops = [] if case["stop"] is None else [case["stop"]]
        sampling = SamplingParams(
            temperature=0, max_tokens=case["tokens"], stop_token_ids=stops, detokenize=False
        )
        said = llm.generate({"prompt_token_ids": case["prompt"]}, sampling, use_tqdm=False)
        result["cases"][case["name"]] = {
            "said": list(said[0].outputs[0].token_ids),
            "seconds": round(time.perf_counter() - start, 1),
        }
        out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
