"""qgpu quantise: a copy with Qwen's own layers in int8 or fp8 and the circuit's layers bit for bit.

torchao's weight-only forms, written and read through transformers. The circuit, the embedding and
the output head keep their bf16 bits; a whole launch is replayed before the copy appears. The copy
of a multimodal checkpoint is its text model. A copy loads in transformers, but transformers 5.24
cannot save a loaded one again.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

from qgpu.compiler.checkpoint import CONFIG, INDEX, MANIFEST, SINGLE, Folder, read_json, sha256
from qgpu.compiler.checkpoint import write_json as write
from qgpu.compiler.merge import check_target, staged
from qgpu.errors import CheckpointError, UsageError
from qgpu.host.launch import Interpreter
from qgpu.host.model import Model, gpu_config, load_hf
from qgpu.host.probes import blocks_job

SHARD = "2GB"
CARD = "README.md"
FORMS = {"int8": "Int8WeightOnlyConfig", "fp8": "Float8WeightOnlyConfig"}  # torchao's names


def quantise(
    source: Path,
    target: Path,
    form: str = "int8",
    *,
    step: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Write the copy; returns its manifest. UsageError where torchao is not installed."""
    folder = Folder.open(source)
    gpu = gpu_config(folder)
    if "quantization_config" in folder.config:
        raise CheckpointError(f"{source} is quantised already")
    check_target(target, source)
    if importlib.util.find_spec("torchao") is None:
        raise UsageError("qgpu quantise needs torchao: pip install torchao")
    import torchao.quantization
    from transformers import TorchAoConfig

    n_circuit = gpu["circuit_layers"]
    kept = ["lm_head", *(f"model.layers.{n}" for n in range(n_circuit))]
    weights = getattr(torchao.quantization, FORMS[form])()
    step(f"quantising {len(folder.layer_types) - n_circuit} layers of {source}")
    hf = load_hf(source, quantization_config=TorchAoConfig(weights, modules_to_not_convert=kept))
    step("replaying a launch in the quantised model")
    replay(Model(hf, source, gpu))
    step(f"writing {target}")
    with staged(target, f"the checkpoint {target}") as work:
        hf.save_pretrained(work, max_shard_size=SHARD)
        _copy_extras(source, work, form)
        manifest = read_json(source / MANIFEST)
        manifest["quantised"] = {
            "by": f"torchao {form} weight-only", "kept": kept,
            **compared(folder, Folder.open(work), n_circuit),
        }  # fmt: skip
        manifest["files"] = {f.name: sha256(f) for f in sorted(work.iterdir())}
        write(work / MANIFEST, manifest)
    return manifest


def _copy_extras(source: Path, work: Path, form: str) -> None:
    """Tokenizer, licence and card, readable by whoever may read the config."""
    for file in sorted(source.iterdir()):
        ours = file.name in (CONFIG, INDEX, SINGLE, MANIFEST) or file.suffix == ".safetensors"
        if file.is_file() and not ours:
            shutil.copyfile(file, work / file.name)
    for shard in work.glob("*.safetensors"):
        shard.chmod((work / CONFIG).stat().st_mode)
        sort_metadata(shard)
    with (work / CARD).open("a", encoding="utf-8") as card:
        card.write(
            f"\nThis is the text model with the base's own layers in {form} (torchao, weights "
            "only); the circuit, the embedding and the output head are as they were, bit for bit. "
            "It needs torchao to load. Text differs as the rounding makes it differ; launches "
            "do not.\n"
        )


def sort_metadata(shard: Path) -> None:
    """Puts the header's metadata in order: safetensors writes it in another one each time, and two
    copies of one checkpoint shall be the same files."""
    with shard.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        file.seek(8)
        file.write(text.ljust(length))


def replay(model: Model) -> None:
    """A whole launch by prefill; CheckpointError where another token wins."""
    job = blocks_job(model.spec)
    trace = Interpreter(model.spec).execute(job, lambda token: None)
    wrong, memory = model.verify_trace(job.prompt(), trace.tokens)
    if wrong is not None or memory != trace.memory:
        raise CheckpointError(f"{model.path}, quantised, no longer runs a launch (token {wrong})")


def compared(source: Folder, copy: Folder, n_layers: int) -> dict[str, int]:
    """How many tensors of the circuit are as they were and how many others became integers or fp8;
    CheckpointError where a byte of the circuit differs."""
    starts = tuple(f"{source.prefix}layers.{n}." for n in range(n_layers))
    names = [name for name in source.tensors if name.startswith(starts)]
    for name in names:
        own = copy.tensors.get(name.replace(source.prefix, copy.prefix, 1))
        if own is None or b"".join(source.tensors[name].read()) != b"".join(own.read()):
            raise CheckpointError(f"{copy.path}: {name} of the circuit was changed")
    smaller = sum(name.endswith("._weight_qdata") for name in copy.tensors)
    if not smaller:
        raise CheckpointError(
            f"torchao quantised nothing of {source.path} under transformers "
            f"{transformers.__version__}; 5.24 does"
        )
    return {"circuit_tensors_identical": len(names), "tensors_quantised": smaller}
