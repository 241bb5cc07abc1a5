"""qgpu verify: a finished checkpoint held against its manifest and its own promises.

The silence is shown again on what is stored: every row of text goes through the norm and the gates
of every circuit layer, as they lie in the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.sparse import csr_array

from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.silence import run_rows
from qgpu.errors import CheckError
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


class TextRows:
    """The rows of the base at the head of the widened table."""

    def __init__(self, folder: Folder, n_rows: int) -> None:
        self._rows, self._n = folder.embedding.rows(), n_rows
        self.shape = (n_rows, folder.embedding.shape[1])

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self._n)
        return self._rows[start:stop]


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
    table = TextRows(folder, gpu["first_token"])
    gates = list(stored_gates(folder, n_circuit))
    ran = run_rows(cast(np.ndarray, table), gates, folder.text_config["rms_norm_eps"], progress)
    if ran.equal < ran.rows or not ran.untouched:
        raise CheckError(
            f"{path} is not silent on text: {ran.rows - ran.equal} of {ran.rows} rows leave the "
            f"circuit changed, the state is {'untouched' if ran.untouched else 'touched'}"
        )
    facts["silent rows of text"] = ran.equal
    return facts
