"""Races in shared and global memory, by the happens-before order of the threads of a launch.

Every thread has a vector clock. A barrier joins the clocks of the threads that it lets go on (and
of those that have ended), a warp barrier those of its lanes. Strong accesses (atomics, and what PTX
has as volatile, relaxed, acquire or release) order threads by the word that they touch: who reads
it comes after whoever wrote it strongly before, so a lock or a flag orders what it guards. Strong
accesses do not race with each other, nor do two writes of the same value, nor in global memory a
plain read with an atomic (so begins the usual loop around atomicCAS). Whether a fence stands where
hardware needs one is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from qgpu.ptxir import Inst

STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})
Clock = dict[int, int]  # thread of the launch -> the last of its times that is known


@dataclass
class _Byte:
    """Who wrote and read one byte, when, and how."""

    writer: int | None = None
    written: int = 0
    by_strong: bool = False
    inst: Inst | None = None
    value: int = 0
    readers: dict[int, tuple[int, bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Touch:
    """One access. ``value`` are the bytes that it writes, None for a read."""

    thread: int
    space: str
    address: int
    size: int
    value: bytes | None
    inst: Inst

    @property
    def is_atomic(self) -> bool:
        return self.inst.opcode[0] in ("atom", "red")

    @property
    def is_strong(self) -> bool:
        return self.is_atomic or not STRONG.isdisjoint(self.inst.opcode)


class Races:
    """``name`` names a thread, ``line`` the line of an instruction."""

    def __init__(self, name: Callable[[int], str], line: Callable[[Inst], int]) -> None:
        self.name, self.line = name, line
        self.clocks: dict[int, Clock] = {}
        self.words: dict[tuple[str, int], Clock] = {}
        self.bytes: dict[tuple[str, int], _Byte] = {}

    def begin_block(self, threads: Iterable[int]) -> None:
        """Other threads from here on, and other shared memory."""
        self.clocks = {thread: {thread: 1} for thread in threads}
        self.words = {word: clock for word, clock in self.words.items() if word[0] != "shared"}
        self.bytes = {at: byte for at, byte in self.bytes.items() if at[0] != "shared"}

    def join(self, threads: Sequence[int], ended: Sequence[int] = ()) -> None:
        """What any of the threads did is before what each of ``threads`` does next."""
        newest: Clock = {}
        for thread in (*threads, *ended):
            _advance(newest, self.clocks[thread])
        for thread in threads:
            self.clocks[thread] = dict(newest)
            self._tick(thread)

    def _tick(self, thread: int) -> None:
        self.clocks[thread][thread] += 1

    def _synchronise(self, touch: Touch) -> None:
        word, mine = (touch.space, touch.address), self.clocks[touch.thread]
        if touch.value is None or touch.is_atomic:
            _advance(mine, self.words.get(word, {}))
        if touch.value is not None or touch.is_atomic:
            _advance(self.words.setdefault(word, {}), mine)
            self._tick(touch.thread)

    def is_unwritten(self, touch: Touch) -> bool:
        """Whether nobody has written any of the bytes."""
        return all(byte.writer is None for byte in self._span(touch))

    def _span(self, touch: Touch) -> list[_Byte]:
        places = range(touch.address, touch.address + touch.size)
        return [self.bytes.setdefault((touch.space, at), _Byte()) for at in places]

    def access(self, touch: Touch) -> str | None:
        """Follow one access; what it races with, if it does."""
        span = self._span(touch)
        if touch.is_strong:
            self._synchronise(touch)
        found = (self._race(touch, byte, n) for n, byte in enumerate(span))
        message = next(filter(None, found), None)
        now = self.clocks[touch.thread][touch.thread]
        for n, byte in enumerate(span):
            if touch.value is not None:
                byte.writer, byte.written, byte.by_strong = touch.thread, now, touch.is_strong
                byte.inst, byte.value = touch.inst, touch.value[n]
                byte.readers.clear()
            elif not touch.is_atomic:
                byte.readers[touch.thread] = now, touch.is_strong
        return message

    def _race(self, touch: Touch, byte: _Byte, n: int) -> str | None:
        """What another thread did to the byte that nothing orders before this access."""
        seen, writer = self.clocks[touch.thread], byte.writer
        is_same = touch.value is not None and touch.value[n] == byte.value
        verb = "read" if touch.value is None else "written"
        is_free = byte.by_strong and (touch.is_strong or _reads_freely(touch))
        if writer not in (None, touch.thread) and not is_free:
            assert writer is not None and byte.inst is not None
            if seen.get(writer, 0) < byte.written and not is_same:
                return (
                    f"{touch.space} memory is {verb} that {self.name(writer)} wrote at line "
                    f"{self.line(byte.inst)} with no barrier between"
                )
        if touch.value is None:
            return None
        for reader, (when, is_strong) in byte.readers.items():
            is_free = touch.is_strong and (is_strong or touch.space == "global")
            is_ordered = seen.get(reader, 0) >= when or is_free
            if reader != touch.thread and not is_ordered and not is_same:
                return (
                    f"{touch.space} memory is written that {self.name(reader)} read with no "
                    "barrier between"
                )
        return None


def _reads_freely(touch: Touch) -> bool:
    """Whether strong writes do not matter to the access: it sees the word before or after them."""
    return touch.space == "global" and touch.value is None


def _advance(clock: Clock, other: Clock) -> None:
    for thread, time in other.items():
        if clock.get(thread, 0) < time:
            clock[thread] = time
