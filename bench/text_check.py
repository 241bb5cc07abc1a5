"""The text side of a merged checkpoint of Qwen3.5-2B's shape, on one machine, in one command.

    python bench/text_check.py --out FILE [--work DIR] [--limit 570]                    on a GPU
    python bench/text_check.py --out FILE --limit 3600 --rows 4096 --positions 192 --decoded 24 \\
        --probes blocks dot saxpy --written dot                                         on a CPU

Makes a stand-in, builds on it, twice, and asks of the result, part by part: is every row of text
silent, by the gates as stored and in the dense layers, do launches run, how far does text drift,
which widths of the head give other bits, and the same by transformers alone, with layers on two
devices, saved and loaded again, quantised, with flash-linear-attention and by vLLM. --extra DIR has
torchao for the part quantised alone, --fla DIR flash-linear-attention for the part fla alone, since
it changes what transformers computes; --vllm names a Python that has vLLM. Each part is a
process of its own; FILE is written anew after each, so a run that is cut keeps what it has; with
--add the parts that FILE has and that do not run again stay in it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import text_loading as loading
from bench.text_record import WRITTEN, Facts, Options, Record, drift, launches, prove

WIDENED = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 49024, 65536)
ROUNDED = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
POSITIONS = (1, 128, 512)


# --- parts ----------------------------------------------------------------------------------------


def part_standin(record: Record, options: Options) -> None:
    from qgpu.host.standin import layer_types, write_standin

    n = options.layers
    changes = None if n is None else {"num_hidden_layers": n, "layer_types": layer_types(n)}
    with record.step("stand-in"):
        write_standin(options.like, options.base, 0, changes=changes)


def part_build(record: Record, options: Options) -> None:
    from qgpu.host.build import build
    from qgpu.machine import REFERENCE

    with record.step("build"):
        manifest = build(options.base, options.merged, REFERENCE)
        facts = {k: v for k, v in manifest["facts"].items() if k != "layers"}
        facts["silence"] = {k: v for k, v in facts["silence"].items() if k not in ("dims", "w")}
        record.facts["build"] = facts | {"layers": config(options.merged)["num_hidden_layers"]}


def part_again(record: Record, options: Options) -> None:
    """A second build is the first, byte for byte."""
    from qgpu.compiler.checkpoint import sha256
    from qgpu.host.build import build
    from qgpu.machine import REFERENCE

    again = options.work / "again"
    with record.step("again"):
        build(options.base, again, REFERENCE)
        one, two = (
            {f.name: sha256(f) for f in sorted(folder.iterdir())}
            for folder in (options.merged, again)
        )
        record.facts["again"] = {
            "files": len(one),
            "differ": sorted(n for n in {*one, *two} if one.get(n) != two.get(n)),
        }
    shutil.rmtree(again, ignore_errors=True)


def part_verify(record: Record, options: Options) -> None:
    from qgpu.host.verify import verify

    with record.step("verify"):
        record.facts["verify"] = verify(options.merged)


def part_dense(record: Record, options: Options) -> None:
    """The silence of rows, and launches, through transformers' eager layers."""
    from qgpu.host.model import Model

    with record.step("load"):
        model = Model.load(options.merged)
        record.facts["load"] = model.where
    prove(record, model, options)
    launches(record, model, "eager", options)


def part_drift(record: Record, options: Options) -> None:
    drift(record, options, options.positions, options.decoded)


def part_widths(record: Record, options: Options) -> None:
    """The base's logits of the same states, from heads of several widths."""
    import torch

    from qgpu.compiler.checkpoint import Folder, read_json
    from qgpu.host.drift import CHUNK, new_cache, run_text
    from qgpu.host.head import text_ids
    from qgpu.host.model import load_hf

    with record.step("widths"):
        hf = load_hf(options.base)
        ids = text_ids(Folder.open(options.base), max(POSITIONS))
        states = run_text(hf, ids, new_cache(hf), CHUNK, lambda done: None).states
        head = hf.get_output_embeddings().weight.detach()
        states, n = states.to(head.device), len(head)
        del hf
        gc.collect()
        merged = read_json(options.merged / "config.json")["vocab_size"]
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


