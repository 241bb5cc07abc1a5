"""A launch as something to look at: a JSON trace, one self-contained page, Chrome trace events.

The JSON holds every token with what it changed, so that the page only replays differences. What
happened inside a machine block (results, guards, addresses) never becomes a token unless it is
written back: it comes from a replay in the interpreter and is left out from the first token on
that the backend wrote differently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from qgpu.errors import Error, UsageError
from qgpu.host.launch import Result
from qgpu.host.layers import layer_map
from qgpu.host.names import plain_name
from qgpu.host.program import Kernel
from qgpu.interp.machine import Machine, StageEvent
from qgpu.isa import Register
from qgpu.kernel import Lowered
from qgpu.machine import WORD_BYTES, MachineSpec
from qgpu.tokens import (
    HEADER_KINDS,
    Barrier,
    Exec,
    Halt,
    Mem,
    Resume,
    Sign,
    Token,
    Uniform,
    Val,
    lanes_of,
    name_of,
    read_value,
)

FORMAT = "qgpu-trace-1"
PAGE = Path(__file__).with_name("trace.html")
PLACEHOLDER = "__TRACE__"
Change = list[Any]  # ["r", warp, lane, register, before, after] or ["m", word, before, after]


@dataclass
class _Replay:
    """Tokens turned back into registers and memory, one token at a time."""

    spec: MachineSpec
    lowered: Lowered
    memory: list[int]
    registers: dict[tuple[int, int, int], int] = field(default_factory=dict)
    header: Token | None = None
    last_exec: Exec | None = None
    value: list[Token] = field(default_factory=list)

    def feed(self, token: Token) -> list[Change]:
        """What the token changes."""
        if isinstance(token, (Val, Uniform, Sign)):
            if self.value and _slot(self.value[-1]) != token.slot:
                self.value = []
            self.value.append(token)
            return list(self._store_value(token.slot))
        self.value = []
        if isinstance(token, HEADER_KINDS):
            self.header = token
        if isinstance(token, Exec):
            self.last_exec = token
        return []

    def _store_value(self, slot: int) -> Iterator[Change]:
        words = read_value(self.spec, self.value)
        if isinstance(self.header, Mem):
            lanes = lanes_of(self.header.mask)
            for lane in lanes:
                yield from self._set_memory(self.header.address + lane - lanes[0], words[lane])
        elif self.last_exec is not None:
            instructions = self.lowered.blocks[self.last_exec.block].instructions
            if slot < len(instructions) and instructions[slot].dst:
                for lane in lanes_of(self.last_exec.mask):
                    yield from self._set_register(lane, instructions[slot].dst, words[lane])

    def _set_register(self, lane: int, register: int, word: int) -> Iterator[Change]:
        assert self.last_exec is not None
        place = self.last_exec.warp, lane, register
        before = self.registers.get(place, 0)
        self.registers[place] = word
        yield ["r", *place, before, word]

    def _set_memory(self, address: int, word: int) -> Iterator[Change]:
        if address < len(self.memory):
            before, self.memory[address] = self.memory[address], word
            yield ["m", address, before, word]


def _slot(token: Token) -> int:
    assert isinstance(token, (Val, Uniform, Sign))
    return token.slot


def _lanes_text(mask: int) -> str:
    lanes = lanes_of(mask)
    return f"lane{'s' if len(lanes) > 1 else ''} {' '.join(map(str, lanes))}"


def _say(replay: _Replay, token: Token) -> str:
    """The token in words, in its place."""
    match token:
        case Exec(block, warp, mask):
            return f"run B{block} on warp {warp}, {_lanes_text(mask)}"
        case Mem(address, mask):
            return f"store to word {address} from {_lanes_text(mask)}"
        case Barrier():
            return "every living thread has arrived: the barrier opens"
        case Resume():
            return "no other thread can go on: those that yielded do"
        case Halt():
            return "no thread lives: the launch has ended"
    if isinstance(replay.header, Mem):
        return "the words stored: " + _say_value(token)
    instructions = replay.lowered.blocks[replay.last_exec.block].instructions \
        if replay.last_exec else ()  # fmt: skip
    slot = _slot(token)
    register = f"r{instructions[slot].dst}" if slot < len(instructions) else f"slot {slot}"
    return f"{register} = result of stage {slot}: {_say_value(token)}"


def _say_value(token: Token) -> str:
    match token:
        case Uniform(_, fill, byte, payload):
            sign = ", negative" if fill else ""
            return f"byte {byte} is {payload} in every lane{sign}"
        case Sign(_, mask):
            return f"negative in {_lanes_text(mask)}"
        case Val(_, piece, payload):
            return f"bits {2 * piece} and {2 * piece + 1} of each lane ({payload:#x})"
    return str(token)


def _steps(trace: Sequence[Token], replay: _Replay, inside: _Inside) -> list[dict[str, Any]]:
    steps = []
    for token in trace:
        changes = replay.feed(token)
        step: dict[str, Any] = {
            "token": name_of(token), "kind": type(token).__name__, "say": _say(replay, token),
            "fields": list(astuple(token)), "changes": changes,
        }  # fmt: skip
        step |= inside.of(token)
        steps.append(step)
    return steps


class _Inside:
    """What the interpreter sees inside each machine block, as long as it agrees with the trace."""

    def __init__(self, result: Result) -> None:
        job = result.job
        self._events: list[StageEvent] = []
        self._machine = Machine(job.spec, job.blocks, self._events.append)
        self._expected = self._machine.iter_tokens(
            job.memory, job.n_threads, max_tokens=len(result.trace)
        )
        self.agrees = True

    def of(self, token: Token) -> dict[str, Any]:
        if not self.agrees:
            return {}
        self._events.clear()
        try:
            self.agrees = next(self._expected, None) == token
        except Error:
            self.agrees = False
        if not self.agrees or not isinstance(token, Exec):
            return {} if self.agrees else {"differs": True}
        return {
            "stages": [_stage_json(event) for event in self._events],
            "next": [self._goes(token.warp, lane) for lane in lanes_of(token.mask)],
        }

    def _goes(self, warp: int, number: int) -> str:
        lane = self._machine.lanes[warp][number]
        if not lane.alive:
            return "exit"
        before = "barrier, then " if lane.waiting else "yielded, then " if lane.yielded else ""
        return f"{before}B{lane.pc}"


def _stage_json(event: StageEvent) -> dict[str, Any]:
    out: dict[str, Any] = {"results": [int(word) for word in event.results]}
    if event.instruction.guard is not None:
        out["guard"] = [bool(on) for on in event.guard]
    if event.addresses:
        out["addresses"] = [int(address) for address in event.addresses]
    return out


def _blocks(lowered: Lowered, file: str) -> list[dict[str, Any]]:
    """The machine blocks as text, with the lines of the CUDA and of the PTX that each stage came
    from. What was inlined from another file than the source shown has no line in it."""
    out = []
    for index, block in enumerate(lowered.blocks):
        sources = dict(enumerate(lowered.sources[index] if lowered.sources else []))
        lines = dict(enumerate(lowered.ptx_lines[index] if lowered.ptx_lines else []))
        guards = [i.guard.source for i in block.instructions if i.guard is not None]
        if block.branch is not None:
            guards.append(block.branch.source)
        out.append({
            "stages": [
                {"text": str(i), "line": _line_in(file, sources.get(s)), "ptx": lines.get(s)}
                for s, i in enumerate(block.instructions)
            ],
            "branch": f"{block.branch} -> {block.taken}" if block.branch else None,
            "target": str(block.target),
            "predicates": sorted({g.index for g in guards if isinstance(g, Register)}),
        })  # fmt: skip
    return out


def _line_in(file: str, source: tuple[str, int] | None) -> int | None:
    if source is None or PurePath(source[0]).name != PurePath(file).name:
        return None
    return source[1]


def _arguments(kernel: Kernel, result: Result) -> list[dict[str, Any]]:
    """The kernel's arguments: where arrays lie and what they hold afterwards."""
    rows: list[dict[str, Any]] = []
    for index, (param, value) in enumerate(zip(kernel.params, result.args, strict=True)):
        bits = result.shape.params[index]
        row: dict[str, Any] = {"name": _param_name(kernel, param.name, index)}
        if value is None:
            row["scalar"] = bits
        else:
            row |= {"word": bits // WORD_BYTES, "words": -(-value.nbytes // WORD_BYTES),
                    "dtype": value.dtype.name, "after": value.ravel().tolist()}  # fmt: skip
        rows.append(row)
    return rows


