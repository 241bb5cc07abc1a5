"""``qgpu run`` and ``qgpu compile``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import qgpu
from qgpu.cli.options import (
    DEFAULT_MODEL,
    SHOWN_ARG,
    Dims,
    integer,
    json_option,
    load_program,
    parse_arg,
    read_header,
)
from qgpu.cli.output import console, reply, run_object, show_array, show_trace
from qgpu.errors import UsageError
from qgpu.host.launch import (
    MAX_TOKENS,
    Backend,
    Interpreter,
    Result,
    Watch,
    launch,
    make_job,
    prepare,
)
from qgpu.host.program import Kernel
from qgpu.machine import SPECS
from qgpu.tokens import Token, name_of

if TYPE_CHECKING:
    from qgpu.interp.sanitize import Finding

SHOWN_TOKENS = 100  # a longer trace is not printed


@dataclass(frozen=True)
class Request:
    """The launch that the options, and the source's own header, ask for."""

    kernel: Kernel
    grid: Any
    block: Any
    args: list[Any]
    shared_words: int


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which kernel, in which shape, with which arguments, as one Request."""
    options = [
        click.argument("file"),
        click.option("--kernel", help="The kernel's name; needed if the file has several."),
        click.option("--grid", type=Dims(), help="CUDA blocks  [default: 1]"),
        click.option("--block", type=Dims(), help="Threads of a CUDA block  [default: 1]"),
        click.option("--shared", type=click.IntRange(0), metavar="WORDS",
                     help="Words of dynamic shared memory  [default: 0]"),
        click.option("--arg", "args", multiple=True, metavar="SPEC",
                     help="One kernel parameter: [1,2,3], zeros:N, an integer, @file.npy; arrays "
                          "may name a type, as in [1,2]:uint8."),
    ]  # fmt: skip

    @functools.wraps(command)
    def resolve(file: str, kernel: str | None, grid: Any, block: Any, shared: int | None,
                args: tuple[str, ...], **rest: Any) -> Any:  # fmt: skip
        return command(resolve_request(file, kernel, grid, block, shared, args), **rest)

    wrapped: Callable[..., Any] = resolve
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def resolve_request(
    file: str, kernel: str | None, grid: Any, block: Any, shared: int | None, args: tuple[str, ...]
) -> Request:
    """Options first; what they leave open is taken from the source's ``// qgpu:`` header."""
    values = [parse_arg(text) for text in args]
    program = load_program(file)
    header = read_header(program.source)
    named = kernel or header.settings.get("kernel")
    dims = Dims()
    return Request(
        program.kernel(named),
        grid or dims.convert(header.settings.get("grid", "1"), None, None),
        block or dims.convert(header.settings.get("block", "1"), None, None),
        values or [parse_arg(text) for text in header.args],
        shared_words(header.settings.get("shared", "0")) if shared is None else shared,
    )


def shared_words(text: str) -> int:
    """The words that a source's header asks for."""
    try:
        return integer(text)
    except ValueError:
        raise UsageError(f"// qgpu: shared={text[:SHOWN_ARG]} is no number of words") from None


spec_option = click.option(
    "--spec", "spec_name", type=click.Choice(sorted(SPECS)), default="reference", show_default=True,
    help="The machine, where no model says it.",
)  # fmt: skip


def choose_backend(
    model: str | None, interp: bool, spec_name: str = "reference", *, sparse: bool = False,
    draft: bool = False,
) -> Backend:  # fmt: skip
    """The interpreter, the circuit alone, or a merged checkpoint."""
    if bool(model) + interp + sparse > 1:
        raise UsageError("--model, --interp and --sparse exclude each other")
    if draft and (interp or sparse):
        raise UsageError("--draft is for a merged checkpoint, not for --interp or --sparse")
    if interp:
        return Interpreter(SPECS[spec_name])
    if sparse:
        from qgpu.host.sparse import Circuit

        return Circuit(SPECS[spec_name])
    folder = model or os.environ.get("QGPU_MODEL", DEFAULT_MODEL)
    if model is None and not Path(folder).is_dir():
        raise UsageError(
            f"no model at {folder}: make one with `qgpu build`, name one with --model, "
            "or use --interp"
        )
    loaded = qgpu.Model.load(folder)
    if not draft:
        return loaded
    from qgpu.host.draft import Drafted

    return Drafted(loaded)


@contextmanager
def watching(on: Backend, show_tokens: bool) -> Iterator[Watch]:
    """A watcher that prints tokens if asked to, and on a terminal counts them in a status line."""
    err = console(stderr=True)
    count = 0
    with err.status("feeding the program") if err.is_terminal else nullcontext() as status:
        if status is not None and hasattr(on, "progress"):
            on.progress = lambda done, of: status.update(f"fed {done} of {of} tokens")

        def watch(token: Token) -> None:
            nonlocal count
            count += 1
            if status is not None:
                status.update(f"{count} tokens written")
            if show_tokens:
                err.print(repr(token), markup=False)

        yield watch


