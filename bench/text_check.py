"""The text side of a merged checkpoint of Qwen3.5-2B's shape, on one machine, in one command.

    python bench/text_check.py --out FILE [--extra DIR] [--work DIR] [--like 2b] [--limit 570]

Makes a stand-in, builds on it, and asks of the result, part by part: is every row of text silent in
the dense layers, do launches run, how far does text drift, which widths of the head give other
bits, and the same with flash-linear-attention, with layers on two devices, and quantised. DIR holds
flash-linear-attention and torchao, for those parts alone. Each part is a process of its own; FILE
is written anew after each, so a run that is cut keeps what it has.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import inspect
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

Facts = dict[str, Any]
WRITTEN = ("dot", "saxpy", "reverse")  # launches that are written token by token
WIDENED = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 49024, 65536)
ROUNDED = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
POSITIONS = (1, 128, 512)


class Record:
    """What one part found; on disk after every step, with the reason where a step failed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.facts: Facts = {}

    def save(self) -> None:
        self.out.write_text(json.dumps(self.facts))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except Exception as problem:  # the other steps are still worth running
            self.facts[f"{name}: failed"] = f"{type(problem).__name__}: {problem}"[:600]
        self.facts[f"{name}: seconds"] = round(time.perf_counter() - start, 1)
        self.save()
        print(f"  {name}: {json.dumps(self.facts.get(name))}"[:400], flush=True)


# --- parts ----------------------------------------------------------------------------------------


def part_standin(record: Record, work: Path, like: str) -> None:
    from qgpu.host.standin import write_standin

    with record.step("stand-in"):
        write_standin(like, work / "base", 0)


def part_build(record: Record, work: Path, like: str) -> None:
    from qgpu.host.build import build
    from qgpu.machine import REFERENCE

    with record.step("build"):
        manifest = build(work / "base", work / "merged", REFERENCE)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        facts = {k: v for k, v in manifest["facts"].items() if k != "layers"}
        facts["silence"] = {k: v for k, v in facts["silence"].items() if k not in ("dims", "w")}
        record.facts["build"] = facts | {"peak GiB": round(peak, 2)}


def part_dense(record: Record, work: Path, like: str) -> None:
    """The silence of every row, and launches, through transformers' eager layers."""
    from qgpu.host.model import Model

    with record.step("load"):
        model = Model.load(work / "merged")
        record.facts["load"] = model.where
    prove(record, model)
    launches(record, model, "eager")


def prove(record: Record, model: Any) -> None:
    from qgpu.host.dense_proof import prove_dense
    from qgpu.host.drift import some_launch

    with record.step("silence, dense"):
        start = time.perf_counter()
        proof = prove_dense(model, some_launch(model))
        record.facts["silence, dense"] = vars(proof) | {
            "holds": proof.holds, "rows/s": round(proof.rows / (time.perf_counter() - start)),
        }  # fmt: skip


def launches(record: Record, model: Any, how: str) -> None:
    """Every probe's trace through prefill, and some written token by token."""
    from qgpu.host.launch import Interpreter
    from qgpu.host.probes import probe_jobs

    model.graph = False
    jobs = [(name, job, Interpreter(model.spec).execute(job, lambda token: None))
            for name, job in probe_jobs(model.spec)]  # fmt: skip
    with record.step(f"traces, {how}"):
        faults: Facts = {}
        for name, job, wanted in jobs:
            wrong, memory = model.verify_trace(job.prompt(), wanted.tokens)
            if wrong is not None or memory != wanted.memory:
                faults[name] = {"first wrong token": wrong, "of": len(wanted.tokens),
                                "memory equal": memory == wanted.memory}  # fmt: skip
        record.facts[f"traces, {how}"] = {
            "launches": len(jobs),
            "tokens": sum(len(w.tokens) for *_, w in jobs),
            "faults": faults,
        }
    for name, job, wanted in jobs:
        if name in WRITTEN:
            with record.step(f"written, {how}, {name}"):
                start = time.perf_counter()
                found = model.execute(job, lambda token: None)
                record.facts[f"written, {how}, {name}"] = {
                    "tokens": len(wanted.tokens), "exact": found.tokens == wanted.tokens,
                    "memory equal": found.memory == wanted.memory,
                    "tokens/s": round(len(found.tokens) / (time.perf_counter() - start), 1),
                }  # fmt: skip