def _param_name(kernel: Kernel, name: str, index: int) -> str:
    """PTX names parameters ``dot_param_0``; the number is what people need."""
    return f"arg {index}" if name.startswith(kernel.name) else name


def trace_json(kernel: Kernel, result: Result) -> dict[str, Any]:
    """The whole trace of one launch."""
    job, lowered, program = result.job, result.lowered, kernel.program
    memory = list(job.memory) + [0] * (job.spec.n_words - len(job.memory))
    replay = _Replay(job.spec, lowered, list(memory))
    return {
        "format": FORMAT,
        "kernel": plain_name(kernel.name), "backend": result.backend, "check": result.check,
        "seconds": result.seconds, "spec": asdict(job.spec),
        "grid": list(result.shape.grid), "block": list(result.shape.block),
        "n_threads": job.n_threads, "fed": len(job.prompt()),
        "arguments": _arguments(kernel, result),
        "source": {"kind": program.kind, "file": program.file, "text": program.source},
        "ptx": program.ptx, "blocks": _blocks(lowered, program.file),
        "n_registers": lowered.n_registers,
        "n_words": lowered.n_words, "memory": memory,
        "steps": _steps(result.trace, replay, _Inside(result)),
        "layers": layer_map(job.spec),
    }  # fmt: skip


