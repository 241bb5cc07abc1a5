"""The scheduler: where each lane goes, which warp runs next, and with which lanes.

Program counters live in the state of high layers: an Exec pass knows its lanes' next block at its
own top, so nothing of it has to travel down by tokens. docs/machine.md states the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from qgpu.compiler.circuit import OFF, Head, Layer, bits_to, rows_of
from qgpu.compiler.front import Machine
from qgpu.compiler.serialize import Candidate, Output, Stores
from qgpu.compiler.space import ONE, Field, Form, total
from qgpu.machine import WORD_BITS
from qgpu.tokens import Barrier, Exec, Halt, Resume

PIN_ROW = 127  # the row that carries the pin of a table whose rows are read together
PAD_ROW = 64  # rows from here on stay empty; they only pad a query to 4**k rows

TARGET_FIELDS = ("pc", "alive", "wait", "serial", "yields")


@dataclass
class LaneState:
    """Where one lane goes next, or where a lane of the chosen warp stands."""

    pc: Field
    alive: Field
    wait: Field
    serial: Field
    yields: Field


def lane_states(m: Machine, name: str) -> list[LaneState]:
    sizes = dict.fromkeys(TARGET_FIELDS, 1) | {"pc": m.spec.block_bits}
    return [
        LaneState(*(m.space.alloc(f"{name}{lane}.{f}", sizes[f]) for f in TARGET_FIELDS))
        for lane in range(m.n_lanes)
    ]


def forward_condition(m: Machine, layer: Layer) -> None:
    """The branch condition, where it is a result of this very block."""
    for s, result in enumerate(m.results):
        for lane, word in enumerate(result.split(WORD_BITS)):
            layer.select(m.plan[f"branch.fwd{s}"][0], word[0], m.plan["condition"][lane])


def branch(m: Machine, layer: Layer) -> list[LaneState]:
    """target + [branch taken] (taken - target), for the lanes of an Exec."""
    exec_, plan = m.embed["is.exec"][0], m.plan
    states = lane_states(m, "goes")
    for lane, state in enumerate(states):
        condition = plan["condition"][lane]
        yes = [plan["branch.if"][0] + condition - 1, plan["branch.ifnot"][0] - condition]
        for name in TARGET_FIELDS:
            pairs = zip(
                plan[f"target.{name}"], plan[f"taken.{name}"], getattr(state, name), strict=True
            )
            for target, taken, out in pairs:
                layer.select(exec_, target, out)
                for line in yes:
                    layer.relu(line + exec_ - 1, out, taken - target)
    return states


def _all_rows(m: Machine) -> dict[int, Form]:
    """A query over all warps at once, padded to 4**k rows so that its norm is a power of two."""
    rows = [*range(m.spec.n_warps), PIN_ROW]
    size = 4
    while size < len(rows):
        size *= 4
    return dict.fromkeys([*rows, *range(PAD_ROW, PAD_ROW + size - len(rows))], ONE)


def _warp_rows(m: Machine, first: Form) -> dict[int, Form]:
    """The row of the token's warp; the pin's row where ``first`` is 1."""
    hot = m.embed["warp.hot"]
    return {w: hot[w] for w in range(m.spec.n_warps)} | {PIN_ROW: first}


def wait_heads(m: Machine, name: str, lane: int, state: LaneState, query: dict[int, Form],
               out: list[Form], yielding: Form | None = None) -> list[Head]:  # fmt: skip
    """Lane's waiting flags: row = warp, value dim = warp. A barrier wipes those of lanes that wait
    at it, Resume those of lanes that yielded; a lane has one at most, so both add up in ``out``.
    The warps whose lane yielded are counted in ``yielding``."""
    e = m.embed
    heads = []
    for reason, flag, end in (("wait", state.wait, "barrier"), ("yield", state.yields, "resume")):
        fresh = e["is.go"][0] + e[f"is.{end}"][0]
        value, target = [hot + flag[0] - 1 for hot in e["warp.hot"]], list(out)
        if reason == "yield" and yielding is not None:
            value, target = [*value, flag[0]], [*out, yielding]
        heads.append(
            Head(f"{reason}{name}.lane{lane}", _warp_rows(m, fresh), query, bits_to(value),
                 e["moves"][lane] + fresh, ONE, bits_to(target), clear=fresh, pin=fresh)
        )  # fmt: skip
    return heads


@dataclass
class Warps:
    """Per warp: lanes alive and waiting; lanes that can run; whether one can."""

    alive: list[Field]
    wait: list[Field]
    runnable: Field
    can_run: Field
    goes_on: Field
    chosen: Field
    bits: Field
    any_alive: Field
    yielding: Field
    any_yield: Field


def survey(m: Machine, layer: Layer, states: list[LaneState]) -> Warps:
    """Writes where the lanes go, and reads all warps' flags."""
    space, e, n_warps = m.space, m.embed, m.spec.n_warps
    n = m.n_lanes
    warps = Warps(
        [space.alloc(f"alive.lane{lane}", n_warps) for lane in range(n)],
        [space.alloc(f"wait.lane{lane}", n_warps) for lane in range(n)],
        space.alloc("warp.runnable", n_warps), space.alloc("warp.can_run", n_warps),
        space.alloc("warp.goes_on", n_warps), space.alloc("warp.chosen", n_warps),
        space.alloc("warp.bits", m.spec.warp_bits), space.alloc("warp.any_alive", 1),
        space.alloc("warp.yielding", 1), space.alloc("warp.any_yield", 1),
    )  # fmt: skip
    go = e["is.go"][0]
    for lane, state in enumerate(states):
        lives = state.alive[0] + e["start"][lane]
        # Not read on Warp: Go writes the pin's row, and bits without a pin would read huge.
        value = [hot + lives - 1 for hot in e["warp.hot"]]
        layer.heads.append(
            Head(f"alive.lane{lane}", _warp_rows(m, go), _all_rows(m), bits_to(value),
                 e["moves"][lane] + go, 1 - e["is.warp"][0], bits_to(warps.alive[lane]), pin=go)
        )  # fmt: skip
        layer.heads += wait_heads(
            m, "", lane, state, _all_rows(m), list(warps.wait[lane]), warps.yielding[0]
        )
    for alive, wait in zip(warps.alive, warps.wait, strict=True):
        for w in range(n_warps):
            layer.relu(alive[w] - wait[w], warps.runnable[w])
    layer.step(total(alive.sum for alive in warps.alive), warps.any_alive[0])
    layer.step(warps.yielding[0], warps.any_yield[0])
    return warps