def part_generate(record: Record, work: Path, like: str) -> None:
    """A launch by plain ``generate`` of ``AutoModelForCausalLM``."""
    from qgpu.host.launch import Interpreter
    from qgpu.host.model import Model
    from qgpu.host.probes import PROBES
    from qgpu.tokens import Halt

    with record.step("generate"):
        import torch

        model = Model.load(work / "merged")
        job = PROBES[0].job(model.spec)
        prompt = torch.tensor([model.ids(job.prompt())], device=model.device)
        wanted = model.ids(Interpreter(model.spec).execute(job, lambda token: None).tokens)
        said = model.hf.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=len(wanted) + 5,
            do_sample=False, suppress_tokens=[], eos_token_id=model.ids([Halt()])[0],
        )[0, prompt.shape[1] :].tolist()  # fmt: skip
        record.facts["generate"] = {"exact": said == wanted, "tokens": len(said)}


def part_drift(record: Record, work: Path, like: str) -> None:
    drift(record, work, 512, 192)


def drift(record: Record, work: Path, positions: int, decoded: int) -> None:
    from qgpu.host.drift import measure

    with record.step("drift"):
        found = measure(work / "base", work / "merged", max_positions=positions,
                        decode_positions=decoded)  # fmt: skip
        record.facts["drift"] = {mode: part.as_dict() for mode, part in found.items()}


def part_widths(record: Record, work: Path, like: str) -> None:
    """The base's logits of the same states, from heads of several widths."""
    import torch

    from qgpu.compiler.checkpoint import Folder, read_json
    from qgpu.host.drift import CHUNK, new_cache, run_text
    from qgpu.host.head import text_ids
    from qgpu.host.model import load_hf

    with record.step("widths"):
        hf = load_hf(work / "base")
        ids = text_ids(Folder.open(work / "base"), max(POSITIONS))
        states = run_text(hf, ids, new_cache(hf), CHUNK, lambda done: None).states
        head = hf.get_output_embeddings().weight.detach()
        states, n = states.to(head.device), len(head)
        del hf
        gc.collect()
        merged = read_json(work / "merged" / "config.json")["vocab_size"]
        totals = {n + w for w in WIDENED} | {merged} | {merged + -merged % w for w in ROUNDED}
        wanted = {m: states[:m] @ head.T for m in POSITIONS}
        record.facts["widths"] = found = {"base": n, "merged": merged, "states": len(states)}
        found["rows of 512 at once as in pieces of 128"] = int(
            (wanted[512][:128] == wanted[128]).all(-1).sum()
        )
        equal: Facts = {}
        for total in sorted(totals):
            wide = torch.cat([head, head[torch.arange(total - n, device=head.device) % n]])
            equal[str(total)] = {
                str(m): int(((states[:m] @ wide.T)[:, :n] == wanted[m]).all(-1).sum())
                for m in POSITIONS
            }
            del wide
        found["equal rows by width and positions"] = equal


