"""Events of a conversation as terminal output: streaming text, launches, results, or JSON lines."""

from __future__ import annotations

import json
import sys
from typing import TextIO

from rich.console import Console
from rich.status import Status

from qgpu.host.chat.device import LaunchRecord
from qgpu.host.chat.modes import Outcome
from qgpu.host.chat.session import Answered, Called, Delta, Event, Launched, Thinking, Turn
from qgpu.host.chat.toolcall import ToolCall

# A model's text may hold terminal control sequences: only line ends and tabs pass.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
MARKS = {"ok": " check ok", "mismatch": " CHECK FAILED: the number is not used"}


def printable(text: str) -> str:
    return text.translate(_CONTROLS)


class Renderer:
    """Shows events on ``out``. Colours appear only where ``out`` is a terminal."""

    def __init__(self, out: TextIO, *, as_json: bool = False) -> None:
        self._json = as_json
        self.console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._at_line_start = True
        self._thinking = False
        self._status: Status | None = None

    def wait(self, what: str) -> None:
        """Show on a terminal that something is going on, until the next output."""
        if self.console.is_terminal and not self._json:
            self.done_waiting()
            self._fresh_line()
            self._status = self.console.status(what, spinner_style="dim")
            self._status.start()

    def done_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def show(self, event: Event) -> None:
        self.done_waiting()
        if self._json:
            if isinstance(event, Turn):
                self.console.file.write(json.dumps(event.as_json(), ensure_ascii=False) + "\n")
                self.console.file.flush()
            return
        match event:
            case Delta(text):
                self._stream(text, "")
            case Thinking(text):
                self._stream(text, "dim italic")
            case Called(call):
                self._show_call(call)
                self.wait("computing")
            case Launched(record):
                self.line(describe_launch(record), _launch_style(record))
            case Answered(outcome, _):
                self._show_outcome(outcome)
                self.wait("reading the result")
            case Turn():
                self._show_turn(event)

    def line(self, text: str, style: str = "") -> None:
        """A line of its own."""
        self.done_waiting()
        self._fresh_line()
        if not self._json:
            self.console.print(printable(text), style=style)

    def error(self, text: str) -> None:
        """An error outside a turn; under --json standard output holds only turns."""
        if self._json:
            print(printable(text), file=sys.stderr)
        else:
            self.line(text, "red")

    def _stream(self, text: str, style: str) -> None:
        thinking = bool(style)
        if thinking != self._thinking:
            self._fresh_line()
        self._thinking = thinking
        text = printable(text)
        if self._at_line_start:
            text = text.lstrip("\n")
        if not text:
            return
        self.console.print(text, style=style, end="")
        self.console.file.flush()
        self._at_line_start = text.endswith("\n")

    def _fresh_line(self) -> None:
        if not self._at_line_start:
            self.console.print()
        self._at_line_start = True

    def _show_call(self, call: ToolCall) -> None:
        if call.problem:
            self.line(f"  {call.problem}", "yellow")
        elif "source" in call.arguments:
            launch = ", ".join(
                f"{key} {' '.join(call.arguments[key].split())}"
                for key in ("grid", "block", "args")
                if key in call.arguments
            )
            self.line(call.arguments["source"], "cyan")
            self.line(f"  launch: {launch}", "cyan")
        else:
            self.line(f"  {call.arguments.get('expression', call.name)}", "cyan")

    def _show_outcome(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            again = ", the model tries again" if outcome.retry else ""
            self.line(f"  {outcome.error}{again}", "yellow")
            return
        if "ptx_bytes" in outcome.details:
            self.line(f"  PTX: {outcome.details['ptx_bytes']} bytes", "dim")
        for shown in outcome.content.splitlines():
            self.line(f"  = {shown}" if not shown.startswith("note: ") else f"  {shown}", "green")

    def _show_turn(self, turn: Turn) -> None:
        self._fresh_line()
        if turn.stopped:
            self.line("(stopped)", "yellow")
        if turn.error:
            self.line(f"no result: {turn.error}", "red")
        elif turn.check == "mismatch":
            self.line("a launch of this turn failed its check", "red")


def describe_launch(record: LaunchRecord) -> str:
    place = "in the weights" if record.backend == "weights" else "in the interpreter"
    if record.check == "mismatch":
        return f"  {record.kernel} {place}:{MARKS['mismatch']}"
    blocks = "1 block" if record.exec_tokens == 1 else f"{record.exec_tokens} blocks"
    return (
        f"  {record.kernel} {place}: {record.tokens} tokens, {blocks} run, "
        f"{record.seconds:.2f} s{MARKS.get(record.check or '', '')}"
    )


def _launch_style(record: LaunchRecord) -> str:
    return "red" if record.check == "mismatch" else "dim"
