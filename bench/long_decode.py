"""A long launch written token by token by the executor, every token compared.

    python bench/long_decode.py LAUNCHES --out FILE

LAUNCHES is the file that `bench/replay.py prepare` writes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench.machine_fuzz import QWEN_2B
from qgpu.compiler.evaluate import Executor
from qgpu.compiler.plan import build_plan
from qgpu.machine import REFERENCE
from qgpu.tokens import tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("launches", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    launch = json.loads(args.launches.read_text())["long"]
    names = tokens(REFERENCE)
    trace = [names[n] for n in launch["trace"]]
    executor = Executor.build(build_plan(REFERENCE, QWEN_2B))
    start = time.monotonic()
    run = executor.run([names[n] for n in launch["prompt"]], len(trace))
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tokens": len(trace),
        "tokens right": run.trace == trace,
        "memory right": run.memory.tolist() == launch["memory"],
        "seconds": round(time.monotonic() - start, 1),
    }
    args.out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