# --- files ----------------------------------------------------------------------------------------


def write_trace(path: Path, kernel: Kernel, result: Result) -> None:
    """Write the launch as JSON, for ``qgpu trace``."""
    _write(path, json.dumps(trace_json(kernel, result)) + "\n")


def write_page(path: Path, kernel: Kernel, result: Result) -> None:
    """Write the launch as a page at once."""
    write_html(path, trace_json(kernel, result))


def load_trace(path: Path) -> dict[str, Any]:
    """A trace that ``write_trace`` wrote."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the trace {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not a trace: it is not JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} is not a trace that `qgpu run --trace` wrote ({FORMAT})")
    return data


def write_html(path: Path, data: dict[str, Any]) -> None:
    """One self-contained page: nothing is loaded from anywhere."""
    # "<" is escaped so that no text in the trace can end the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = PAGE.read_text(encoding="utf-8").replace(PLACEHOLDER, text)
    _write(path, page)


def write_chrome(path: Path, data: dict[str, Any]) -> None:
    """Chrome trace events: one microsecond a token, a row a warp, values inside their block."""
    _write(path, json.dumps({"traceEvents": list(chrome_events(data)), "displayTimeUnit": "ns"}))


def _write(path: Path, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def chrome_events(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Exec tokens last until the next one; every other token is an event inside."""
    steps = data["steps"]
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": data["kernel"]}}
    used = sorted({step["fields"][1] for step in steps if step["kind"] == "Exec"})
    for warp in used:
        yield {"ph": "M", "pid": 0, "tid": warp, "name": "thread_name",
               "args": {"name": f"warp {warp}"}}  # fmt: skip
    scheduled = ("Exec", "Barrier", "Resume", "Halt")
    starts = [n for n, step in enumerate(steps) if step["kind"] in scheduled]
    ends = [*starts[1:], len(steps)]
    warp = 0
    for start, end in zip(starts, ends, strict=True):
        step = steps[start]
        if step["kind"] != "Exec":
            yield {"ph": "i", "s": "p", "pid": 0, "tid": warp, "ts": start, "name": step["kind"]}
            continue
        block, warp, mask = step["fields"]
        args = {"token": step["token"], "mask": mask, "lanes": len(lanes_of(mask))}
        yield {"ph": "X", "pid": 0, "tid": warp, "ts": start, "dur": end - start,
               "name": f"B{block}", "args": args}  # fmt: skip
        yield {"ph": "C", "pid": 0, "ts": start, "name": "active lanes",
               "args": {"lanes": len(lanes_of(mask))}}  # fmt: skip
        for at in range(start + 1, end):
            args = {"token": steps[at]["token"], "says": steps[at]["say"]}
            yield {"ph": "X", "pid": 0, "tid": warp, "ts": at, "dur": 1,
                   "name": steps[at]["kind"], "args": args}  # fmt: skip
