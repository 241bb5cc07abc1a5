"""The circuits of one lane's ALU but for multiplication; stage.py says in which layer each stands.

Addition: the words are cut into 8 digits of 4 bits. s_j is the sum of digit j of both operands
(0..30); d_j = [s_j >= 15] + [s_j >= 16]; the carry into digit j is
[sum_{i<j} 2**i d_i + carry_in >= 2**j]; the sum's digit is (s_j + carry_j) mod 16, a spline on
0..31. Subtraction adds 15 - b_j and a carry in of 1; a signed comparison also flips both sign bits.
All gates stay within 256 in magnitude, where bf16 holds every integer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qgpu.compiler.circuit import OFF, Layer
from qgpu.compiler.space import Form, total
from qgpu.machine import WORD_BITS

if TYPE_CHECKING:
    from qgpu.compiler.front import Machine
    from qgpu.compiler.stage import Lane, Workspace

RADIX_BITS = 4
N_DIGITS = WORD_BITS // RADIX_BITS
SELECT_RIGHT, SELECT_COARSE_LEFT, SELECT_COARSE_RIGHT, SELECT_LANE = 8, 16, 20, 24
FLAG_CIN, FLAG_PROPAGATE, FLAG_BIG, FLAG_PICK_A, FLAG_PICK_B = range(5)


def to_bits(number: int, targets: list[Form]) -> Form:
    """The sum of the targets whose bit is set in ``number``."""
    return total(target for i, target in enumerate(targets) if number >> i & 1)


def spells(bits: list[Form], number: int) -> Form:
    """0 where the bits spell ``number``, else <= -1."""
    signs = [bit if number >> i & 1 else -bit for i, bit in enumerate(bits)]
    return total(signs) - number.bit_count()


def _digit_sums(w: Workspace, lane: Lane, j: int) -> list[tuple[Form, Form]]:
    """(mode line, s_j) for plain addition, subtraction, and signed comparison (top digit)."""
    start = j * RADIX_BITS
    a = lane.a.part(start, start + RADIX_BITS).number
    b = lane.b.part(start, start + RADIX_BITS).number
    invert, sign = w.line("INV_B"), w.line("SIGNED")
    modes = [(1 - invert, a + b)]
    if j < N_DIGITS - 1:
        return [*modes, (invert, a + 15 - b)]
    flip = 8 * (1 - 2 * lane.a[WORD_BITS - 1]) + 8 * (2 * lane.b[WORD_BITS - 1] - 1)
    return [*modes, (invert - sign, a + 15 - b), (sign, a + 15 - b + flip)]


def _low_digit(targets: list[Form], n: int) -> Form:
    return to_bits(n % 16, targets)


def digits(w: Workspace, lane: Lane, layer: Layer) -> None:
    """d_j, the count of digits that propagate, and the carry in."""
    propagate = lane.flags[FLAG_PROPAGATE]
    for j in range(N_DIGITS):
        d = lane.digits[j]
        for line, s in _digit_sums(w, lane, j):
            x = s - OFF * (1 - line)
            layer.relu(x - 14, d + propagate)
            layer.relu(x - 15, -2 * propagate)
            layer.relu(x - 16, propagate - d)
    cin, c0 = lane.flags[FLAG_CIN], lane.c[0]
    layer.relu(w.line("CIN_1"), cin)
    layer.both([w.line("CIN_C"), c0], cin)
    layer.both([w.line("CIN_NOT_C"), c0], -cin)


def carries(lane: Lane, layer: Layer) -> None:
    """carry[j] = carry into digit j + 1. Frees the digits for the multiplier."""
    for j in range(1, N_DIGITS + 1):
        weighted = total((1 << i) * lane.digits[i] for i in range(j)) + lane.flags[FLAG_CIN]
        layer.step(weighted - (1 << j) + 1, lane.carry[j - 1])
    layer.clear(lane.digits)


def compares(lane: Lane, layer: Layer) -> None:
    """LT, GE, EQ, NE to bit 0; which operand MIN and MAX pick."""
    out, carry = lane.result[0], lane.carry[N_DIGITS - 1]
    layer.both([lane.on["LT"], 1 - carry], out)
    layer.both([lane.on["GE"], carry], out)
    for name, sign in (("EQ", 1), ("NE", -1)):
        x = lane.flags[FLAG_PROPAGATE] - (N_DIGITS - 1) - OFF * (1 - lane.on[name])
        layer.relu(x, sign * out)
    layer.relu(lane.on["NE"], out)
    pick_a, pick_b = lane.flags[FLAG_PICK_A], lane.flags[FLAG_PICK_B]
    layer.both([lane.on["MIN"], 1 - carry], pick_a)
    layer.both([lane.on["MIN"], carry], pick_b)
    layer.both([lane.on["MAX"], carry], pick_a)
    layer.both([lane.on["MAX"], 1 - carry], pick_b)


def picks(lane: Lane, layer: Layer) -> None:
    for i in range(WORD_BITS):
        layer.select(lane.flags[FLAG_PICK_A], lane.a[i], lane.result[i])
        layer.select(lane.flags[FLAG_PICK_B], lane.b[i], lane.result[i])


def _carry_in(lane: Lane, j: int) -> Form:
    return lane.flags[FLAG_CIN] if j == 0 else lane.carry[j - 1]


def sums(w: Workspace, lane: Lane, layer: Layer) -> None:
    invert = w.line("INV_B")
    for j in range(N_DIGITS):
        targets = list(lane.result[j * RADIX_BITS : (j + 1) * RADIX_BITS])
        a = lane.a.part(j * RADIX_BITS, (j + 1) * RADIX_BITS).number
        b = lane.b.part(j * RADIX_BITS, (j + 1) * RADIX_BITS).number
        for line, s in ((lane.on["SUM"] - invert, a + b),
                        (lane.on["SUM"] + invert - 1, a + 15 - b)):  # fmt: skip
            layer.piecewise(s + _carry_in(lane, j), 31, partial(_low_digit, targets), line)


def addresses(word_bits: int, w: Workspace, lane: Lane, layer: Layer) -> None:
    """Word address a + b >> 2, and a count of the address bits beyond the memory."""
    line = lane.on["LD"] + lane.on["ST"]
    beyond = lane.address[word_bits]
    for j in range(N_DIGITS):
        targets = []
        for bit in range(j * RADIX_BITS, (j + 1) * RADIX_BITS):
            inside = 2 <= bit < 2 + word_bits
            targets.append(lane.address[bit - 2] if inside else beyond if bit >= 2 else Form())
        a = lane.a.part(j * RADIX_BITS, (j + 1) * RADIX_BITS).number
        b = lane.b.part(j * RADIX_BITS, (j + 1) * RADIX_BITS).number
        layer.piecewise(a + b + _carry_in(lane, j), 31, partial(_low_digit, targets), line)


def shift_select(w: Workspace, lane: Lane, layer: Layer) -> None:
    """One-hot lines of the amount's low 3 and next 2 bits, by direction; off from 32 on."""
    low, middle, high = list(lane.b[:3]), list(lane.b[3:5]), total(lane.b[5:])
    directions = ((w.line("SHL"), 0, SELECT_COARSE_LEFT),
                  (w.line("SHR") + w.line("SAR"), SELECT_RIGHT, SELECT_COARSE_RIGHT))  # fmt: skip
    for line, fine, coarse in directions:
        for f in range(8):
            layer.relu(line + spells(low, f), lane.select[fine + f])
        for h in range(4):
            layer.relu(line + spells(middle, h) - high, lane.select[coarse + h])
    layer.step(high, lane.flags[FLAG_BIG])


