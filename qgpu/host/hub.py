"""Finding a base checkpoint: a folder, or a model on the hub or in its local cache.

The revision is pinned by a lock file in the working directory, to be committed by whoever wants the
same base everywhere. The first build of a hub model writes its commit there, later builds take
that commit and no newer one, and a revision that is asked for leaves the file as it is.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from qgpu.errors import CheckpointError, NoModelError

DEFAULT_BASE = "Qwen/Qwen3.5-2B"
WANTED = ["*.json", "*.safetensors", "*.jinja", "LICENSE*", "*.txt"]
LOCK = Path("qgpu.lock.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve_base(name: str, revision: str | None = None, *, lock: Path = LOCK) -> Path:
    """The folder of a base; downloads what is not here into the hub's cache: a line that breaks is
    taken up where it ended, and files that came whole stay for the next try."""
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise NoModelError(f"there is no model folder {name}")
    locked = read_lock(lock)
    path = _fetch(name, revision or locked.get(name))
    commit = commit_of(path)
    if revision is None and commit is not None and name not in locked:
        _write_lock(lock, locked | {name: commit})
    return path


def commit_of(path: Path) -> str | None:
    """The commit of a snapshot in the hub's cache; None for any other folder."""
    is_snapshot = path.parent.name == "snapshots" and _COMMIT.fullmatch(path.name)
    return path.name if is_snapshot else None


def read_lock(lock: Path = LOCK) -> dict[str, str]:
    """Commit by model id; empty where there is no lock file."""
    try:
        held = json.loads(lock.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"{lock} cannot be read: {_line(problem)}") from None
    pairs = held.items() if isinstance(held, dict) else [("the file", held)]
    for name, commit in pairs:
        if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
            raise CheckpointError(f"{lock}: {name} is not pinned to a commit of 40 hex digits")
    return dict(pairs)


def _write_lock(lock: Path, held: dict[str, str]) -> None:
    new = lock.with_name(f".{lock.name}.partial")
    try:
        new.write_text(json.dumps(held, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(lock)
    except OSError as problem:
        raise CheckpointError(
            f"{lock} cannot be written: {_line(problem)}; name a commit with --revision"
        ) from None


def _fetch(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    what = name if revision is None else f"{name} at {revision}"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED))
    except HFValidationError as problem:
        raise CheckpointError(f"{name} is not a model id: {_line(problem)}") from None
    except LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "no connection"
        raise CheckpointError(
            f"{what} is not in the local cache and the hub cannot be reached ({why}); "
            "name a folder with --base, or make a stand-in with `qgpu standin`"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as problem:
        raise CheckpointError(f"{what} cannot be fetched: {_line(problem)}") from None
    except Exception as problem:
        if not _broke_off(problem):
            raise
        raise CheckpointError(
            f"the download of {what} broke off ({_line(problem) or type(problem).__name__}); "
            "files that came whole are kept for the next try"
        ) from None


def _broke_off(problem: Exception) -> bool:
    """Whether the connection failed; huggingface_hub takes httpx or httpx2, by its version."""
    return any(kind.__name__ == "TransportError" for kind in type(problem).__mro__)


def cached(name: str = DEFAULT_BASE) -> Path | None:
    """The folder of a model that is in the local cache, the pinned one if one is pinned."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    revision = read_lock().get(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED,
                                      local_files_only=True))  # fmt: skip
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:300]
