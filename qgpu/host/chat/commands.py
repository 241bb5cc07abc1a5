"""The commands of the chat's prompt: ``/mode``, ``/check``, ``/trace``, ``/save`` and so on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qgpu.errors import Error, UsageError
from qgpu.host.chat.modes import MODES
from qgpu.host.chat.session import Session, Turn


@dataclass(frozen=True)
class Command:
    usage: str
    doc: str
    run: Callable[[Session, str], str]


def _switch(argument: str, now: bool) -> bool:
    if argument in ("", "on", "off"):
        return not now if not argument else argument == "on"
    raise UsageError(f"on or off, not {argument}")


def _mode(session: Session, argument: str) -> str:
    if argument:
        if argument not in MODES:
            raise UsageError(f"there is no mode {argument}; there are {', '.join(MODES)}")
        session.mode = argument
    return f"mode: {session.mode}"


def _check(session: Session, argument: str) -> str:
    session.device.check = _switch(argument, session.device.check)
    return f"check: {'on' if session.device.check else 'off'}"


def _thinking(session: Session, argument: str) -> str:
    session.thinking = _switch(argument, session.thinking)
    return f"thinking: {'on' if session.thinking else 'off'}"


def _trace(session: Session, argument: str) -> str:
    from qgpu.host.trace import write_page, write_trace

    records = [r for r in session.device.records if r.result is not None]
    if not records:
        raise UsageError("there is no launch yet to trace")
    last = records[-1]
    assert last.result is not None and last.compiled is not None
    path = Path(argument or "trace.html").expanduser()
    write = write_page if path.suffix == ".html" else write_trace
    write(path, last.compiled, last.result)
    return f"{last.kernel}: {last.tokens} tokens written to {path}"


def _save(session: Session, argument: str) -> str:
    if not session.turns:
        raise UsageError("there is nothing to save yet")
    path = Path(argument or "chat.md").expanduser()
    if path.suffix == ".json":
        text = json.dumps([turn.as_json() for turn in session.turns], indent=1, ensure_ascii=False)
    else:
        text = "\n\n".join(map(_as_markdown, session.turns))
    path.write_text(text + "\n", encoding="utf-8")
    return f"{len(session.turns)} turns written to {path}"


def _as_markdown(turn: Turn) -> str:
    lines = [f"**{turn.question}**"]
    for use in turn.uses:
        code = use.outcome.details.get("source") or use.outcome.details.get("expression", "")
        lines.append(f"```\n{code}\n```\n`{use.outcome.content}`")
    return "\n\n".join([*lines, turn.answer or f"(no answer: {turn.error})"])


def _reset(session: Session, argument: str) -> str:
    session.reset()
    return "the conversation starts over"


def _help(session: Session, argument: str) -> str:
    width = max(len(command.usage) for command in COMMANDS.values())
    rows = [f"  {command.usage:<{width}}  {command.doc}" for command in COMMANDS.values()]
    keys = "Enter sends, Alt+Enter starts a new line, Ctrl-C stops a generation, Ctrl-D ends."
    return "\n".join([*rows, keys])


COMMANDS = {
    "mode": Command("/mode [normal|advanced]", "expressions, or kernels the model writes", _mode),
    "check": Command("/check [on|off]", "replay every launch in the interpreter", _check),
    "thinking": Command("/thinking [on|off]", "let the model think before it answers", _thinking),
    "trace": Command("/trace [FILE]", "the last launch as a page (.html) or as JSON", _trace),
    "save": Command("/save [FILE]", "the conversation as Markdown or JSON", _save),
    "reset": Command("/reset", "forget the conversation", _reset),
    "help": Command("/help", "this list", _help),
    "quit": Command("/quit", "end", lambda session, argument: ""),
}


def run_command(session: Session, line: str) -> str:
    """Run ``/name argument``; what to show. Errors are qgpu.Error with one line."""
    name, _, argument = line[1:].strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"there is no command /{name}; /help lists them")
    try:
        return command.run(session, argument.strip())
    except OSError as error:
        raise Error(f"cannot write {error.filename or argument}: {error.strerror}") from None
