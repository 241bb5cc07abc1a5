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


def reply() -> dict[str, Any]:
    """What ``--json`` prints at the end of the command that runs; commands add to it as they go, so
    that a failure keeps what was known before it."""
    found: dict[str, Any] = click.get_current_context().find_root().obj
    return found


def run_object(
    kernel: str | None, backend: str | None, result: Result | None = None
) -> dict[str, Any]:
    """What ``qgpu run --json`` prints, but for the error."""
    args = [None if a is None else a.tolist() for a in result.args] if result else []
    return {
        "kernel": kernel,
        "backend": backend,
        "args": args,
        "tokens": result.tokens if result else None,
        "exec_tokens": result.exec_tokens if result else None,
        "seconds": round(result.seconds, 6) if result else None,
        "check": result.check if result else None,
    }


def say_json(fields: dict[str, Any], error: str | None) -> None:
    """The one object of ``--json``, its error last."""
    click.echo(json.dumps(fields | {"error": error}))


def failure(line: str, argv: Sequence[str], known: dict[str, Any]) -> None:
    """One line on stderr; under ``--json`` the same line on stdout, with what is ``known``."""
    click.echo(f"error: {line}", err=True)
    if "--json" in argv:
        if argv[0] == "run":
            known = run_object(None, "interp" if "--interp" in argv else "weights") | known
        say_json(known, line)


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
        if text.startswith(("Exec", "Halt", "Barrier", "Resume")) or not lines:
            lines.append([])
        lines[-1].append(text)
    return "\n".join("  " + " ".join(line) for line in lines)