def shift_coarse(lane: Lane, layer: Layer) -> None:
    """scratch = a moved by whole bytes."""
    left, right = lane.select[SELECT_COARSE_LEFT:], lane.select[SELECT_COARSE_RIGHT:]
    for i in range(WORD_BITS):
        for h in range(4):
            if i - 8 * h >= 0:
                layer.both([left[h], lane.a[i - 8 * h]], lane.scratch[i])
            if i + 8 * h < WORD_BITS:
                layer.both([right[h], lane.a[i + 8 * h]], lane.scratch[i])


def shift_fine(lane: Lane, layer: Layer) -> None:
    """Moves scratch on by single bits. Scratch is the ``up`` side, so that the multiplier's numbers
    in it (above 1) cannot outvote the lines."""
    line = lane.on["SHL"] + lane.on["SHR"] + lane.on["SAR"]
    amount = lane.b.part(0, 5).number + 32 * lane.flags[FLAG_BIG]
    for i in range(WORD_BITS):
        for f in range(8):
            if i - f >= 0:
                layer.select(line + lane.select[f] - 1, lane.scratch[i - f], lane.result[i])
            if i + f < WORD_BITS:
                right = line + lane.select[SELECT_RIGHT + f] - 1
                layer.select(right, lane.scratch[i + f], lane.result[i])
        # SAR fills bit i with the sign where i + amount >= 32.
        x = amount - (WORD_BITS - 1 - i) - OFF * (2 - lane.a[WORD_BITS - 1] - lane.on["SAR"])
        layer.relu(x, lane.result[i])
        layer.relu(x - 1, -lane.result[i])