def show_result(kernel: Kernel, result: Result, on: Backend) -> None:
    """The launch as people read it."""
    program, lowered = kernel.program, result.lowered
    out = console()
    sizes = [f"PTX {len(program.ptx.splitlines())} lines",
             f"{len(lowered.blocks)} machine blocks", f"{lowered.n_registers} registers",
             f"{lowered.n_words} words"]  # fmt: skip
    if program.kind == "cuda":
        sizes.insert(0, f"CUDA {len(program.source.splitlines())} lines")
    out.print(f"[bold]{kernel.plain}[/bold]: {', '.join(sizes)}")
    for index, value in enumerate(result.args):
        if value is not None:
            out.print(f"arg {index}: {show_array(value)}", markup=False)
    if result.tokens <= SHOWN_TOKENS:
        out.print(show_trace(result.trace), markup=False)
    rate = result.tokens / result.seconds if result.seconds else 0
    where = getattr(on, "where", "the reference interpreter")
    out.print(
        f"{result.tokens} tokens, {result.exec_tokens} of them exec, by {result.backend} "
        f"({where}) in {result.seconds:.3f} s ({rate:,.1f} a second)"
    )
    if result.check:
        out.print(f"check: [green]{result.check}[/green]")


@click.command(epilog="Example:  qgpu run dot.cu --block 3 --arg [1,2,3] --arg [4,5,6] "
                      "--arg zeros:1 --interp --check")  # fmt: skip
@launch_options
@spec_option
@click.option("--model", metavar="DIR", help=f"The merged checkpoint  [default: {DEFAULT_MODEL}]")
@click.option("--interp", is_flag=True, help="Use the reference interpreter instead of weights.")
@click.option(
    "--sparse", is_flag=True, help="Use the circuit's weights alone, no base behind them."
)
@click.option(
    "--draft",
    is_flag=True,
    help="Let the interpreter draft the tokens and the model decide on each, by prefill.",
)
@click.option("--check", is_flag=True, help="Replay the launch in a reference and compare.")
@click.option("--sanitize", is_flag=True,
              help="First look for bad addresses, races and uninitialised reads.")  # fmt: skip
@click.option("--max-tokens", default=MAX_TOKENS, show_default=True, help="Token budget.")
@click.option("--tokens", "show_tokens", is_flag=True, help="Print tokens on stderr as they come.")
@json_option
@click.option("--trace", metavar="FILE", help="Write the launch for `qgpu trace`.")
def run(
    request: Request, spec_name: str, model: str | None, interp: bool, sparse: bool, draft: bool,
    check: bool, sanitize: bool, max_tokens: int, show_tokens: bool, as_json: bool,
    trace: str | None,
) -> None:  # fmt: skip
    """Launch a kernel of FILE (CUDA C, or PTX) and show its arrays afterwards.

    A source may describe its launch in comments (// qgpu: kernel=dot grid=1 block=3, // arg:
    [1,2,3]); options override it.
    """
    known = reply()
    known |= run_object(request.kernel.plain, "interp" if interp else "weights")
    on = choose_backend(model, interp, spec_name, sparse=sparse, draft=draft)
    if sanitize:
        known["findings"] = [str(finding) for finding in find_faults(request, on)]
        end_if_faulty(known["findings"], quiet=as_json)
    if trace:
        refuse_unwritable(Path(trace))
    with watching(on, show_tokens) as watch:
        result = launch(
            request.kernel, request.grid, request.block, request.args, on=on, check=check,
            shared_words=request.shared_words, max_tokens=max_tokens, watch=watch,
        )  # fmt: skip
    known |= run_object(request.kernel.plain, result.backend, result)
    if trace:
        from qgpu.host.trace import write_trace

        write_trace(Path(trace), request.kernel, result)
    if not as_json:
        show_result(request.kernel, result, on)


def refuse_unwritable(path: Path) -> None:
    """A launch may take minutes: a file that cannot be written is refused before it."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    place = path if path.exists() else path.absolute().parent
    if not os.access(place, os.W_OK):
        why = "Permission denied" if place.exists() else "No such file or directory"
        raise UsageError(f"cannot write {path}: {why}")


def find_faults(request: Request, on: Backend) -> list[Finding]:
    """What the sanitizer finds in the launch."""
    from qgpu.interp.sanitize import sanitize

    kernel = request.kernel
    bound, shape, _ = prepare(
        kernel, on.spec, request.grid, request.block, request.args, request.shared_words
    )
    memory = np.asarray(bound.words, "<u4").tobytes()
    module = kernel.program.as_written
    return sanitize(module, kernel.name, shape, memory, bound.ranges, spec=on.spec)


def end_if_faulty(findings: list[str], quiet: bool) -> None:
    """Findings end the command; ``quiet`` where --json holds them."""
    for finding in findings:
        if not quiet:
            click.echo(finding, err=True)
    if findings:
        many = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        raise qgpu.LaunchError(f"the sanitizer has {many}")


@click.command("compile", epilog="Example:  qgpu compile dot.cu --emit blocks --block 3")
@launch_options
@spec_option
@click.option("--emit", type=click.Choice(["ptx", "blocks", "tokens"]), default="ptx",
              show_default=True, help="The stage to print.")  # fmt: skip
def compile_(request: Request, spec_name: str, emit: str) -> None:
    """Print FILE as PTX, as the machine blocks of one launch, or as the tokens that load them.

    Blocks and tokens depend on the launch; arguments that nobody gives read as 0.
    """
    kernel, spec = request.kernel, SPECS[spec_name]
    if emit == "ptx":
        click.echo(kernel.ptx)
        return
    values = request.args or [0] * len(kernel.params)
    bound, shape, lowered = prepare(
        kernel, spec, request.grid, request.block, values, request.shared_words
    )
    if emit == "blocks":
        click.echo(lowered.listing)
        return
    for token in make_job(spec, bound, shape, lowered).prompt():
        click.echo(name_of(token))
