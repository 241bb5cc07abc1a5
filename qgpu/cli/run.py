"""``qgpu run`` and ``qgpu compile``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import qgpu
from qgpu.cli.options import Dims, load_program, parse_arg
from qgpu.cli.output import console, run_object, show_array
from qgpu.errors import UsageError
from qgpu.host.launch import (
    MAX_TOKENS,
    Backend,
    Interpreter,
    Result,
    launch,
    make_job,
    prepare,
)
from qgpu.host.program import Kernel
from qgpu.machine import SPECS
from qgpu.tokens import Token, name_of

DEFAULT_MODEL = "build/qwen3.5-2b-gpu"


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which kernel, in which shape, with which arguments."""
    options = [
        click.argument("file"),
        click.option("--kernel", help="The kernel's name; needed if the file has several."),
        click.option("--grid", type=Dims(), default="1", show_default=True, help="CUDA blocks."),
        click.option("--block", type=Dims(), default="1", show_default=True, help="Threads each."),
        click.option("--shared", "shared_words", default=0, metavar="WORDS", show_default=True,
                     help="Words of dynamic shared memory."),
        click.option("--arg", "args", multiple=True, metavar="SPEC",
                     help="One kernel parameter: [1,2,3], zeros:N, an integer, @file.npy; arrays "
                          "may name a type, as in [1,2]:uint8."),
        click.option("--spec", "spec_name", type=click.Choice(sorted(SPECS)), default="reference",
                     show_default=True, help="The machine, where no model says it."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def choose_backend(model: str | None, interp: bool, spec_name: str) -> Backend:
    """The interpreter or a merged checkpoint."""
    if interp:
        if model:
            raise UsageError("--model and --interp exclude each other")
        return Interpreter(SPECS[spec_name])
    folder = model or os.environ.get("QGPU_MODEL", DEFAULT_MODEL)
    if model is None and not Path(folder).is_dir():
        raise UsageError(
            f"no model at {folder}: make one with `qgpu build`, name one with --model, "
            "or use --interp"
        )
    return qgpu.Model.load(folder)


def show_result(kernel: Kernel, result: Result) -> None:
    """The launch as people read it."""
    program, lowered = kernel.program, result.lowered
    out = console()
    sizes = f"PTX {len(program.ptx.splitlines())} lines, {len(lowered.blocks)} machine blocks, " \
            f"{lowered.n_registers} registers, {lowered.n_words} words"  # fmt: skip
    if program.kind == "cuda":
        sizes = f"CUDA {len(program.source.splitlines())} lines, {sizes}"
    out.print(f"[bold]{kernel.name}[/bold]  {sizes}")
    for param, value in zip(kernel.params, result.args, strict=True):
        if value is not None:
            out.print(f"{param.name}  {show_array(value)}", markup=False)
    rate = result.tokens / result.seconds if result.seconds else 0
    out.print(
        f"{result.tokens} tokens, {result.exec_tokens} of them exec, on {result.backend} "
        f"in {result.seconds:.3f} s ({rate:,.0f} a second)"
    )
    if result.check:
        out.print(f"check: [green]{result.check}[/green]")


@click.command(epilog="Example:  qgpu run dot.cu --block 3 --arg [1,2,3] --arg [4,5,6] "
                      "--arg zeros:1 --interp --check")  # fmt: skip
@launch_options
@click.option("--model", metavar="DIR", help=f"The merged checkpoint [{DEFAULT_MODEL}].")
@click.option("--interp", is_flag=True, help="Use the reference interpreter instead of weights.")
@click.option("--check", is_flag=True, help="Replay the launch in a reference and compare.")
@click.option("--sanitize", "sanitizing", is_flag=True,
              help="Look for bad addresses, races, uninitialised reads first.")  # fmt: skip
@click.option("--max-tokens", default=MAX_TOKENS, show_default=True, help="Token budget.")
@click.option("--tokens", "show_tokens", is_flag=True, help="Print the tokens as they come.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--trace", metavar="FILE", help="Write the launch for `qgpu trace`.")
def run(
    file: str, kernel: str | None, grid: Any, block: Any, shared_words: int, args: tuple[str, ...],
    spec_name: str, model: str | None, interp: bool, check: bool, sanitizing: bool,
    max_tokens: int, show_tokens: bool, as_json: bool, trace: str | None,
) -> None:  # fmt: skip
    """Launch a kernel of FILE (CUDA C, or PTX) and show its arrays afterwards."""
    values = [parse_arg(text) for text in args]
    chosen = load_program(file).kernel(kernel)
    on = choose_backend(model, interp, spec_name)
    if sanitizing:
        report_findings(chosen, on, grid, block, values, shared_words)
    err = console(stderr=True)

    def watch(token: Token) -> None:
        if show_tokens and not as_json:
            err.print(repr(token), markup=False)

    result = launch(
        chosen, grid, block, values,
        on=on, check=check, shared_words=shared_words, max_tokens=max_tokens, watch=watch,
    )  # fmt: skip
    if trace:
        from qgpu.host.trace import write_trace

        write_trace(Path(trace), chosen, result)
    if as_json:
        click.echo(json.dumps(run_object(chosen.name, result.backend, result, None)))
    else:
        show_result(chosen, result)


def report_findings(
    kernel: Kernel, on: Backend, grid: Any, block: Any, values: list[Any], shared_words: int
) -> None:
    """Print what the sanitizer finds; findings end the command."""
    from qgpu.host.check import sanitize_launch

    bound, shape, lowered = prepare(kernel, on.spec, grid, block, values, shared_words)
    findings = sanitize_launch(kernel, shape, bound, make_job(on.spec, bound, shape, lowered))
    for finding in findings:
        click.echo(str(finding), err=True)
    if findings:
        raise qgpu.LaunchError(f"the sanitizer has {len(findings)} findings")


@click.command("compile", epilog="Example:  qgpu compile dot.cu --emit blocks --block 3")
@launch_options
@click.option("--emit", type=click.Choice(["ptx", "blocks", "tokens"]), default="ptx",
              show_default=True, help="The stage to print.")  # fmt: skip
def compile_(
    file: str, kernel: str | None, grid: Any, block: Any, shared_words: int, args: tuple[str, ...],
    spec_name: str, emit: str,
) -> None:  # fmt: skip
    """Print FILE as PTX, as the machine blocks of one launch, or as the tokens that load them.

    Blocks and tokens depend on the launch; arguments that are not given read as 0.
    """
    program = load_program(file)
    if emit == "ptx":
        click.echo(program.ptx)
        return
    chosen = program.kernel(kernel)
    spec = SPECS[spec_name]
    values = [parse_arg(text) for text in args] if args else [0] * len(chosen.params)
    bound, shape, lowered = prepare(chosen, spec, grid, block, values, shared_words)
    if emit == "blocks":
        click.echo(lowered.listing)
        return
    for token in make_job(spec, bound, shape, lowered).prompt():
        click.echo(name_of(token))
