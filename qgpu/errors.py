"""The errors a user can meet. Each carries the exit code that the command line returns for it."""

from __future__ import annotations

SHOWN_INSTRUCTION = 160  # characters of an instruction that a message repeats


class Error(Exception):
    """Base of every error that qgpu raises on purpose; its text is one clear line."""

    exit_code = 1


class UsageError(Error):
    """The call itself is wrong: an unknown kernel, a wrong argument count, a missing file."""

    exit_code = 2


class CompileError(Error):
    """The source cannot be compiled for this machine.

    ``file`` and ``line`` point at the source, ``instruction`` at the PTX, where there is one.
    """

    exit_code = 3

    def __init__(
        self,
        reason: str,
        *,
        file: str | None = None,
        line: int | None = None,
        instruction: str | None = None,
    ) -> None:
        self.reason, self.file, self.line, self.instruction = reason, file, line, instruction
        place = ":".join(str(part) for part in (file, line) if part is not None)
        text = f"{place}: {reason}" if place else reason
        if instruction:
            more = " ..." if len(instruction) > SHOWN_INSTRUCTION else ""
            text += f" [{instruction[:SHOWN_INSTRUCTION]}{more}]"
        super().__init__(text)


class LimitError(CompileError):
    """A kernel needs more of something than the machine has; says the limit and the need."""

    def __init__(self, what: str, need: int, limit: int) -> None:
        super().__init__(f"the kernel needs {need} {what}, the machine has {limit}")
        self.what, self.need, self.limit = what, need, limit


class LaunchError(Error):
    """The launch did not end as it should: token budget spent, malformed trace, trap."""


class DeadlockError(LaunchError):
    """No thread will ever go on; ``blocks`` are the machine blocks at which they are."""

    def __init__(self, blocks: tuple[int, ...], where: str = "") -> None:
        where = where or "at " + ", ".join(f"B{block}" for block in blocks)
        super().__init__(f"the threads go round in loops that wait, and none gets on: {where}")
        self.blocks = blocks


class CheckError(Error):
    """The weights and the reference interpreter disagree; names the first differing token."""


class CheckpointError(Error):
    """A model folder is missing, incomplete, or not a Qwen3.5 checkpoint that can be used."""


class NoModelError(CheckpointError):
    """There is no model folder where one was named: the call is wrong, no checkpoint is broken."""

    exit_code = 2
