"""qgpu verify: a finished checkpoint held against its manifest and its own promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qgpu.compiler.checkpoint import Folder
from qgpu.host.model import gpu_config, verify_hashes


def verify(path: Path, *, hashes: bool = True) -> dict[str, Any]:
    """What was verified; raises CheckpointError with the first thing that is wrong."""
    folder = Folder.open(path)
    gpu = gpu_config(folder)
    facts: dict[str, Any] = {
        "machine": gpu["spec"]["name"],
        "tensors": len(folder.tensors),
        "layers": f"{gpu['circuit_layers']} of the circuit, "
                  f"{len(folder.layer_types) - gpu['circuit_layers']} of the base",
    }  # fmt: skip
    if hashes:
        facts["files with the manifest's hash"] = verify_hashes(path)
    return facts
