"""Finding a base checkpoint: a folder, or a model on the hub or in its local cache."""

from __future__ import annotations

import os
from pathlib import Path

from qgpu.errors import CheckpointError, NoModelError

DEFAULT_BASE = "Qwen/Qwen3.5-2B"
WANTED = ["*.json", "*.safetensors", "*.jinja", "LICENSE*", "*.txt"]


def resolve_base(name: str, revision: str | None = None) -> Path:
    """The folder of a base; downloads (resumably, into the hub's cache) what is not here."""
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise NoModelError(f"there is no model folder {name}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED))
    except HFValidationError as problem:
        raise CheckpointError(f"{name} is not a model id: {_line(problem)}") from None
    except LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "no connection"
        raise CheckpointError(
            f"{name} is not in the local cache and the hub cannot be reached ({why}); "
            "name a folder with --base, or make a stand-in with `qgpu standin`"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as problem:
        raise CheckpointError(f"{name} cannot be fetched: {_line(problem)}") from None


def cached(name: str = DEFAULT_BASE) -> Path | None:
    """The folder of a model that is wholly in the local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=WANTED, local_files_only=True))
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:300]
