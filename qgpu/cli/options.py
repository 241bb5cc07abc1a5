"""Option types that several commands share: ``--arg``, dimensions, source files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from qgpu.errors import LimitError, UsageError
from qgpu.host.arguments import DTYPES
from qgpu.host.program import Program, compile
from qgpu.machine import SPECS, WORD_BYTES

DEFAULT_MODEL = "build/qwen3.5-2b-gpu"
SHOWN_ARG = 60  # characters of an argument that a message repeats
_HEADER = re.compile(r"// (qgpu|arg): (.*)")
_TYPED = re.compile(r"(?P<value>.*\]|zeros:[^:]*)(?::(?P<dtype>\w+))?", re.DOTALL)


def integer(text: str) -> int:
    """A decimal, hex, octal or binary integer literal."""
    text = text.strip()
    try:
        return int(text, 0)
    except ValueError:
        return int(text, 10)


def shorten(value: int) -> str:
    """An integer as a message shows it."""
    return str(value) if abs(value) < 10**SHOWN_ARG else "an integer of more than 60 digits"


def _wrap(values: list[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Integers as the dtype's bit patterns, so that 0xffffffff is -1 in an int32 array."""
    bits = 8 * dtype.itemsize
    for value in values:
        if not -(1 << (bits - 1)) <= value < 1 << bits:
            raise ValueError(f"{shorten(value)} does not fit {bits} bits")
    unsigned = np.array([value & ((1 << bits) - 1) for value in values], dtype=f"u{dtype.itemsize}")
    return unsigned.view(dtype)


def _load(path: str) -> np.ndarray[Any, Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as problem:
        raise UsageError(f"cannot read an array from {path}: {problem.strerror}") from None
    except (ValueError, EOFError, MemoryError):
        raise UsageError(f"cannot read an array from {path}: it is no .npy of numbers") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise UsageError(f"{path} is an archive of arrays; give a single .npy")
    return array


def _zeros(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Zeros, refused before they are made where no machine could hold them."""
    words = count * dtype.itemsize // WORD_BYTES
    most = max(spec.n_words for spec in SPECS.values())
    if words > most:
        raise LimitError("words of memory for its arrays", words, most)
    return np.zeros(count, dtype)


def parse_arg(text: str) -> Any:
    """One ``--arg``: ``[1,2,3]``, ``zeros:N``, an integer, or ``@file.npy``.

    An array may name its type: ``[1,2,3]:uint8``, ``zeros:16:int64``. int32 is the default.
    """
    if text.startswith("@"):
        return _load(text[1:])
    shown = text if len(text) <= SHOWN_ARG else f"{text[:SHOWN_ARG]}..."
    typed = _TYPED.fullmatch(text.strip())
    try:
        if typed is None:
            return integer(text)
        name = typed["dtype"] or "int32"
        if name not in DTYPES:
            raise UsageError(f"--arg {shown}: the type is one of {', '.join(DTYPES)}")
        dtype, value = np.dtype(name), typed["value"]
        if value.startswith("zeros:"):
            return _zeros(integer(value.removeprefix("zeros:")), dtype)
        if not value.startswith("["):
            raise ValueError
        inner = value[1:-1].strip()
        return _wrap([integer(item) for item in inner.split(",")] if inner else [], dtype)
    except ValueError as problem:
        why = str(problem)
        if "fit" not in why:
            why = "write [1,2,3], zeros:N, an integer, or @file.npy"
        raise UsageError(f"--arg {shown}: {why}") from None


def model_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--model`` of the commands that need a checkpoint."""
    return click.option(
        "--model", default=DEFAULT_MODEL, show_default=True, metavar="DIR", envvar="QGPU_MODEL",
        help="The merged checkpoint; QGPU_MODEL names another default.",
    )(command)  # fmt: skip


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


class Dims(click.ParamType):
    """``X[,Y[,Z]]``."""

    name = "X[,Y[,Z]]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            sizes = tuple(integer(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value[:SHOWN_ARG]!r} is not X[,Y[,Z]]", param, ctx)
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
