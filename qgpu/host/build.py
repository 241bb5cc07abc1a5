"""qgpu build: resolve a base, compile the circuit for its widths, merge, write the card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qgpu.compiler.checkpoint import Folder, read_json
from qgpu.compiler.emit import Silence
from qgpu.compiler.evaluate import Executor
from qgpu.compiler.leak import leak, rows_at
from qgpu.compiler.merge import GPU_KEY, Circuit, check_base, check_target, merge
from qgpu.compiler.plan import N_CIRCUIT_LAYERS, Plan
from qgpu.compiler.report import layer_uses
from qgpu.compiler.silence import Silent, make_silent
from qgpu.compiler.weights import circuit_tensors, machine_embedding, widths_of
from qgpu.errors import CheckpointError
from qgpu.host.head import make_head
from qgpu.host.hub import commit_of
from qgpu.host.margin import drafted, margin_of, text_residual, through_base
from qgpu.host.tokenizer import add_machine_tokens
from qgpu.machine import MachineSpec

WEAK = 0.5  # of the median weight of the base's final norm


def make_circuit(
    plan: Plan, silence: Silence, head: torch.Tensor, facts: dict[str, Any], n_layers: int
) -> Circuit:
    """The compiled machine in the form that the merge takes."""

    def layers() -> Iterator[dict[str, torch.Tensor]]:
        for _, tensors in islice(circuit_tensors(plan, silence), n_layers):
            yield tensors

    place = plan.memory_place
    # As quiet on text as the machine's rows, and without a code: never the intended token.
    spare = head[0].clone()
    spare[[dim for bit in plan.code for dim in plan.space.residual_dims(bit)]] = 0
    return Circuit(
        spec=plan.spec,
        n_layers=n_layers,
        layers=layers,
        embedding=machine_embedding(plan),
        head=head,
        memory={"layer": place.layer, "heads": place.heads, "n_words": place.n_words},
        facts=facts,
        spare_head=spare,
    )


def weak_dims(folder: Folder) -> frozenset[int]:
    """Dims that the base's final norm all but mutes or turns around: no place for the code."""
    weight = 1 + folder.tensors[f"{folder.prefix}norm.weight"].array()
    weak = np.flatnonzero(weight < WEAK * np.median(weight))
    return frozenset(int(dim) for dim in weak)


def reachable_rows(folder: Folder) -> int:
    """How many rows of the table the base's tokenizer can name; all where it brings none."""
    n_rows = folder.embedding.shape[0]
    path = folder.path / "tokenizer.json"
    if not path.exists():
        return n_rows
    tokenizer = read_json(path)
    ids = [*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])]
    return min(n_rows, max(ids) + 1)


def silent_plan(
    folder: Folder, spec: MachineSpec, *, run: bool, progress: Callable[[int], None]
) -> tuple[Silent, dict[str, Any]]:
    """The circuit for a base, and what is to be said of its silence (docs/silence.md).

    Rows that the tokenizer cannot name are left out only where the whole table has no direction:
    no text holds them.
    """
    widths, weak = widths_of(folder.text_config), weak_dims(folder)
    n_rows, reachable = folder.embedding.shape[0], reachable_rows(folder)
    table = folder.embedding.rows()
    silent = make_silent(spec, widths, table, weak=weak, run=run, progress=progress)
    if not silent.proof.holds and reachable < n_rows:
        table = folder.embedding.rows(reachable)
        silent = make_silent(spec, widths, table, weak=weak, run=run, progress=progress)
    facts = silent.proof.as_json() | {
        "rows_left_out": n_rows - len(table),
        "dims": list(silent.silence.dims),
        "w": list(silent.silence.w),
    }
    if silent.proof.moved:
        rows = rows_at(table, silent.proof.moved)
        facts["drift"] = leak(silent.plan, silent.silence, rows)
    return silent, facts


def silence_line(facts: dict[str, Any]) -> str:
    """What was proven of the circuit's silence, with its numbers, in one line."""
    numbers = (f"margin {facts['margin']:.2f}, largest gate {facts['bound']:.3g}, "
               f"{facts['equal_rows']} of {facts['rows_run']} rows run bit-identical")  # fmt: skip
    left_out = facts["rows_left_out"]
    if left_out:
        numbers += f", {left_out} rows that the tokenizer cannot name left out"
    if facts["holds"]:
        return f"silent on all {facts['rows']} rows of text, proven: {numbers}"
    drift = facts.get("drift")
    if drift:
        numbers += (f"; {drift['rows']} of the rows that move drift by {drift['largest']} of their "
                    f"norm at most, {drift['not_finite']} of them beyond all bounds")  # fmt: skip
    why = []
    if facts["failing_rows"]:
        why.append(f"{facts['failing_rows']} of {facts['rows']} rows are on the wrong side of the "
                   "best direction")  # fmt: skip
    if facts["zero_rows"]:
        why.append(f"{facts['zero_rows']} rows are zero and would let the machine's state be "
                   "written")  # fmt: skip
    reason = "; ".join(why) or "no strength is enough"
    return f"the circuit is NOT silent on text: {reason} ({numbers})"