def can_run(m: Machine, layer: Layer, warps: Warps) -> None:
    for w, count in enumerate(warps.runnable):
        layer.step(count, warps.can_run[w])
        layer.step(count, warps.goes_on[w], m.current["warp.hot"][w])


def choose_warp(layer: Layer, warps: Warps) -> None:
    """The current warp if it can run, else the first that can."""
    stays = warps.goes_on.sum
    for w, runs in enumerate(warps.can_run):
        out = warps.chosen[w] + total(b for i, b in enumerate(warps.bits) if w >> i & 1)
        layer.relu(warps.goes_on[w], out)
        layer.relu(runs - total(warps.can_run[:w]) - OFF * stays, out)


@dataclass
class Order:
    """Of the chosen warp's lanes: comparisons of program counters, then who runs."""

    stands: list[LaneState]
    not_after: dict[tuple[int, int], Form]
    before: dict[tuple[int, int], Form]
    runs: Field
    leads: Field


def compare_lanes(m: Machine, layer: Layer, states: list[LaneState], warps: Warps) -> Order:
    """Reads the chosen warp's lanes; pc_i <= pc_j and pc_i < pc_j, lanes that cannot run last."""
    space, e, n = m.space, m.embed, m.n_lanes
    stands = lane_states(m, "stands")
    for lane, (state, stand) in enumerate(zip(states, stands, strict=True)):
        value = [*state.pc, state.alive[0] + e["start"][lane], state.serial[0]]
        layer.heads.append(
            Head(f"pc.lane{lane}", rows_of(e["warp"], m.spec.n_warps, 1),
                 rows_of(warps.bits, m.spec.n_warps, 1), bits_to(value), e["moves"][lane], ONE,
                 bits_to([*stand.pc, stand.alive[0], stand.serial[0]]))
        )  # fmt: skip
        one_row = dict(enumerate(warps.chosen)) | dict.fromkeys(
            (PIN_ROW, PAD_ROW, PAD_ROW + 1), ONE
        )
        layer.heads += wait_heads(
            m, "_again", lane, state, one_row, [stand.wait[0]] * m.spec.n_warps
        )
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    order = Order(
        stands,
        dict(zip(pairs, space.alloc("pc.not_after", len(pairs)), strict=True)),
        dict(zip(pairs, space.alloc("pc.before", len(pairs)), strict=True)),
        space.alloc("lane.runs", n), space.alloc("lane.leads", n),
    )  # fmt: skip
    for i, j in pairs:
        # Alive and waiting are exclusive reasons, so the sum stays below 256.
        far = m.spec.n_blocks * (1 - stands[j].alive[0] + stands[j].wait[0])
        distance = stands[j].pc.number - stands[i].pc.number + far
        layer.step(distance + 1, order.not_after[i, j])
        layer.step(distance, order.before[i, j])
    return order


def pick_lanes(m: Machine, layer: Layer, order: Order) -> None:
    """Lanes at the least pc, and the lowest of them."""
    n = m.n_lanes
    for lane in range(n):
        stand = order.stands[lane]
        ready = stand.alive[0] - stand.wait[0] - (n - 1)
        others = [j for j in range(n) if j != lane]
        layer.relu(ready + total(order.not_after[lane, j] for j in others), order.runs[lane])
        least = total((order.before if j < lane else order.not_after)[lane, j] for j in others)
        layer.relu(ready + least, order.leads[lane])


def say_schedule(m: Machine, layer: Layer, order: Order, warps: Warps,
                 candidates: list[Candidate], stores: Stores, out: Output) -> None:  # fmt: skip
    """Exec, Barrier, Resume or Halt, where no value and no store is left."""
    now, following = candidates
    idle = 1 - now.first.sum - total(following.slot) - stores.leader.sum
    runs = idle + warps.chosen.sum - 1
    layer.relu(runs, out.kind(Exec))
    for bit, target in zip(warps.bits, out.part(Exec, "warp"), strict=True):
        layer.select(runs, bit, target)
    for lane in range(m.n_lanes):
        leads, stand = order.leads[lane], order.stands[lane]
        for bit, target in zip(stand.pc, out.part(Exec, "block"), strict=True):
            layer.select(runs + leads - 1, bit, target)
        mask = out.part(Exec, "mask")[lane]
        layer.select(runs, leads, mask)
        layer.relu(runs + order.runs[lane] - 1 - leads - stand.serial[0], mask)
    stuck = idle - warps.chosen.sum
    layer.relu(stuck + warps.any_yield[0] - 1, out.kind(Resume))
    layer.relu(stuck + warps.any_alive[0] - warps.any_yield[0] - 1, out.kind(Barrier))
    layer.relu(stuck - warps.any_alive[0], out.kind(Halt))
