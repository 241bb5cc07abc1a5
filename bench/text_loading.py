"""Parts of bench/text_check.py: the merged checkpoint in the hands of others.

transformers alone, its pipeline, accelerate's device_map, a copy that save_pretrained wrote, a
quantised copy, flash-linear-attention's kernels; each with launches, which must stay exact.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from bench.text_record import Facts, Options, Record, drift, launches, prove

ROOT = Path(__file__).parent.parent
EXAMPLE = "examples/01_dot.cu"
AWAY = 3  # layers at each end that lie on the other device
NEW_TOKENS = 12
PROMPT = "The quick brown fox jumps over the lazy dog. In 1969 a program was written"


def part_run(record: Record, options: Options) -> None:
    """``qgpu run --check``, the command."""
    with record.step("run"):
        done = subprocess.run(
            [sys.executable, "-m", "qgpu", "run", EXAMPLE, "--model", str(options.merged),
             "--check", "--json"], cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = json.loads(done.stdout)
        keep = ("args", "tokens", "exec_tokens", "seconds", "check", "error")
        record.facts["run"] = {"file": EXAMPLE, "exit status": done.returncode,
                               **{key: said.get(key) for key in keep}}  # fmt: skip


def part_generate(record: Record, options: Options) -> None:
    """A launch by plain ``generate`` of ``AutoModelForCausalLM``."""
    import torch
    from transformers import AutoModelForCausalLM

    from qgpu.compiler.checkpoint import Folder
    from qgpu.host.launch import Interpreter
    from qgpu.host.model import Model, choose_device, gpu_config
    from qgpu.host.probes import PROBES
    from qgpu.tokens import Halt

    with record.step("generate"):
        hf = AutoModelForCausalLM.from_pretrained(options.merged, dtype="bfloat16")
        hf = hf.to(choose_device())
        model = Model(hf, options.merged, gpu_config(Folder.open(options.merged)))
        job = PROBES[0].job(model.spec)
        prompt = torch.tensor([model.ids(job.prompt())], device=model.device)
        wanted = model.ids(Interpreter(model.spec).execute(job, lambda token: None).tokens)
        said = hf.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=len(wanted) + 5,
            do_sample=False, suppress_tokens=[], eos_token_id=model.ids([Halt()])[0],
        )[0, prompt.shape[1] :].tolist()  # fmt: skip
        record.facts["generate"] = {"exact": said == wanted, "tokens": len(said)}


def part_pipeline(record: Record, options: Options) -> None:
    """``pipeline("text-generation")`` writes the same ids on the base and on the merged model."""
    with record.step("pipeline"):
        base, merged = (piped(path) for path in (options.base, options.merged))
        record.facts["pipeline"] = {"new tokens": len(merged), "as the base": merged == base}


def piped(path: Path) -> list[int]:
    """The ids that the pipeline of a checkpoint writes after the prompt."""
    import transformers

    from qgpu.host.model import choose_device

    write = transformers.pipeline(
        "text-generation", model=str(path), dtype="bfloat16", device=choose_device()
    )
    said = write(PROMPT, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
                 return_tensors=True)  # fmt: skip
    ids: list[int] = said[0]["generated_token_ids"][-NEW_TOKENS:]
    del write
    gc.collect()
    return ids


def part_devices(record: Record, options: Options) -> None:
    """accelerate's device_map: layers at both ends, the circuit's and the base's, lie elsewhere
    than the others: on the CPU beside a GPU, on the disk beside a CPU."""
    import torch

    from qgpu.compiler.checkpoint import Folder
    from qgpu.host.model import Model

    with record.step("load"):
        rest, away = (0, "cpu") if torch.cuda.is_available() else ("cpu", "disk")
        n = len(Folder.open(options.merged).layer_types)
        where: Facts = {
            f"model.layers.{i}": rest if AWAY <= i < n - AWAY else away for i in range(n)
        }
        where |= {"model.embed_tokens": "cpu", "model.norm": rest, "model.rotary_emb": rest,
                  "lm_head": rest}  # fmt: skip
        model = Model.load(
            options.merged, device_map=where, offload_folder=options.work / "offload"
        )
        layers = {k: v for k, v in model.hf.hf_device_map.items() if ".layers." in k}
        record.facts["load"] = {"layers on": Counter(map(str, layers.values()))}
    launches(record, model, "two devices", options)


def part_saved(record: Record, options: Options) -> None:
    """``save_pretrained`` and load again."""
    from qgpu.compiler.checkpoint import Folder
    from qgpu.host.model import Model, load_hf

    saved = options.work / "saved"
    with record.step("save"):
        hf = load_hf(options.merged)
        hf.save_pretrained(saved)
        del hf
        gc.collect()
        old, new = Folder.open(options.merged), Folder.open(saved)
        record.facts["save"] = {
            "tensors": len(old.tensors), "same names": set(old.tensors) == set(new.tensors),
            "byte-identical": sum(same_bytes(t, new.tensors[k]) for k, t in old.tensors.items()),
        }  # fmt: skip
    with record.step("load"):
        model = Model.load(saved)
    launches(record, model, "saved and loaded again", options)


def same_bytes(one: Any, other: Any) -> bool:
    """Two stored tensors are the same; read in chunks, since a table has a gigabyte."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(a == b for a, b in zip(one.read(), other.read(), strict=True))


