"""qgpu verify: a finished checkpoint held against its manifest and its own promises.

The silence is proven again on what is stored: every row of text goes through the norm and the gates
of every circuit layer, as they lie in the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from qgpu.compiler.checkpoint import MANIFEST, Folder, read_json
from qgpu.compiler.silence import Direction, Proof, prove
from qgpu.errors import CheckError, CheckpointError, CompileError
from qgpu.host.model import gpu_config, verify_hashes


@dataclass(frozen=True)
class Gates:
    """What decides whether a layer is silent: all that it adds goes through one of these."""

    input_norm: np.ndarray
    post_norm: np.ndarray
    gate: csr_array
    z: csr_array
    b: csr_array
    a: csr_array


def stored_gates(folder: Folder, n_layers: int) -> Iterator[Gates]:
    """The gates of each circuit layer that does anything."""
    for index in range(n_layers):

        def read(name: str, layer: int = index) -> np.ndarray:
            return folder.tensors[f"{folder.prefix}layers.{layer}.{name}.weight"].array()

        gate, z = csr_array(read("mlp.gate_proj")), csr_array(read("linear_attn.in_proj_z"))
        b, a = csr_array(read("linear_attn.in_proj_b")), csr_array(read("linear_attn.in_proj_a"))
        if gate.nnz or z.nnz or b.nnz:
            norms = read("input_layernorm"), read("post_attention_layernorm")
            yield Gates(*norms, gate, z, b, a)


def prove_stored(
    folder: Folder, said: dict[str, Any], progress: Callable[[int], None] = lambda n: None
) -> Proof:
    """The proof from the tensors of a finished checkpoint; ``said`` is what its manifest says."""
    gpu = gpu_config(folder)
    first, n_circuit = gpu["first_token"], gpu["circuit_layers"]
    direction = Direction(
        tuple(said["dims"]), tuple(said["w"]), said["margin"], said["failing_rows"]
    )
    machine = folder.embedding.rows()[first : folder.embedding.shape[0]]
    if machine[:, list(direction.dims)].any():
        raise CheckError(f"{folder.path}: a machine token does not leave the guard dims at 0")
    table = folder.embedding.rows(first - said["rows_left_out"])
    layers, eps = list(stored_gates(folder, n_circuit)), folder.text_config["rms_norm_eps"]
    try:
        return prove(layers, direction, said["strength"], table, eps, progress=progress)
    except CompileError as problem:
        raise CheckError(f"{folder.path}: {problem}") from None


def verify(
    path: Path, *, hashes: bool = True, progress: Callable[[int], None] = lambda n: None
) -> dict[str, Any]:
    """What was verified; raises an error with the first thing that is wrong."""
    folder = Folder.open(path)
    gpu = gpu_config(folder)
    n_circuit = gpu["circuit_layers"]
    facts: dict[str, Any] = {
        "machine": gpu["spec"]["name"],
        "tensors": len(folder.tensors),
        "layers": f"{n_circuit} of the circuit, {len(folder.layer_types) - n_circuit} of the base",
    }
    if hashes:
        facts["files with the manifest's hash"] = verify_hashes(path)
    said = read_json(path / MANIFEST).get("facts", {}).get("silence")
    if said is None:
        raise CheckpointError(f"{path / MANIFEST} says nothing of silence: build it again")
    proof = prove_stored(folder, said, progress)
    if not proof.holds:
        state = "untouched" if proof.state_untouched else "touched"
        raise CheckError(
            f"{path} is not silent on text: {proof.rows_run - proof.equal_rows} of {proof.rows} "
            f"rows leave the circuit changed, largest gate {proof.bound:.3g}, the state is {state}"
        )
    facts["silent rows of text"] = proof.equal_rows
    facts["largest gate of any row"] = proof.bound
    return facts
