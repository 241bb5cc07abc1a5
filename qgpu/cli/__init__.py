"""The command line: ``qgpu``. Commands only read options and show results; the work is elsewhere.

Every failure is one line on stderr and an exit code of the contract; QGPU_DEBUG=1 shows where an
unexpected one came from.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from qgpu.cli.output import failure, say_json
from qgpu.errors import Error

EXIT_INTERRUPTED = 130  # as shells have it for SIGINT
# Command -> (module, attribute, one line of help). Imported only when used: torch is slow to load.
COMMANDS = {
    "run": ("qgpu.cli.run", "run", "Run one kernel launch."),
    "compile": ("qgpu.cli.run", "compile_", "Show a source as PTX, machine blocks or tokens."),
    "build": ("qgpu.cli.checkpoint", "build", "Compile the GPU and merge it into a checkpoint."),
    "standin": ("qgpu.cli.checkpoint", "standin", "Write a seeded Qwen3.5-shaped checkpoint."),
    "verify": ("qgpu.cli.checkpoint", "verify", "Prove again that a checkpoint is sound."),
    "kl": ("qgpu.cli.checkpoint", "kl", "Measure the text drift of a merged model."),
    "quantise": (
        "qgpu.cli.checkpoint",
        "quantise",
        "Copy a merged model with Qwen's layers in int8 or fp8.",
    ),
    "doctor": ("qgpu.cli.checkpoint", "doctor", "Say what was found and what is missing."),
    "chat": ("qgpu.cli.chat", "chat", "Talk to the model; the GPU in it computes."),
    "serve": ("qgpu.cli.chat", "serve", "Serve an OpenAI-compatible endpoint."),
    "eval": ("qgpu.cli.chat", "eval_group", "Run the project's own questions."),
    "trace": ("qgpu.cli.chat", "trace", "Show a launch as a page."),
}


class Cli(click.Group):
    """A group that loads its commands lazily and turns every error into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[2]) for name, row in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        for chatty in ("torchao", "torch.utils._pytree"):  # transformers imports torchao
            logging.getLogger(chatty).setLevel(logging.ERROR)
        argv = list(sys.argv[1:] if args is None else args)
        known: dict[str, Any] = {}
        extra |= {"standalone_mode": False, "obj": known}
        try:
            result = super().main(argv, **extra)
            if known and "--json" in argv:
                say_json(known, None)
            sys.stdout.flush()
            code = result if isinstance(result, int) else 0
        except click.exceptions.NoArgsIsHelpError as problem:
            click.echo(problem.format_message(), err=True)
            code = problem.exit_code
        except BrokenPipeError:
            code = _abandon_output()
        except Exception as problem:
            if os.environ.get("QGPU_DEBUG") and not _is_expected(problem):
                raise
            code = _end_with(problem, argv, known)
        sys.exit(code)


def _end_with(problem: Exception, argv: Sequence[str], known: dict[str, Any]) -> int:
    """Says the failure and returns its exit code."""
    try:
        failure(_line_of(problem), argv, known)
        sys.stdout.flush()
    except OSError:  # standard output cannot be written to, which may be the failure itself
        _abandon_output()
    return EXIT_INTERRUPTED if isinstance(problem, click.Abort) else _exit_code(problem)


def _abandon_output() -> int:
    """What is still buffered goes nowhere: the reader has gone, or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _is_expected(problem: Exception) -> bool:
    return isinstance(problem, (Error, click.ClickException, click.Abort, OSError))


def _exit_code(problem: Exception) -> int:
    code: int = getattr(problem, "exit_code", 1)
    return code


def _line_of(problem: Exception) -> str:
    """Any failure as one line."""
    text = " ".join(str(problem).split())
    if isinstance(problem, click.Abort):
        return "interrupted"
    if isinstance(problem, click.ClickException):
        return _click_line(problem)
    if isinstance(problem, Error):
        return text
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename or 'the output'}: {problem.strerror}"
    return f"unexpected {type(problem).__name__}: {text[:400]} (QGPU_DEBUG=1 shows where)"


def _click_line(problem: click.ClickException) -> str:
    line = " ".join(problem.format_message().split())
    context = getattr(problem, "ctx", None)
    return f"{line} (see `{context.command_path} --help`)" if context else line


@click.command(
    "qgpu",
    cls=Cli,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  qgpu run examples/01_dot.cu --interp --check",
)
@click.version_option(package_name="qgpu", prog_name="qgpu")
def main() -> None:
    """A SIMT GPU compiled into the weights of Qwen3.5: CUDA runs in its own forward passes."""
