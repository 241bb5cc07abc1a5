"""qgpu verify: a finished checkpoint held against its manifest and its own promises.

Every file must have its hash, and no file may be there that the manifest does not name: one more
shard or adapter would be loaded too.

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

from qgpu.compiler.checkpoint import CONFIG, MANIFEST, Folder, read_json
from qgpu.compiler.merge import GPU_KEY
from qgpu.compiler.silence import Direction, Proof, prove
from qgpu.errors import CheckError, CheckpointError, CompileError
from qgpu.host.model import gpu_config, verify_hashes

# What the manifest must say of the silence, and what of it is counted anew.
SAID = {"dims", "w", "margin", "strength", "failing_rows", "rows_left_out", "rows_run"}
COUNTED = {"rows", "zero_rows", "rows_run", "equal_rows", "state_untouched", "holds"}


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
    n_rows = first - said["rows_left_out"]
    if n_rows < text_rows(folder, first):
        raise CheckError(f"{folder.path}: its manifest leaves out rows that the tokenizer names")
    table = folder.embedding.rows(n_rows)
    layers, eps = list(stored_gates(folder, n_circuit)), folder.text_config["rms_norm_eps"]
    try:
        return prove(layers, direction, said["strength"], table, eps, progress=progress)
    except CompileError as problem:
        raise CheckError(f"{folder.path}: {problem}") from None


def text_rows(folder: Folder, first: int) -> int:
    """Up to which row, of the ``first`` of the base, the tokenizer names rows; all without one."""
    path = folder.path / "tokenizer.json"
    if not path.exists():
        return first
    tokenizer = read_json(path)
    ids = [*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])]
    return max(number for number in ids if number < first) + 1


def check_files(path: Path) -> int:
    """The files are those of the manifest, byte for byte; returns how many."""
    files = read_json(path / MANIFEST).get("files", {})
    count = verify_hashes(path)
    for file in sorted(path.iterdir()):
        if file.name not in (MANIFEST, *files) and not file.name.startswith("."):
            raise CheckpointError(f"{file} is not in the manifest")
    return count


def check_manifest(folder: Folder, manifest: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of the silence; refuses one that is of another checkpoint."""
    gpu, where = gpu_config(folder), folder.path / MANIFEST
    said: dict[str, Any] | None = manifest.get("facts", {}).get("silence")
    if said is None:
        raise CheckpointError(f"{where} says nothing of silence: build it again")
    if manifest.get(GPU_KEY) != gpu:
        raise CheckpointError(f"{where} describes another machine than {CONFIG}")
    missing = sorted(SAID - set(said))
    if missing:
        raise CheckpointError(f"{where} says nothing of the silence's {missing[0]}: build it again")
    return said


def check_said(where: Path, said: dict[str, Any], proof: Proof) -> None:
    """What the manifest claims of the proof is what was found."""
    found = proof.as_json()
    for name in sorted(COUNTED & set(said)):
        # A build without the run over the rows claims no run.
        if name in ("rows_run", "equal_rows") and not said["rows_run"]:
            continue
        if said[name] != found[name]:
            raise CheckError(f"{where} says {name} {said[name]}, found is {found[name]}")


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
        facts["files with the manifest's hash"] = check_files(path)
    said = check_manifest(folder, read_json(path / MANIFEST))
    proof = prove_stored(folder, said, progress)
    if not proof.holds:
        state = "untouched" if proof.state_untouched else "touched"
        raise CheckError(
            f"{path} is not silent on text: {proof.rows_run - proof.equal_rows} of {proof.rows} "
            f"rows leave the circuit changed, largest gate {proof.bound:.3g}, the state is {state}"
        )
    check_said(path / MANIFEST, said, proof)
    facts["silent rows of text"] = proof.equal_rows
    facts["largest gate of any row"] = proof.bound
    return facts