def build(
    base: Path,
    target: Path,
    spec: MachineSpec,
    *,
    base_name: str | None = None,
    prove: bool = True,
    allow_drift: bool = False,
    pad: bool = True,
    step: Callable[[str], None] = lambda what: None,
    rows: Callable[[int], None] = lambda n: None,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[str, Any]:
    """Compile and merge; returns the manifest.

    ``prove`` also runs every row of the base's table through the circuit's gates; the bound that
    proves the silence is computed in any case. CheckpointError where the proof fails, unless
    ``allow_drift``. ``step`` is told what is being done, ``rows`` how many rows were proven,
    ``progress`` how many bytes were written. Without ``pad`` the checkpoint has just the plan's
    layers, not 45.
    """
    folder = Folder.open(base)
    check_base(folder)
    check_target(target, base)
    step("finding the direction that tells text from machine tokens, and proving the silence")
    silent, silence = silent_plan(folder, spec, run=prove, progress=rows)
    step(silence_line(silence))
    if not (silence["holds"] or allow_drift):
        raise CheckpointError(f"{silence_line(silence)}; --allow-drift builds it all the same")
    step("holding the machine's tokens against the base's own layers")
    launches = drafted(Executor.build(silent.plan, silent.silence))
    text, *outs = through_base(folder, [text_residual(folder), *(x.residual for x in launches)])
    head = make_head(folder, silent.plan, text)
    margins = [
        margin_of(folder, silent.plan, head.rows, launch, out)
        for launch, out in zip(launches, outs, strict=True)
    ]
    facts = {
        "silence": silence,
        "head": head.facts,
        "least_margin": min(margin.lead for margin in margins),
        "margins": [asdict(margin) for margin in margins],
        "layers": [asdict(use) for use in layer_uses(silent.plan)],
    }
    if commit := commit_of(base):
        facts["hub"] = {"model": base_name or base.name, "commit": commit}
    del launches, text, outs
    n_layers = N_CIRCUIT_LAYERS if pad else len(silent.plan.layers)
    circuit = make_circuit(silent.plan, silent.silence, head.rows, facts, n_layers)
    step(f"writing {target}")

    def write_tokenizer(source: Path, copy: Path) -> None:
        add_machine_tokens(source, copy, spec, folder.embedding.shape[0])

    return merge(
        folder, circuit, target,
        write_tokenizer=write_tokenizer,
        card=lambda manifest: model_card(manifest, base.resolve().name),
        progress=progress,
    )  # fmt: skip


def model_card(manifest: dict[str, Any], folder: str) -> str:
    """README.md of the merged checkpoint, whose base is on the hub or else in a ``folder``."""
    gpu, base = manifest[GPU_KEY], manifest["base"]
    hub = manifest["facts"].get("hub")
    base_name = hub["model"] if hub else folder
    spec = gpu["spec"]
    metadata = ["---", "license: apache-2.0", "library_name: transformers",
                "pipeline_tag: text-generation", "tags: [qgpu, qwen3_5]"]  # fmt: skip
    if hub:
        metadata += [f"base_model: {base_name}", "base_model_relation: merge"]
    proof = manifest["facts"].get("silence", {})
    silence = (
        f"it was proven that the circuit is silent on all {proof['rows']} rows of text"
        if proof.get("holds")
        else "the circuit's silence on text is NOT proven for this base: text may drift"
    )
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
        f"{kind} Every tensor of the base is copied byte for byte; {silence}. "
        f"The vocabulary has {base['embedding_rows']} rows of the base and behind them the "
        "machine's tokens, which generation_config.json suppresses in ordinary text.", "",
        "Loads with `AutoModelForCausalLM.from_pretrained`, no remote code. The recurrent state of "
        "the linear attention layers must be float32, and `layer_types` of the config must be "
        "honoured.", "",
        "What was built, from what, and the hash of every file: manifest.json.", "",
        "Licence: Apache-2.0, as Qwen3.5.", "",
    ])  # fmt: skip
