"""qgpu quantise: a copy with Qwen's own layers in int8 and the circuit's layers bit for bit.

torchao's int8 weight-only form, written and read through transformers. The circuit, the embedding
and the output head keep their bf16 bits; a whole launch is replayed before the copy appears.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qgpu.compiler.checkpoint import CONFIG, INDEX, MANIFEST, SINGLE, Folder, read_json, sha256
from qgpu.compiler.checkpoint import write_json as write
from qgpu.compiler.merge import staged
from qgpu.errors import CheckpointError, UsageError
from qgpu.host.launch import Interpreter
from qgpu.host.model import Model, gpu_config, load_hf
from qgpu.host.probes import blocks_job

SHARD = "2GB"


def quantise(
    source: Path, target: Path, *, step: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Write the copy; returns its manifest. UsageError where torchao is not installed."""
    if importlib.util.find_spec("torchao") is None:
        raise UsageError("qgpu quantise needs torchao: pip install torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    folder = Folder.open(source)
    gpu = gpu_config(folder)
    if "quantization_config" in folder.config:
        raise CheckpointError(f"{source} is quantised already")
    kept = ["lm_head", *(f"model.layers.{n}" for n in range(gpu["circuit_layers"]))]
    config = TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=kept)
    step(f"quantising {len(folder.layer_types) - gpu['circuit_layers']} layers of {source}")
    hf = load_hf(source, quantization_config=config)
    step("replaying a launch in the quantised model")
    replay(Model(hf, source, gpu))
    step(f"writing {target}")
    with staged(target, f"the checkpoint {target}") as work:
        hf.save_pretrained(work, max_shard_size=SHARD)
        for file in sorted(source.iterdir()):
            ours = file.name in (CONFIG, INDEX, SINGLE, MANIFEST) or file.suffix == ".safetensors"
            if file.is_file() and not ours:
                shutil.copyfile(file, work / file.name)
        exact = same_circuit(folder, Folder.open(work), gpu["circuit_layers"])
        manifest = read_json(source / MANIFEST)
        manifest["quantised"] = {"by": "torchao int8 weight-only", "kept": kept,
                                 "circuit_tensors_identical": exact}  # fmt: skip
        manifest["files"] = {f.name: sha256(f) for f in sorted(work.iterdir())}
        write(work / MANIFEST, manifest)
    return manifest


def replay(model: Model) -> None:
    """A whole launch by prefill; CheckpointError where another token wins."""
    job = blocks_job(model.spec)
    trace = Interpreter(model.spec).execute(job, lambda token: None)
    wrong, memory = model.verify_trace(job.prompt(), trace.tokens)
    if wrong is not None or memory != trace.memory:
        raise CheckpointError(f"{model.path}, quantised, no longer runs a launch (token {wrong})")


def same_circuit(source: Folder, copy: Folder, n_layers: int) -> int:
    """How many tensors of the circuit were compared; CheckpointError where a byte differs."""
    starts = tuple(f"{source.prefix}layers.{n}." for n in range(n_layers))
    names = [name for name in source.tensors if name.startswith(starts)]
    for name in names:
        if b"".join(source.tensors[name].read()) != b"".join(copy.tensors[name].read()):
            raise CheckpointError(f"{copy.path}: {name} of the circuit was changed")
    return len(names)
