"""The commands ``qgpu chat``, ``serve``, ``eval`` and ``trace``: options in, one call each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from qgpu.cli.options import json_option
from qgpu.cli.output import reply
from qgpu.cli.run import choose_backend
from qgpu.errors import UsageError
from qgpu.host.chat.device import MAX_SECONDS, MAX_TOKENS, Device
from qgpu.host.chat.modes import MODES
from qgpu.host.chat.session import DEFAULT_TRIES, Session
from qgpu.host.chat.source import ScriptedSource, TextSource
from qgpu.machine import SPECS


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options from which a session is made."""
    options = [
        click.option("--model", metavar="DIR", help="The merged checkpoint."),
        click.option("--interp", is_flag=True,
                     help="Compute in the interpreter; the text comes from --script."),
        click.option("--sparse", is_flag=True,
                     help="Compute in the circuit's weights alone; the text comes from --script."),
        click.option("--script", type=click.Path(path_type=Path, dir_okay=False),
                     help="Take the text from a JSON file of replies instead of the model."),
        click.option("--spec", "spec_name", type=click.Choice(sorted(SPECS)), default="reference",
                     show_default=True, help="The machine, where no model says it."),
        click.option("--check", is_flag=True, help="Replay every launch in the interpreter."),
        click.option("--thinking", is_flag=True, help="Let the model think before it answers."),
        click.option("--temperature", default=0.0, show_default=True,
                     help="0 takes the likeliest token."),
        click.option("--max-tokens", default=512, show_default=True,
                     help="Text tokens in one answer."),
        click.option("--launch-tokens", default=MAX_TOKENS, show_default=True,
                     help="Machine tokens in one launch."),
        click.option("--launch-seconds", default=MAX_SECONDS, show_default=True,
                     help="Seconds for one launch."),
        click.option("--tries", default=DEFAULT_TRIES, show_default=True,
                     help="How often a failed tool call may be mended."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def make_session(mode: str, options: dict[str, Any]) -> Session:
    """A session from the options of ``session_options``."""
    for name in ("max_tokens", "launch_tokens", "tries"):
        if options[name] < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
    backend = _backend(options)
    device = Device(
        backend, check=options["check"], max_tokens=options["launch_tokens"],
        max_seconds=options["launch_seconds"],
    )  # fmt: skip
    return Session(
        _source(options, backend), device, mode=mode, thinking=options["thinking"],
        max_tokens=options["max_tokens"], tries=options["tries"],
    )  # fmt: skip


def _backend(options: dict[str, Any]) -> Any:
    interp, sparse = options["interp"], options["sparse"]
    if (interp or sparse) and options["script"] is None:
        raise UsageError("only a model writes text: with --interp or --sparse, name a --script")
    return choose_backend(options["model"], interp, options["spec_name"], sparse=sparse)


def _source(options: dict[str, Any], backend: Any) -> TextSource:
    if options["script"] is not None:
        return ScriptedSource.load(options["script"])
    from qgpu.host.chat.model_text import ModelText

    return ModelText(backend, options["temperature"])


@click.command(epilog='Example:  qgpu chat --once "What is [1, 2, 3] dot [4, 5, 6]?" --check')
@click.option("--mode", type=click.Choice(MODES), default="normal", show_default=True,
              help="Expressions over stock kernels, or CUDA that the model writes.")  # fmt: skip
@session_options
@click.option("--once", metavar="QUESTION", help="Answer one question and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a turn, nothing else.")
def chat(mode: str, once: str | None, as_json: bool, **options: Any) -> int:
    """Ask in words; the model writes the calculation, its own weights compute it.

    Without a terminal on standard input, each line of it is a question.
    """
    from qgpu.host.chat.terminal import run

    return run(make_session(mode, options), once=once, as_json=as_json)


@click.command(epilog="Example:  qgpu serve --port 8000")
@session_options
@click.option("--port", default=8000, show_default=True, help="Port on loopback; 0 picks one.")
def serve(port: int, **options: Any) -> None:
    """Serve an OpenAI-compatible chat endpoint on loopback.

    The model names qgpu-normal and qgpu-advanced choose the mode.
    """
    from qgpu.host.serve import run

    run(make_session("normal", options), port)


@click.group("eval", epilog="Example:  qgpu eval chat --mode normal")
def eval_group() -> None:
    """Run the project's own questions."""


@eval_group.command("chat", epilog="Example:  qgpu eval chat --mode normal --json")
@click.option("--mode", type=click.Choice(MODES), default="normal", show_default=True)
@session_options
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N questions.")
@json_option
def eval_chat(mode: str, limit: int | None, as_json: bool, **options: Any) -> None:
    """Ask every question of the mode and count the exact answers."""
    from qgpu.host.evaluate_chat import evaluate, load_questions

    session = make_session(mode, options)
    report = evaluate(session, load_questions(mode)[:limit], progress=_progress(as_json))
    reply().update(report.as_json())
    if not as_json:
        click.echo(report.text())


def _progress(quiet: bool) -> Callable[[str], None]:
    if quiet or not sys.stderr.isatty():
        return lambda line: None
    return lambda line: click.echo(line, err=True)


@click.command(epilog="Example:  qgpu trace launch.json --html launch.html")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False),
              help="Write one self-contained page that steps through the launch.")  # fmt: skip
@click.option("--chrome", type=click.Path(path_type=Path, dir_okay=False),
              help="Write events for chrome://tracing or ui.perfetto.dev.")  # fmt: skip
@json_option
def trace(file: Path, html: Path | None, chrome: Path | None, as_json: bool) -> None:
    """Turn FILE, which `qgpu run --trace FILE` wrote, into something to look at."""
    from qgpu.host.trace import load_trace, write_chrome, write_html

    if html is None and chrome is None:
        raise UsageError("name --html FILE, --chrome FILE or both")
    data, known = load_trace(file), reply()
    known |= {"tokens": len(data["steps"]), "written": []}
    for path, write in ((html, write_html), (chrome, write_chrome)):
        if path is not None:
            write(path, data)
            known["written"].append(str(path))
            if not as_json:
                click.echo(f"{path}: {known['tokens']} tokens")
