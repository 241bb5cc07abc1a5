"""Random CUDA kernels through every execution: two clang levels, two interpreters, the weights.

    python bench/fuzz.py --seconds 60 [--seed N] [--weights]

Per program: the PTX interpreter at two optimisation levels, the block interpreter, and with
``--weights`` the circuit layers, token by token. Prints what ran as JSON; a difference prints its
seed and ends with status 1. ``bench/gpu_check.py prepare --fuzz N`` takes the same programs to a
GPU. Programs that the machine cannot hold are counted, not wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from qgpu.errors import LimitError
from qgpu.machine import REFERENCE
from tests.cases import Case
from tests.fuzz import fuzz_case
from tests.levels import in_blocks, in_ptx


def expected(case: Case, opt: str = "-O1") -> Case:
    """The case with the PTX interpreter's results as what it expects."""
    results = in_ptx(case, opt)
    return replace(case, expect={n: array for n, array in enumerate(results) if array is not None})


def fuzz_cases(seed: int, n: int) -> list[Case]:
    """n programs with expectations, for a GPU."""
    return [expected(fuzz_case(seed + k)) for k in range(n)]


class Weights:
    """The circuit layers at the reference machine, fed each trace in one go."""

    def __init__(self) -> None:
        from qgpu.compiler.evaluate import Executor
        from qgpu.compiler.plan import Widths, build_plan

        plan = build_plan(REFERENCE, Widths(2048, 6144, 16, 16, 128, 4, 1e-6))
        self.executor = Executor.build(plan)

    def differs(self, prompt: list[Any], want: list[Any], memory: list[int]) -> str:
        self.executor.reset()
        rows = self.executor.feed([*prompt, *want[:-1]])[len(prompt) - 1 :]
        for place, token in enumerate(want):
            if self.executor.named(rows[place]) != token:
                return f"weights, token {place}: {self.executor.named(rows[place])}, not {token}"
        return "" if self.executor.memory().tolist() == memory else "weights: memory differs"


def check(seed: int, levels: tuple[str, str], weights: Weights | None) -> tuple[str, int, bool]:
    """(what differs, tokens, whether it fitted the machine) for one program."""
    case = expected(fuzz_case(seed), levels[0])
    if other := case.differences(in_ptx(case, levels[1])):
        return f"PTX interpreter {levels[1]}: {other}", 0, True
    try:
        results, lowered, run = in_blocks(case, opt=levels[0])
    except LimitError:
        return "", 0, False
    if other := case.differences(results):
        return f"block interpreter: {other}", 0, True
    if weights is None:
        return "", len(run.tokens), True
    from tests.levels import prompt_of

    prompt = prompt_of(case, lowered)
    return weights.differs(prompt, list(run.tokens), list(run.memory)), len(run.tokens), True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--levels", nargs=2, default=("O1", "O3"), help="of clang, such as O0")
    given = parser.parse_args()
    levels = (f"-{given.levels[0]}", f"-{given.levels[1]}")
    weights = Weights() if given.weights else None
    began, n, n_tokens, n_large = time.monotonic(), 0, 0, 0
    while time.monotonic() - began < given.seconds:
        seed = given.seed + n
        try:
            difference, tokens, fitted = check(seed, levels, weights)
        except Exception as error:
            difference, tokens, fitted = f"{type(error).__name__}: {error}", 0, True
        if difference:
            print(json.dumps({"seed": seed, "difference": difference}))
            return 1
        n, n_tokens, n_large = n + 1, n_tokens + tokens, n_large + (not fitted)
    print(json.dumps({"programs": n, "too_large": n_large, "tokens": n_tokens, "differences": 0,
                      "levels": levels, "weights": given.weights, "first_seed": given.seed,
                      "seconds": round(time.monotonic() - began, 1)}))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
