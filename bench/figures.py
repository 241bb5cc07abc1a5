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


Row = tuple[str, str, str]


def of(right: int, all_of_them: int) -> str:
    return f"{right:,} of {all_of_them:,}"


def text_rows(text: dict[str, Any]) -> list[Row]:
    """The text side, as bench/text_check.py found it on a whole stand-in."""
    layers = text["build"]["build"]["layers"]
    where = (f"{text['card']} ({text['CPU threads']} threads), {text['date'][:10]}; stand-in of "
             f"2B's shape, {layers} layers, bf16")  # fmt: skip
    build, verified = text["build"], text["verify"]
    silence, dense = build["build"]["silence"], text["dense"]["silence, dense"]
    again, drift = text["again"]["again"], text["drift"]["drift"]
    modes = {"prefill": drift["prefill"], "one token at a time": drift["decode"]}
    return [
        ("`qgpu build`, every row of text run through the circuit's gates",
         f"{of(silence['equal_rows'], silence['rows'])} rows bit-identical, "
         f"{build['build: seconds']:.0f} s, {build['memory']['peak GiB']} GiB at the peak", where),
        ("the same build again, compared by sha256",
         f"{of(again['files'] - len(again['differ']), again['files'])} files the same", where),
        ("`qgpu verify`: hashes, and every row again, from the tensors as stored",
         f"{verified['verify']['silent rows of text']:,} rows silent, "
         f"{verified['verify: seconds']:.0f} s", where),
        ("rows spread over the table, through the dense circuit layers behind a launch: residual "
         "and states, bit by bit",
         f"{of(dense['rows'] - dense['changed'], dense['rows'])} rows the same, "
         f"{dense['touched']} states touched", where),
        ("text, merged against base: logits of the base's whole vocabulary, bit by bit",
         "; ".join(f"{name}: {of(mode['identical'], mode['positions'])} positions"
                   for name, mode in modes.items())
         + f"; KL {max(mode['max'] for mode in modes.values()):.2g} in float64", where),
        ("the dot product, written token by token by plain transformers, under each loader",
         "; ".join(f"{name}: {written(text[part])}" for name, part in LOADED), where),
        ("the dot product by `generate`, 12 tokens of text by `pipeline`, of plain transformers",
         f"{'exact' if text['generate']['generate']['exact'] else 'WRONG'}; "
         f"{'as the base' if text['pipeline']['pipeline']['as the base'] else 'NOT as the base'}",
         where),
    ]  # fmt: skip


def vllm_row(found: dict[str, Any]) -> Row:
    """What vLLM made of a stand-in's launches and text."""
    said, layers = found["vllm"]["vllm, merged"], found["build"]["build"]["layers"]
    launches = said["launches"]
    exact = sum(launch["tokens"] for launch in launches.values() if launch["exact"])
    return (
        f"vLLM: the launches {', '.join(launches)}, written token by token, and text",
        f"{of(exact, sum(launch['tokens'] for launch in launches.values()))} tokens exact; text "
        f"{'as' if said['text as the base'] else 'NOT as'} vLLM writes it with the base",
        f"{found['card']}, {found['date'][:10]}; {said['version']}, {layers} layers, a small "
        "vocabulary",
    )


# How a checkpoint was loaded, for people, and the part of the text check.
LOADED = (("as built", "dense"), ("layers on CPU and disk", "devices"),
          ("saved and loaded again", "saved"), ("int8", "quantised"))  # fmt: skip


def written(part: dict[str, Any]) -> str:
    """How many of the dot product's tokens one part of the text check wrote rightly."""
    found = next(
        (v for k, v in part.items() if k.startswith("written,") and k.endswith(", dot")), None
    )
    if found is None:
        return "not run"
    if not (found["exact"] and found["memory equal"]):
        return "WRONG"
    return f"{of(found['tokens'], found['tokens'])}"


def rows() -> list[Row]:
    """(what, result, where and when)."""
    gpu, replay = load("gpu-h200-2026-12-01.json"), load("replay-h200-2026-12-01.json")
    long = load("long-executor.json")
    decode = load("decode-h200-2026-12-01.json")
    executor = load("replay-executor-2026-12-07.json")
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
        ("traces of the corpus through the executor: every token, memory at the end",
         f"{executor['launches'] - len(executor['faults'])} of {executor['launches']} launches, "
         f"{executor['trace tokens']:,} tokens",
         f"CPU, {executor['date'][:10]}; the circuit's matrices, sparse"),
        *text_rows(load("text-cpu-2026-12-04.json")),
        vllm_row(load("vllm-cpu-2026-12-04.json")),
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