def part_fla(record: Record, work: Path, like: str) -> None:
    """flash-linear-attention's kernels instead of transformers' own: both, then each alone."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    from qgpu.host.model import Model

    if importlib.util.find_spec("fla") is None:
        record.facts["not run"] = "flash-linear-attention is not installed"
        record.save()
        return
    both = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
    used = {name: getattr(modeling, name) for name in both}
    with record.step("kernels"):
        record.facts["kernels"] = {
            name: inspect.getclosurevars(f).nonlocals["implementation"].__module__
            for name, f in used.items()
        }
    with record.step("load"):
        model = Model.load(work / "merged")
    launches(record, model, "fla")
    prove(record, model)
    for name in both:
        setattr(modeling, name, used[name].__wrapped__)
        launches(record, model, f"fla but for {name}")
        setattr(modeling, name, used[name])
    del model
    gc.collect()
    drift(record, work, 256, 32)


def part_devices(record: Record, work: Path, like: str) -> None:
    """AutoModelForCausalLM with accelerate's device_map: the first circuit layers on the CPU."""
    import torch

    from qgpu.compiler.checkpoint import Folder
    from qgpu.host.model import Model

    with record.step("load"):
        rest = 0 if torch.cuda.is_available() else "cpu"
        n = len(Folder.open(work / "merged").layer_types)
        where: Facts = {f"model.layers.{i}": "cpu" if i < 3 else rest for i in range(n)}
        where |= {"model.embed_tokens": "cpu", "model.norm": rest, "model.rotary_emb": rest,
                  "lm_head": rest}  # fmt: skip
        model = Model.load(work / "merged", device_map=where)
        devices = sorted({str(p.device) for p in model.hf.parameters()})
        record.facts["load"] = {"devices": devices}
    launches(record, model, "two devices")


def part_quantised(record: Record, work: Path, like: str) -> None:
    from qgpu.host.model import Model
    from qgpu.host.quantise import quantise

    with record.step("quantise"):
        manifest = quantise(work / "merged", work / "int8")
        record.facts["quantise"] = manifest["quantised"]["circuit_tensors_identical"]
    gc.collect()
    if (work / "int8").exists():
        with record.step("load"):
            model = Model.load(work / "int8")
        launches(record, model, "int8")


PARTS: dict[str, Callable[[Record, Path, str], None]] = {
    "stand-in": part_standin, "build": part_build, "dense": part_dense, "drift": part_drift,
    "widths": part_widths, "devices": part_devices, "generate": part_generate, "fla": part_fla,
    "quantised": part_quantised,
}  # fmt: skip
WITH_EXTRA = ("fla", "quantised")  # flash-linear-attention changes what transformers computes


# --- all of them ----------------------------------------------------------------------------------


def machine() -> Facts:
    import torch
    import transformers

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "card": card,
        "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip


def run_part(name: str, args: argparse.Namespace, left: float) -> Facts:
    """One part in a process of its own."""
    found = args.work / f"{name}.json"
    found.unlink(missing_ok=True)
    env = dict(os.environ)
    if name in WITH_EXTRA and args.extra is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(args.extra), env.get("PYTHONPATH", "")])
    if left < 10:
        return {"not run": "no time was left"}
    command = [sys.executable, __file__, "--part", name, "--out", str(found), "--work",
               str(args.work), "--like", args.like]  # fmt: skip
    try:
        code = subprocess.run(command, env=env, timeout=left).returncode
        ended = {} if code == 0 else {"ended": f"exit status {code}"}
    except subprocess.TimeoutExpired:
        ended = {"ended": "cut: no time was left"}
    return (json.loads(found.read_text()) if found.exists() else {}) | ended


def run_all(args: argparse.Namespace) -> None:
    start = time.monotonic()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    result = machine() | {"stand-in like": args.like}
    for name in args.parts or PARTS:
        print(f"{name}, at {time.monotonic() - start:.0f} s", flush=True)
        result[name] = run_part(name, args, args.limit - (time.monotonic() - start))
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{args.out}: done in {time.monotonic() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/text_check"))
    parser.add_argument("--like", default="2b", help="the stand-in")
    parser.add_argument("--extra", type=Path, help="more packages, for the parts that need them")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds for everything")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="only these")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        PARTS[args.part](Record(args.out), args.work, args.like)
    else:
        run_all(args)


if __name__ == "__main__":
    main()
