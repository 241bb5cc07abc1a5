"""The chat in a terminal: prompt, streaming, Ctrl-C, and the same loop over standard input."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from qgpu.errors import Error
from qgpu.host.chat.commands import COMMANDS, run_command
from qgpu.host.chat.render import Renderer
from qgpu.host.chat.session import Session, Turn

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

WELCOME = "Ask something with numbers in it. /help lists the commands, Ctrl-D ends."


def history_path() -> Path:
    """Where typed lines are kept between runs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "qgpu" / "chat_history"


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within it, the first Ctrl-C makes the yielded question true; the second one interrupts."""
    pressed = threading.Event()

    def press(signum: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


class Terminal:
    """A session shown by a renderer."""

    def __init__(self, session: Session, renderer: Renderer) -> None:
        self.session, self.renderer = session, renderer
        self.failed = False  # a turn or a command ended in an error

    def ask(self, question: str) -> None:
        """One turn, shown as it happens."""
        turn: Turn | None = None
        self.renderer.wait("reading")
        try:
            with interruptible() as stop:
                for event in self.session.ask(question, stop):
                    self.renderer.show(event)
                    if isinstance(event, Turn):
                        turn = event
        except KeyboardInterrupt:
            self.renderer.line("(broken off)", "yellow")
        finally:
            self.renderer.done_waiting()
        self.failed |= turn is None or turn.error is not None

    def handle(self, line: str) -> bool:
        """A line of input, a question or a command; false when it ends the chat."""
        line = line.strip()
        if not line:
            return True
        if line in ("/quit", "/exit"):
            return False
        try:
            if line.startswith("/"):
                self.renderer.line(run_command(self.session, line), "dim")
            else:
                self.ask(line)
        except Error as error:
            self.failed = True
            self.renderer.error(f"error: {error}")
        return True

    def interactive(self) -> None:
        """Until Ctrl-D or /quit."""
        prompt = _prompt_session()
        self.renderer.line(WELCOME, "dim")
        while True:
            try:
                line = prompt.prompt(f"{self.session.mode}> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if not self.handle(line):
                return

    def script(self, lines: TextIO) -> int:
        """Each line of ``lines`` a question or a command; the exit code."""
        for line in lines:
            if not self.handle(line):
                break
        return int(self.failed)


def _prompt_session() -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    path = history_path()
    history: History
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        history = FileHistory(str(path))
    except OSError:
        history = InMemoryHistory()
    return PromptSession(
        history=history,
        multiline=True,
        key_bindings=_key_bindings(),
        completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
        complete_while_typing=False,
        prompt_continuation="... ",
    )


def _key_bindings() -> KeyBindings:
    """Enter sends; Alt+Enter (Escape, then Enter) starts a new line."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def run(session: Session, *, once: str | None, as_json: bool) -> int:
    """The whole program: one question, standard input, or the prompt. Returns the exit code."""
    terminal = Terminal(session, Renderer(sys.stdout, as_json=as_json))
    if once is not None:
        terminal.ask(once)
        return int(terminal.failed)
    if not sys.stdin.isatty():
        return terminal.script(sys.stdin)
    terminal.interactive()
    return 0
