"""The terminal program: what it prints, commands, scripts, interruption, the prompt's keys."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import qgpu
from qgpu.cli import main
from qgpu.host.chat.commands import run_command
from qgpu.host.chat.device import Device
from qgpu.host.chat.render import Renderer, printable
from qgpu.host.chat.session import Session
from qgpu.host.chat.source import Request, ScriptedSource, Usage
from qgpu.host.chat.terminal import Terminal, _key_bindings
from qgpu.machine import SMALL
from tests.chat.test_session import Lying, call

SCRIPT = {
    "2 + 3?": [call("2 + 3"), "2 + 3 is 5."],
    "Hi": ["Hello!\x1b[31m\x07 there"],
    "Half?": [call("1 / 2"), "I cannot say."],
}


def session(**options: Any) -> Session:
    return Session(ScriptedSource(SCRIPT), Device(qgpu.Interpreter(SMALL), check=True), **options)


def shown(question: str, base: Session | None = None) -> str:
    out = io.StringIO()
    Terminal(base or session(), Renderer(out)).ask(question)
    return out.getvalue()


def test_a_turn_on_paper() -> None:
    lines = shown("2 + 3?").splitlines()
    assert lines[0] == "  2 + 3"
    assert lines[1].startswith("  add in the interpreter: ")
    assert lines[1].endswith(" s check ok")
    assert lines[2:] == ["  = 5", "2 + 3 is 5."]


def test_no_colour_and_no_control_sequences() -> None:
    """Nothing that a model writes reaches the terminal as a command to it."""
    assert shown("Hi") == "Hello![31m there\n"
    assert printable("a\x9b\x1b]0;title\x07\tb\nc\r") == "a]0;title\tb\nc"


def test_an_error_is_shown() -> None:
    text = shown("Half?")
    assert "  / would give a fraction: use // for the quotient and % for the remainder" in text
    assert text.splitlines()[-1].startswith("no result: / would give")


def test_a_mismatch_is_shown() -> None:
    chat = session()
    chat.device.backend = Lying(SMALL)
    text = shown("2 + 3?", chat)
    assert "add in the weights: CHECK FAILED: the number is not used" in text
    assert "  = 5" not in text
    assert "no result: check failed" in text


def test_a_kernel_is_shown() -> None:
    source = 'extern "C" __global__ void k(int *out) { out[0] = 6 * 7; }'
    reply = (
        f"<tool_call><function=run_cuda><parameter=source>\n{source}\n</parameter>"
        "<parameter=block>1</parameter><parameter=args>zeros:1</parameter></function></tool_call>"
    )
    chat = Session(ScriptedSource([reply, "42"]), Device(qgpu.Interpreter()), mode="advanced")
    lines = shown("?", chat).splitlines()
    assert lines[:2] == [source, "  launch: block 1, args zeros:1"]
    assert any(line.startswith("  PTX: ") for line in lines)
    assert "  = args[0] = [42]" in lines


# --- commands -------------------------------------------------------------------------------------


def test_commands(tmp_path: Path) -> None:
    chat = session()
    assert run_command(chat, "/mode") == "mode: normal"
    assert run_command(chat, "/mode advanced") == "mode: advanced"
    assert chat.mode == "advanced"
    assert run_command(chat, "/mode normal") == "mode: normal"
    assert run_command(chat, "/check off") == "check: off"
    assert run_command(chat, "/check") == "check: on"
    assert run_command(chat, "/thinking on") == "thinking: on"
    assert chat.thinking
    listing = run_command(chat, "/help")
    for name in ("/mode", "/check", "/trace", "/save", "/help", "Ctrl-C"):
        assert name in listing


def test_save_and_trace(tmp_path: Path) -> None:
    chat = session()
    with pytest.raises(qgpu.Error, match="nothing to save"):
        run_command(chat, "/save")
    with pytest.raises(qgpu.Error, match="no launch yet"):
        run_command(chat, "/trace")
    list(chat.ask("2 + 3?"))
    run_command(chat, f"/save {tmp_path / 'chat.md'}")
    assert "**2 + 3?**" in (tmp_path / "chat.md").read_text()
    assert "2 + 3 is 5." in (tmp_path / "chat.md").read_text()
    run_command(chat, f"/save {tmp_path / 'chat.json'}")
    assert json.loads((tmp_path / "chat.json").read_text())[0]["value"] == 5
    line = run_command(chat, f"/trace {tmp_path / 't.html'}")
    assert line.startswith("add: ") and line.endswith(f"tokens written to {tmp_path / 't.html'}")
    assert "gpu_exec" in (tmp_path / "t.html").read_text()
    run_command(chat, f"/trace {tmp_path / 't.json'}")
    assert json.loads((tmp_path / "t.json").read_text())["kernel"] == "add"
    run_command(chat, "/reset")
    assert chat.history == []


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/nope", "there is no command /nope; /help lists them"),
        ("/mode x", "there is no mode x; there are normal, advanced"),
        ("/check maybe", "on or off, not maybe"),
        ("/", "there is no command /; /help lists them"),
    ],
)
def test_bad_commands(line: str, error: str) -> None:
    with pytest.raises(qgpu.Error) as problem:
        run_command(session(), line)
    assert str(problem.value) == error


def test_a_folder_that_is_not_there() -> None:
    chat = session()
    list(chat.ask("2 + 3?"))
    for command in ("/save", "/trace"):
        with pytest.raises(qgpu.Error, match=r"cannot write /no/such/x: No such file"):
            run_command(chat, f"{command} /no/such/x")


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(SCRIPT))
    return str(path)


def invoke(*args: str, stdin: str = "") -> Any:
    return CliRunner().invoke(main, ["chat", "--interp", *args], input=stdin)


def test_once(script: str) -> None:
    done = invoke("--script", script, "--once", "2 + 3?")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "2 + 3 is 5."


def test_once_as_json(script: str) -> None:
    done = invoke("--script", script, "--once", "2 + 3?", "--json", "--check")
    data = json.loads(done.stdout)
    assert (data["value"], data["answer"], data["check"]) == (5, "2 + 3 is 5.", "ok")


def test_standard_input(script: str) -> None:
    done = invoke("--script", script, "--json", stdin="2 + 3?\n\nHi\n/quit\nHalf?\n")
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert [turn["question"] for turn in turns] == ["2 + 3?", "Hi"]
    assert done.exit_code == 0


def test_failures_show_in_the_exit_code(script: str) -> None:
    assert invoke("--script", script, "--once", "Half?").exit_code == 1
    assert invoke("--script", script, stdin="Hi\n/mode x\n").exit_code == 1
    missing = invoke("--once", "Hi")
    assert missing.exit_code == 2
    assert missing.stderr == (
        "error: only a model writes text: with --interp or --sparse, name a --script\n"
    )
    assert invoke("--script", "/no/such.json", "--once", "x").exit_code == 2
    assert invoke("--script", script, "--tries", "0", "--once", "x").exit_code == 2


def test_eval_on_the_command_line(tmp_path: Path) -> None:
    from tests.chat.test_evaluate import perfect

    path = tmp_path / "perfect.json"
    path.write_text(json.dumps(perfect("normal")))
    args = ["eval", "chat", "--interp", "--script", str(path), "--limit", "3"]
    assert CliRunner().invoke(main, args).stdout.startswith("3/3 normal, text from script")
    data = json.loads(CliRunner().invoke(main, [*args, "--json"]).stdout)
    assert (data["passed"], data["total"]) == (3, 3)


def test_trace_on_the_command_line(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "01_dot.cu"
    launch, page, chrome = (str(tmp_path / n) for n in ("l.json", "l.html", "c.json"))
    run = ["run", str(example), "--block", "3", "--arg", "[1,2,3]", "--arg", "[4,5,6]",
           "--arg", "zeros:1", "--interp", "--trace", launch]  # fmt: skip
    assert CliRunner().invoke(main, run).exit_code == 0
    done = CliRunner().invoke(main, ["trace", launch, "--html", page, "--chrome", chrome])
    assert done.exit_code == 0, done.output
    assert "atomicAdd(out, a[i] * b[i])" in Path(page).read_text()
    assert json.loads(Path(chrome).read_text())["traceEvents"]
    assert CliRunner().invoke(main, ["trace", launch]).exit_code == 2


# --- interruption ---------------------------------------------------------------------------------


class Interrupted:
    """A source that gets a Ctrl-C while it writes."""

    name, usage = "interrupted", Usage()

    def __init__(self, presses: int) -> None:
        self.presses = presses

    def generate(self, request: Request) -> Iterator[str]:
        yield "begin "
        for _ in range(self.presses):
            os.kill(os.getpid(), signal.SIGINT)
        if not request.stop():
            yield "never"


@pytest.mark.parametrize(("presses", "mark"), [(1, "(stopped)"), (2, "(broken off)")])
def test_ctrl_c_stops_the_generation_only(presses: int, mark: str) -> None:
    chat = Session(Interrupted(presses), Device(qgpu.Interpreter(SMALL)))
    before = signal.getsignal(signal.SIGINT)
    lines = shown("?", chat).splitlines()
    assert lines == ["begin ", mark]
    assert signal.getsignal(signal.SIGINT) is before


def test_keys_at_the_prompt() -> None:
    """Enter sends, Escape and Enter start a new line."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    with create_pipe_input() as keys:
        prompt: PromptSession[str] = PromptSession(
            multiline=True, key_bindings=_key_bindings(), input=keys, output=DummyOutput()
        )
        keys.send_text("one\x1b\rtwo\r")
        assert prompt.prompt("> ") == "one\ntwo"


