"""Option types that several commands share: ``--arg``, dimensions, source files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from qgpu.errors import UsageError
from qgpu.host.arguments import DTYPES
from qgpu.host.program import Program, compile

DEFAULT_MODEL = "build/qwen3.5-2b-gpu"
_HEADER = re.compile(r"// (qgpu|arg): (.*)")
_TYPED = re.compile(r"(?P<value>.*\]|zeros:[^:]*)(?::(?P<dtype>\w+))?", re.DOTALL)


def integer(text: str) -> int:
    """A decimal, hex, octal or binary integer literal."""
    text = text.strip()
    try:
        return int(text, 0)
    except ValueError:
        return int(text, 10)


def _wrap(values: list[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Integers as the dtype's bit patterns, so that 0xffffffff is -1 in an int32 array."""
    bits = 8 * dtype.itemsize
    for value in values:
        if not -(1 << (bits - 1)) <= value < 1 << bits:
            raise ValueError(f"{value} does not fit {bits} bits")
    unsigned = np.array([value & ((1 << bits) - 1) for value in values], dtype=f"u{dtype.itemsize}")
    return unsigned.view(dtype)


def _load(path: str) -> np.ndarray[Any, Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise UsageError(f"cannot read an array from {path}: {problem}") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path} is an archive of arrays; give a single .npy")
    return array


def parse_arg(text: str) -> Any:
    """One ``--arg``: ``[1,2,3]``, ``zeros:N``, an integer, or ``@file.npy``.

    An array may name its type: ``[1,2,3]:uint8``, ``zeros:16:int64``. int32 is the default.
    """
    if text.startswith("@"):
        return _load(text[1:])
    typed = _TYPED.fullmatch(text.strip())
    try:
        if typed is None:
            return integer(text)
        name = typed["dtype"] or "int32"
        if name not in DTYPES:
            raise UsageError(f"--arg {text}: the type is one of {', '.join(DTYPES)}")
        dtype, value = np.dtype(name), typed["value"]
        if value.startswith("zeros:"):
            return np.zeros(integer(value.removeprefix("zeros:")), dtype)
        if not value.startswith("["):
            raise ValueError
        inner = value[1:-1].strip()
        return _wrap([integer(item) for item in inner.split(",")] if inner else [], dtype)
    except (ValueError, MemoryError) as problem:
        why = (
            str(problem)
            if "fit" in str(problem)
            else ("write [1,2,3], zeros:N, an integer, or @file.npy")
        )
        raise UsageError(f"--arg {text}: {why}") from None


class Dims(click.ParamType):
    """``X[,Y[,Z]]``."""

    name = "X[,Y[,Z]]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            sizes = tuple(integer(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not X[,Y[,Z]]", param, ctx)
        if len(sizes) > 3:
            self.fail(f"{value!r} has more than three sizes", param, ctx)
        return sizes


def read_text(path: str) -> str:
    """The text of a file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}") from None


def read_source(path: str) -> tuple[str, str]:
    """The text of a source file, and its kind: PTX by its name or its .version directive."""
    text = read_text(path)
    is_ptx = path.endswith(".ptx") or (
        not path.endswith((".cu", ".cuh", ".c", ".cpp")) and ".version" in text
    )
    return text, "ptx" if is_ptx else "cuda"


def load_program(path: str) -> Program:
    """Compile the source file ``path``."""
    text, kind = read_source(path)
    return compile(text, kind, file=path)


@dataclass(frozen=True)
class Header:
    """What a source says of its own launch, in comments: the defaults of the options.

    ``// qgpu: kernel=NAME grid=X[,Y[,Z]] block=X[,Y[,Z]] [shared=WORDS]``, then ``// arg: SPEC``.
    """

    settings: dict[str, str]
    args: tuple[str, ...]


def read_header(source: str) -> Header:
    """The launch that a source describes; empty where it describes none."""
    settings: dict[str, str] = {}
    args: list[str] = []
    for line in source.splitlines():
        found = _HEADER.fullmatch(line.strip())
        if found and found[1] == "qgpu":
            settings |= dict(item.split("=", 1) for item in found[2].split() if "=" in item)
        elif found:
            args.append(found[2].strip())
    return Header(settings, tuple(args) if settings else ())
