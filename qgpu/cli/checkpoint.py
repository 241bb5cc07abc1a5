"""``qgpu build``, ``standin``, ``verify``, ``kl`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from qgpu.cli.options import DEFAULT_MODEL, json_option, model_option, read_text
from qgpu.cli.output import console, reply
from qgpu.errors import Error
from qgpu.machine import SPECS

DEFAULT_STANDIN = "2b"


@contextmanager
def writing(what: str) -> Iterator[Callable[[int], None]]:
    """A line of progress on stderr that counts bytes; silent where stderr is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn(), TimeElapsedColumn())  # fmt: skip
    out = console(stderr=True)
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda n: bar.advance(task, n)


@click.command(epilog="Example:  qgpu build --base ./Qwen3.5-2B --out build/qwen3.5-2b-gpu")
@click.option("--base", default=None, metavar="DIR_OR_HUB_ID",
              help="The Qwen3.5 checkpoint to build on  [default: Qwen/Qwen3.5-2B]")  # fmt: skip
@click.option("--out", default=DEFAULT_MODEL, show_default=True, metavar="DIR")
@click.option("--revision", default=None, help="The hub revision, if not the pinned one.")
@click.option("--spec", "spec_name", type=click.Choice(sorted(SPECS)), default="reference",
              show_default=True, help="The machine to build.")  # fmt: skip
@click.option("--no-proof", is_flag=True, help="Skip the proof of silence over every text row.")
@click.option("--allow-drift", is_flag=True,
              help="Build even where the proof fails and text will drift.")  # fmt: skip
@json_option
def build(base: str | None, out: str, revision: str | None, spec_name: str, no_proof: bool,
          allow_drift: bool, as_json: bool) -> None:  # fmt: skip
    """Compile the GPU and merge it in front of a Qwen3.5 checkpoint.

    Takes a folder or a hub id (HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are respected). The
    checkpoint appears at --out only when it is complete.
    """
    from qgpu.host.build import build as build_checkpoint
    from qgpu.host.hub import DEFAULT_BASE, resolve_base

    name = base or DEFAULT_BASE
    folder = resolve_base(name, revision)
    err = console(stderr=True)
    with writing(f"writing {out}") as progress:
        manifest = build_checkpoint(
            folder, Path(out), SPECS[spec_name], base_name=name, prove=not no_proof,
            allow_drift=allow_drift, step=lambda what: err.print(what, markup=False),
            progress=progress,
        )  # fmt: skip
    reply().update(out=out, manifest=manifest)
    if not as_json:
        show_build(out, name, manifest)


def show_build(out: str, name: str, manifest: dict[str, Any]) -> None:
    """What was built, as people read it."""
    from qgpu.host.build import silence_line

    show = console()
    show.print(layer_table(manifest["facts"]["layers"]))
    show.print(f"{out}: {manifest['qgpu']['circuit_layers']} circuit layers before "
               f"{manifest['base']['layers']} of {name}")  # fmt: skip
    show.print(silence_line(manifest["facts"]["silence"]), markup=False)
    show.print(f"behind the base's layers the intended machine token leads by at least "
               f"{manifest['facts']['least_margin']:.2f}")  # fmt: skip
    head = manifest["facts"]["head"]
    show.print(f"the machine's rows add at most {head['kl_of_new_rows']:.1e} to the KL on "
               f"{head['text_positions']} positions of text")  # fmt: skip


def layer_table(layers: list[dict[str, Any]]) -> Table:
    """What each circuit layer holds: heads, neurons, and residual dims that it reads or writes."""
    table = Table("layer", "name", "heads", "neurons", "dims", title="circuit layers")
    for use in layers:
        table.add_row(*(str(use[key]) for key in ("index", "name", "heads", "neurons", "dims")))
    return table


@click.command(epilog="Example:  qgpu standin --like demo --out build/base")
@click.option("--like", default=DEFAULT_STANDIN, show_default=True,
              type=click.Choice(["2b", "0.8b", "demo", "tiny"]),
              help="Whose shapes; demo: 2b's widths, few layers, a small vocabulary.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of every weight.")
@click.option("--out", required=True, metavar="DIR")
@json_option
def standin(like: str, seed: int, out: str, as_json: bool) -> None:
    """Write a seeded checkpoint with Qwen3.5's shapes, for machines without the weights."""
    from qgpu.host.standin import write_standin

    with writing(f"writing {out}") as progress:
        write_standin(like, Path(out), seed, progress=progress)
    reply().update(out=out, like=like, seed=seed)
    if not as_json:
        console().print(f"{out}: a stand-in like {like}, seed {seed}; its text is noise")


