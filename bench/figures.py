"""Writes the README's table of measurements from bench/results and bench/tokens.json.

python bench/figures.py           prints it
python bench/figures.py --write   puts it between the markers in README.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def rows() -> list[tuple[str, str, str]]:
    """(what, result, where and when)."""
    gpu, replay = load("gpu-h200-2026-12-01.json"), load("replay-h200-2026-12-01.json")
    long = load("long-executor.json")
    decode = load("decode-h200-2026-12-01.json")
    tokens = json.loads((ROOT / "bench" / "tokens.json").read_text())
    column = tokens["columns"].index("written")
    written = sum(case[column] for case in tokens["cases"].values())
    prefill = replay["prefill"]
    shape = f"stand-in of 2B's shape, {replay['layers']} layers, bf16"
    return [
        ("PTX of the corpus (-O1, -O3) and random kernels, every word against the real GPU",
         f"{gpu['right']} of {gpu['cases']} right", f"{gpu['card']}, {gpu['date'][:10]}"),
        ("traces of the corpus on the weights: argmax at every position, memory at the end",
         f"{prefill['launches'] - len(prefill['faults'])} of {prefill['launches']} launches, "
         f"{prefill['trace tokens']:,} tokens, in {prefill['seconds']} s",
         f"{replay['card']}, {replay['date'][:10]}; {shape}"),
        ("launches written token by token, captured step",
         f"{replay['one token at a time, graph']['launches']} launches, "
         f"{len(replay['one token at a time, graph']['faults'])} faults",
         f"{replay['card']}, {replay['date'][:10]}; {shape}"),
        (f"a launch of {decode['long launch']:,} tokens through prefill",
         f"every token and the memory right, {decode['prefill tokens/s']:,.0f} tokens/s",
         f"{decode['card']}, {decode['date'][:10]}; the circuit alone"),
        ("the same, written token by token, as far as the time went",
         f"{decode['written by graph']:,} tokens right, {decode['graph tokens/s']} tokens/s "
         f"(plain forward passes: {decode['eager tokens/s']})",
         f"{decode['card']}, {decode['date'][:10]}; the circuit alone"),
        (f"a launch of {long['tokens']:,} tokens written token by token by the executor",
         "every token and the memory right" if long["tokens right"] and long["memory right"]
         else "WRONG", f"CPU, {long['date'][:10]}; the circuit's matrices, sparse"),
        ("tokens that the corpus writes, all kernels together",
         f"{written:,} by {len(tokens['cases']):,} kernels",
         "bench/tokens.json; a test lets it only fall"),
    ]  # fmt: skip


def table() -> str:
    lines = ["| what | result | where |", "| --- | --- | --- |"]
    lines += [f"| {what} | {result} | {where} |" for what, result, where in rows()]
    return "\n".join(lines)


def main() -> None:
    if "--write" not in sys.argv[1:]:
        print(table())
        return
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