def logic(lane: Lane, layer: Layer) -> None:
    for i in range(WORD_BITS):
        a, b, out = lane.a[i], lane.b[i], lane.result[i]
        layer.both([lane.on["AND"], a, b], out)
        layer.select(lane.on["OR"], a + b, out)
        layer.both([lane.on["OR"], a, b], -out)
        layer.select(lane.on["XOR"], a + b, out)
        layer.both([lane.on["XOR"], a, b], -2 * out)
        layer.select(lane.on["MOV"], a, out)
        layer.select(lane.on["BREV"], lane.a[WORD_BITS - 1 - i], out)
        layer.select(lane.otherwise, lane.c[i], out)


def counts(lane: Lane, layer: Layer) -> None:
    out = list(lane.result[:6])
    layer.piecewise(lane.a.sum, WORD_BITS, lambda n: to_bits(n, out), lane.on["POPC"])
    clz = lane.on["CLZ"]
    for i in range(WORD_BITS):
        above = total(lane.a[i + 1 :])
        layer.relu(clz + lane.a[i] - 1 - above, to_bits(WORD_BITS - 1 - i, out))
    layer.relu(clz - lane.a.sum, to_bits(WORD_BITS, out))


def byte_select(w: Workspace, lane: Lane, layer: Layer) -> None:
    """PRMT: for each byte of the result a one-hot line per source byte, plain and as sign."""
    for n in range(4):
        low, sign = list(lane.c[4 * n : 4 * n + 3]), lane.c[4 * n + 3]
        for k in range(8):
            pick = w.line("PRMT") + spells(low, k)
            layer.relu(pick - sign, lane.scratch[16 * n + k])
            layer.relu(pick + sign - 1, lane.scratch[16 * n + 8 + k])


def bytes_out(lane: Lane, layer: Layer) -> None:
    source = [*lane.a, *lane.b]
    line = lane.on["PRMT"]
    for n in range(4):
        for k in range(8):
            for i in range(8):
                layer.select(
                    line + source[8 * k + i] - 1, lane.scratch[16 * n + k], lane.result[8 * n + i]
                )
            spread = total(lane.result[8 * n : 8 * n + 8])
            layer.select(line + source[8 * k + 7] - 1, lane.scratch[16 * n + 8 + k], spread)


def lane_select(m: Machine, w: Workspace, lane: Lane, layer: Layer) -> None:
    low = list(lane.b[: (m.n_lanes - 1).bit_length()])
    for j in range(m.n_lanes):
        layer.relu(w.line("SHFL") + spells(low, j), lane.select[SELECT_LANE + j])


def across(m: Machine, w: Workspace, lane: Lane, layer: Layer) -> None:
    """SHFL, BALLOT and TID: what a lane learns of its warp."""
    for j, other in enumerate(w.lanes):
        for i in range(WORD_BITS):
            layer.both([lane.on["SHFL"], lane.select[SELECT_LANE + j], other.a[i]], lane.result[i])
        layer.both([lane.on["BALLOT"], other.a[0], m.header["mask"][j]], lane.result[j])
    lane_bits = (m.n_lanes - 1).bit_length()
    layer.relu(lane.on["TID"], to_bits(lane.index, list(lane.result[:lane_bits])))
    for i, bit in enumerate(m.current["warp"]):
        layer.both([lane.on["TID"], bit], lane.result[lane_bits + i])