@click.command(epilog="Example:  qgpu verify --model build/qwen3.5-2b-gpu")
@model_option
@click.option("--hashes/--no-hashes", default=True, help="Compare every file with the manifest.")
@json_option
def verify(model: str, hashes: bool, as_json: bool) -> None:
    """Prove again that a checkpoint is whole, and silent on every row of text."""
    from qgpu.host.verify import verify as verify_checkpoint

    facts = verify_checkpoint(Path(model), hashes=hashes)
    reply().update(facts)
    for key, value in facts.items():
        if not as_json:
            console().print(f"{key}: {value}", markup=False)


@click.command(epilog="Example:  qgpu quantise --out build/qwen3.5-2b-gpu-int8")
@model_option
@click.option("--out", required=True, metavar="DIR")
@click.option("--form", type=click.Choice(["int8", "fp8"]), default="int8", show_default=True,
              help="Of the weights of Qwen's layers.")  # fmt: skip
@json_option
def quantise(model: str, out: str, form: str, as_json: bool) -> None:
    """Copy a checkpoint with Qwen's own layers in int8 or fp8 and the circuit's layers bit-exact.

    Needs torchao. Text changes as the rounding changes it; launches do not.
    """
    from qgpu.host.quantise import quantise as quantise_checkpoint

    err = console(stderr=True)
    manifest = quantise_checkpoint(
        Path(model), Path(out), form, step=lambda what: err.print(what, markup=False)
    )
    reply().update(out=out, quantised=manifest["quantised"])
    same = manifest["quantised"]["circuit_tensors_identical"]
    if not as_json:
        console().print(f"{out}: Qwen's layers in {form}, {same} tensors of the circuit kept exact")


@click.command(epilog="Example:  qgpu kl --base ./Qwen3.5-2B --model build/qwen3.5-2b-gpu")
@click.option("--base", required=True, metavar="DIR", help="The checkpoint without the GPU.")
@model_option
@click.option("--text", "text_file", default=None, metavar="FILE", help="Instead of the built-in.")
@click.option("--positions", default=512, show_default=True, help="Tokens to compare at most.")
@click.option("--decoded", type=click.IntRange(1), help="Of them one at a time; all if not given.")
@json_option
def kl(
    base: str, model: str, text_file: str | None, positions: int, decoded: int | None, as_json: bool
) -> None:
    """Measure how far the merged model's text has drifted from its base: KL(base || merged)."""
    from qgpu.host.drift import measure

    text = read_text(text_file) if text_file else None
    err = console(stderr=True)

    def report(what: str, done: int, of: int) -> None:
        if err.is_terminal:
            err.print(f"{what}: {done} of {of}", end="\r")

    found = measure(Path(base), Path(model), text, max_positions=positions,
                    decode_positions=decoded, report=report)  # fmt: skip
    reply().update({mode: drift.as_dict() for mode, drift in found.items()})
    if as_json:
        return
    table = Table("mode", "positions", "mean", "median", "p99", "max", "top-1", "identical")
    for mode, drift in found.items():
        table.add_row(
            mode, str(drift.positions), f"{drift.mean:.2e}", f"{drift.median:.2e}",
            f"{drift.p99:.2e}", f"{drift.max:.2e}", f"{drift.top1:.1%}",
            f"{drift.identical} of {drift.positions}",
        )  # fmt: skip
    console().print(table)


@click.command(epilog="Example:  qgpu doctor")
@model_option
@json_option
def doctor(model: str, as_json: bool) -> None:
    """Say what was found on this machine, what is missing, and how to get it."""
    from qgpu.host.doctor import examine

    findings = examine(Path(model))
    lacking = [finding.what for finding in findings if finding.ok is False]
    reply().update(ok=not lacking, findings=[vars(finding) for finding in findings])
    if not as_json:
        marks = {True: "[green]ok[/green]", False: "[red]missing[/red]", None: "-"}
        table = Table("", "", "found", "advice", show_header=False, box=None)
        for finding in findings:
            table.add_row(marks[finding.ok], finding.what, finding.found, finding.advice)
        console().print(table)
    if lacking:
        raise Error(f"missing, broken or too small: {', '.join(lacking)}")