def test_in_a_real_terminal(script: str, tmp_path: Path) -> None:
    """Ask, press Ctrl-C at the prompt, ask again from history, end with Ctrl-D."""
    parent, child = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm",
                   "PROMPT_TOOLKIT_NO_CPR": "1"}  # fmt: skip
    command = [sys.executable, "-m", "qgpu", "chat", "--interp", "--script", script]
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
    )
    os.close(child)
    screen = Screen(parent)
    try:
        screen.wait_for("normal>")
        os.write(parent, b"2 + 3?\r")
        screen.wait_for("2 + 3 is 5.")
        screen.wait_for("normal>")
        os.write(parent, b"half a question\x03")
        screen.wait_for("normal>")
        os.write(parent, b"\x1b[A\r")  # the line before, by the up key
        screen.wait_for("2 + 3 is 5.")
        screen.wait_for("normal>")
        os.write(parent, b"\x04")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert "2 + 3?" in (tmp_path / "qgpu" / "chat_history").read_text()


class Screen:
    """What a program under a pseudo-terminal writes, read up to expected texts."""

    def __init__(self, terminal: int) -> None:
        self.terminal, self.rest = terminal, ""

    def wait_for(self, text: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while text not in self.rest:
            ready, _, _ = select.select([self.terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self.rest!r}"
            self.rest += os.read(self.terminal, 4096).decode(errors="replace")
        self.rest = self.rest.partition(text)[2]
