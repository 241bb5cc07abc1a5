"""Fair turns for the PTX interpreter: a thread that waits in a loop lets the others go on.

As on NVIDIA hardware since Volta, every thread that can run does so eventually. A thread that goes
round a loop and finds the same in memory again and again (a spin lock, a flag, a ticket) rests,
and so does one that has had a long turn. Those that rest are passed over until no thread of the
block is awake; then all of them are. A program without such loops runs as if there were no rests.
"""

from __future__ import annotations

PATIENCE = 16  # equal rounds in a row before a thread rests
LONG_TURN = 10_000  # instructions of one turn
LOG_ENTRIES = 512

# (space, address, bytes, value, is a write)
Access = tuple[str, int, int, int, bool]


class Rounds:
    """What one thread reads and writes in memory that it shares, loop round by loop round."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.log: list[Access] = []
        self.begun: dict[int, int] = {}  # for each jump back: where in the log its round began
        self.before: dict[int, list[Access]] = {}  # and the round before
        self.equal: dict[int, int] = {}  # equal rounds in a row

    def note(self, access: Access) -> None:
        if len(self.log) >= LOG_ENTRIES:
            self._forget()
        self.log.append(access)

    def jump_back(self, pc: int) -> bool:
        """A jump back at ``pc`` ends a round; whether the thread seems to wait in this loop."""
        this = self.log[self.begun.get(pc, 0) :]
        if not this:
            return False  # a loop that counts: it waits for nobody
        is_equal = self.before.get(pc) == this
        self.equal[pc] = self.equal.get(pc, 0) + 1 if is_equal else 0
        self.begun[pc], self.before[pc] = len(self.log), this
        return self.equal[pc] >= PATIENCE


class Turn:
    """The instructions that were executed since a thread last had to rest.

    A turn is one instruction longer than the one before, so that two threads that take turns do
    not meet at the same places for ever.
    """

    def __init__(self) -> None:
        self.limit = self.left = LONG_TURN

    def is_over(self) -> bool:
        self.left -= 1
        if self.left:
            return False
        self.limit += 1
        self.left = self.limit
        return True