def part_quantised(record: Record, options: Options) -> None:
    from qgpu.host.model import Model
    from qgpu.host.quantise import quantise

    copy = options.work / "int8"
    record.facts["versions"] = versions("torchao", "transformers")
    with record.step("quantise"):
        record.facts["quantise"] = quantise(options.merged, copy)["quantised"] | {
            "GB": round(sum(f.stat().st_size for f in copy.iterdir()) / 1e9, 1)
        }
        del record.facts["quantise"]["kept"]
    gc.collect()
    if copy.exists():
        with record.step("load"):
            model = Model.load(copy)
        launches(record, model, "int8", options)


def versions(*packages: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}


def part_vllm(record: Record, options: Options) -> None:
    """Launches by vLLM, and text: the merged checkpoint writes what its base writes there."""
    if options.vllm is None:
        record.facts["not run"] = "--vllm names no Python that has vLLM"
        return
    launch, text = launch_cases(options), text_case(options)
    with record.step("vllm, base"):
        base = by_vllm(options, options.base, [text])
    with record.step("vllm, merged"):
        found = by_vllm(options, options.merged, [text, *(case for case, _ in launch)])
        record.facts["vllm, merged"] = {
            "version": found["version"],
            "text as the base": found["cases"]["text"]["said"] == base["cases"]["text"]["said"],
            "launches": {
                case["name"]: compared(found["cases"][case["name"]], wanted)
                for case, wanted in launch
            },
        }


def launch_cases(options: Options) -> list[tuple[Facts, list[int]]]:
    """The launches to write as ids, and what they shall be."""
    from qgpu.compiler.checkpoint import Folder
    from qgpu.host.launch import Interpreter
    from qgpu.host.model import gpu_config
    from qgpu.host.probes import probe_jobs
    from qgpu.machine import MachineSpec
    from qgpu.tokens import Halt, offset_of

    facts, cases = gpu_config(Folder.open(options.merged)), []
    spec, first = MachineSpec(**facts["spec"]), facts["first_token"]
    for name, job in probe_jobs(spec, options.written):
        trace = Interpreter(spec).execute(job, lambda token: None).tokens
        prompt, wanted = ([first + offset_of(spec, t) for t in part]
                          for part in (job.prompt(), trace))  # fmt: skip
        cases.append(({"name": name, "prompt": prompt, "tokens": len(wanted) + 5,
                       "stop": first + offset_of(spec, Halt())}, wanted))  # fmt: skip
    return cases


def text_case(options: Options) -> Facts:
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(options.base)(PROMPT)["input_ids"]
    return {"name": "text", "prompt": ids, "tokens": NEW_TOKENS, "stop": None}


def compared(found: Facts, wanted: list[int]) -> Facts:
    said, seconds = found["said"], found["seconds"]
    same = [a == b for a, b in zip(said, wanted, strict=False)]
    return {"tokens": len(wanted), "exact": said == wanted,
            "first wrong": None if said == wanted else [*same, False].index(False),
            "tokens/s": round(len(said) / seconds, 1)}  # fmt: skip


def by_vllm(options: Options, model: Path, cases: list[Facts]) -> Facts:
    """bench/vllm_run.py in the Python that has vLLM; one process, so that its memory is seen."""
    asked, said = options.work / "vllm-cases.json", options.work / "vllm-said.json"
    asked.write_text(json.dumps(cases))
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
           "HF_HUB_OFFLINE": "1", **os.environ}  # fmt: skip
    script = ROOT / "bench" / "vllm_run.py"
    done = subprocess.run([str(options.vllm), str(script), str(model), str(asked), str(said)],
                          env=env, capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise RuntimeError(" ".join(done.stderr[-400:].split()))
    found: Facts = json.loads(said.read_text())
    return found


def part_fla(record: Record, options: Options) -> None:
    """flash-linear-attention's kernels instead of transformers' own: both, then each alone."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    from qgpu.host.model import Model

    if importlib.util.find_spec("fla") is None:
        record.facts["not run"] = "flash-linear-attention is not installed"
        record.save()
        return
    both = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
    used = {name: getattr(modeling, name) for name in both}
    record.facts["versions"] = versions("flash-linear-attention", "transformers")
    with record.step("kernels"):
        record.facts["kernels"] = {
            name: inspect.getclosurevars(f).nonlocals["implementation"].__module__
            for name, f in used.items()
        }
    with record.step("load"):
        model = Model.load(options.merged)
    launches(record, model, "fla", options)
    prove(record, model, options)
    for name in both:
        setattr(modeling, name, used[name].__wrapped__)
        launches(record, model, f"fla but for {name}", options)
        setattr(modeling, name, used[name])
    del model
    gc.collect()
    drift(record, options, 256, 32)
