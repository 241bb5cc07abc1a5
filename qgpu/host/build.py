"""qgpu build: resolve a base, compile the circuit for its widths, merge, write the card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.merge import GPU_KEY, Circuit, check_base, merge
from qgpu.compiler.plan import N_CIRCUIT_LAYERS, Plan, build_plan
from qgpu.compiler.silence import Silence
from qgpu.compiler.weights import circuit_tensors, machine_embedding, machine_head, widths_of
from qgpu.host.tokenizer import add_machine_tokens
from qgpu.machine import MachineSpec

HEAD_SIZE = 0.05


def make_circuit(plan: Plan, silence: Silence) -> Circuit:
    """The compiled machine in the form that the merge takes."""

    def layers() -> Iterator[dict[str, torch.Tensor]]:
        for _, tensors in circuit_tensors(plan, silence):
            yield tensors

    place = plan.memory_place
    return Circuit(
        spec=plan.spec,
        n_layers=N_CIRCUIT_LAYERS,
        layers=layers,
        embedding=machine_embedding(plan),
        head=machine_head(plan, HEAD_SIZE),
        memory={"layer": place.layer, "heads": place.heads, "n_words": place.n_words},
        facts={"layers": [layer.name for layer in plan.layers]},
    )


def build(
    base: Path,
    target: Path,
    spec: MachineSpec,
    *,
    base_name: str | None = None,
    prove: bool = True,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[str, Any]:
    """Compile and merge; returns the manifest."""
    folder = Folder.open(base)
    check_base(folder)
    plan = build_plan(spec, widths_of(folder.text_config))
    circuit = make_circuit(plan, Silence((), (), 0.0))

    def write_tokenizer(source: Path, copy: Path) -> None:
        add_machine_tokens(source, copy, spec, folder.embedding.shape[0])

    return merge(
        folder, circuit, target,
        write_tokenizer=write_tokenizer,
        card=lambda manifest: model_card(manifest, base_name or base.name),
        progress=progress,
    )  # fmt: skip


def model_card(manifest: dict[str, Any], base_name: str) -> str:
    """README.md of the merged checkpoint."""
    gpu, base = manifest[GPU_KEY], manifest["base"]
    spec = gpu["spec"]
    metadata = ["---", "license: apache-2.0", "library_name: transformers",
                "pipeline_tag: text-generation", "tags: [qgpu, qwen3_5]"]  # fmt: skip
    if "/" in base_name:
        metadata += [f"base_model: {base_name}", "base_model_relation: merge"]
    kind = (
        "The base is multimodal: its vision tower and other tensors are kept, byte for byte."
        if base["model_type"] == "qwen3_5"
        else "The base is the text model."
    )
    return "\n".join([
        *metadata, "---", "", f"# {base_name} with a GPU in its weights", "",
        f"{gpu['circuit_layers']} decoder layers stand before the {base['layers']} layers of "
        f"{base_name}. Their weights are computed, not trained: they are a SIMT GPU of "
        f"{spec['n_warps']} warps of {spec['n_lanes']} lanes, {spec['n_registers'] - 1} registers, "
        f"{spec['n_blocks']} machine blocks and {spec['n_words']} words of memory. "
        "An integer CUDA kernel runs in the model's own forward passes.", "",
        f"{kind} Every tensor of the base is copied byte for byte; the circuit is silent on text. "
        f"The vocabulary has {base['embedding_rows']} rows of the base and behind them the "
        "machine's tokens, which generation_config.json suppresses in ordinary text.", "",
        "Loads with `AutoModelForCausalLM.from_pretrained`, no remote code. The recurrent state of "
        "the linear attention layers must be float32, and `layer_types` of the config must be "
        "honoured.", "",
        "What was built, from what, and the hash of every file: manifest.json.", "",
        "Licence: Apache-2.0, as Qwen3.5.", "",
    ])  # fmt: skip