PARTS: dict[str, Callable[[Record, Options], None]] = {
    "stand-in": part_standin, "build": part_build, "again": part_again, "verify": part_verify,
    "dense": part_dense, "drift": part_drift, "widths": part_widths, "run": loading.part_run,
    "generate": loading.part_generate, "pipeline": loading.part_pipeline,
    "devices": loading.part_devices, "saved": loading.part_saved,
    "quantised": loading.part_quantised, "fla": loading.part_fla,
    "vllm": loading.part_vllm,
}  # fmt: skip
WITH_PACKAGES = {"fla": "fla", "quantised": "extra"}  # the part, and the option that names them


# --- all of them ----------------------------------------------------------------------------------


def config(path: Path) -> Facts:
    from qgpu.compiler.checkpoint import Folder

    return Folder.open(path).text_config


def machine() -> Facts:
    import torch
    import transformers

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "card": card, "CPU threads": torch.get_num_threads(), "torch": torch.__version__,
        "transformers": transformers.__version__,
    }  # fmt: skip


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_part(name: str, args: argparse.Namespace, left: float) -> Facts:
    """One part in a process of its own."""
    found = args.work / f"{name}.json"
    found.unlink(missing_ok=True)
    env = dict(os.environ)
    packages = getattr(args, WITH_PACKAGES[name]) if name in WITH_PACKAGES else None
    if packages is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(packages), env.get("PYTHONPATH", "")])
    if left < 10:
        return {"not run": "no time was left"}
    # The same line of arguments; what is said last of --out counts.
    command = [sys.executable, __file__, *sys.argv[1:], "--part", name, "--out", str(found)]
    start = {"date": now()}
    try:
        code = subprocess.run(command, env=env, timeout=left).returncode
        ended = {} if code == 0 else {"ended": f"exit status {code}"}
    except subprocess.TimeoutExpired:
        ended = {"ended": "cut: no time was left"}
    return start | (json.loads(found.read_text()) if found.exists() else {}) | ended


def run_all(args: argparse.Namespace) -> None:
    start = time.monotonic()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(args.out.read_text()) if args.add and args.out.exists() else {}
    result = kept | {"date": now()} | machine() | {"stand-in like": args.like}
    for name in args.parts or PARTS:
        print(f"{name}, at {time.monotonic() - start:.0f} s", flush=True)
        result[name] = run_part(name, args, args.limit - (time.monotonic() - start))
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{args.out}: done in {time.monotonic() - start:.0f} s")


def options_of(args: argparse.Namespace) -> Options:
    return Options(
        work=args.work, like=args.like, layers=args.layers, rows=args.rows,
        positions=args.positions, decoded=args.decoded,
        probes=None if args.probes is None else tuple(args.probes),
        written=tuple(args.written), vllm=args.vllm,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/text_check"))
    parser.add_argument("--like", default="2b", help="the stand-in")
    parser.add_argument("--layers", type=int, help="of the stand-in, if not its own")
    parser.add_argument("--extra", type=Path, help="torchao, for the part that needs it")
    parser.add_argument("--fla", type=Path, help="flash-linear-attention, for the part fla")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="one that has vLLM")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds for everything")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="only these")
    parser.add_argument("--add", action="store_true", help="keep FILE's other parts")
    parser.add_argument("--rows", type=int, help="of the table through the dense layers, not all")
    parser.add_argument("--positions", type=int, default=512, help="of text, for the drift")
    parser.add_argument("--decoded", type=int, default=192, help="of them one at a time")
    parser.add_argument("--probes", nargs="+", help="launches whose traces are fed, not all")
    parser.add_argument("--written", nargs="*", default=WRITTEN, help="launches that are written")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        record = Record(args.out)
        PARTS[args.part](record, options_of(args))
        record.save()
    else:
        run_all(args)


if __name__ == "__main__":
    main()
