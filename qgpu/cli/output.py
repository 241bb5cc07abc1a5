"""What the commands print: consoles, tables of arguments, the run command's JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from rich.console import Console

from qgpu.host.launch import Result
from qgpu.tokens import Token

SHOWN_ELEMENTS = 64


def console(stderr: bool = False) -> Console:
    """A console that leaves colour and wrapping alone when it is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty() and not os.environ.get("NO_COLOR")
    width = None if terminal else 160
    return Console(
        file=stream, highlight=False, soft_wrap=True, width=width, no_color=not terminal,
        force_terminal=terminal,
    )  # fmt: skip


def run_object(
    kernel: str | None, backend: str | None, result: Result | None, error: str | None
) -> dict[str, Any]:
    """The object that ``qgpu run --json`` prints."""
    args = [None if a is None else a.tolist() for a in result.args] if result else []
    return {
        "kernel": kernel,
        "backend": backend,
        "args": args,
        "tokens": result.tokens if result else None,
        "exec_tokens": result.exec_tokens if result else None,
        "seconds": round(result.seconds, 6) if result else None,
        "check": result.check if result else None,
        "error": error,
    }


def failure(line: str, argv: Sequence[str]) -> None:
    """One line on stderr; for ``run --json`` the same line as an object on stdout."""
    click.echo(f"error: {line}", err=True)
    if argv[:1] == ["run"] and "--json" in argv:
        backend = "interp" if "--interp" in argv else "weights"
        kernel = argv[argv.index("--kernel") + 1] if "--kernel" in argv[:-1] else None
        click.echo(json.dumps(run_object(kernel, backend, None, line)))


def show_array(array: np.ndarray[Any, Any]) -> str:
    """An array on one line, shortened in the middle when long."""
    if array.size > SHOWN_ELEMENTS:
        flat = array.ravel()
        head, tail = (" ".join(map(str, part.tolist())) for part in (flat[:16], flat[-4:]))
        return f"[{head} ... {tail}] ({array.size} elements)"
    return " ".join(np.array2string(array, max_line_width=10**6).split())


def show_trace(trace: Sequence[Token]) -> str:
    """Tokens with their fields, several a line: ``Exec`` opens one."""
    lines: list[list[str]] = []
    for token in trace:
        text = repr(token)
        if text.startswith(("Exec", "Halt", "Barrier")) or not lines:
            lines.append([])
        lines[-1].append(text)
    return "\n".join("  " + " ".join(line) for line in lines)
