"""The multiplier: 32 x 32 -> 64 bits, low or high word, in six layers.

  products  column k = sum of a_i b_j with i + j = k (0..32). Signed: by Baugh and Wooley the
            products with exactly one sign bit are complemented, and 1 is added to columns 32 and 63
  columns   each column spread to its binary digits: bit t of column k goes to column k + t
            (columns now hold 0..6)
  digits    4 columns make a digit of radix 16: sum of 2**t column[4j + t] <= 90, split into its low
            part L_j (0..15) and its carry H_j (0..5)
  adder     s_j = L_j + H_{j-1} (0..20), d_j = [s_j >= 15] + [s_j >= 16]
  carries   into each digit of the low word; into each digit of the high word for both values of
            the low word's carry, since bf16 gates hold 8 digits exactly and no more
  finish    the digit (s_j + carry) mod 16, a spline on 0..21, of the word that is asked for

Scratch (64 dims a lane) holds in turn the columns, then per digit j: L, H, d, carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qgpu.compiler.alu import to_bits
from qgpu.compiler.circuit import OFF, Layer
from qgpu.compiler.space import Form, total
from qgpu.machine import WORD_BITS

if TYPE_CHECKING:
    from qgpu.compiler.stage import Lane, Workspace

N_COLUMNS = 2 * WORD_BITS
SIGN = WORD_BITS - 1
N_DIGITS = N_COLUMNS // 4
HALF = N_DIGITS // 2
MAX_COLUMN = [min(k + 1, N_COLUMNS - 1 - k) + (k in (WORD_BITS, N_COLUMNS - 1)) for k in range(64)]
LOW, HIGH, STEP, CARRY = range(4)


def products(w: Workspace, lane: Lane, layer: Layer) -> None:
    mul, signed = w.line("MUL"), w.line("MUL_SIGNED")
    ones = lane.scratch[WORD_BITS] + lane.scratch[N_COLUMNS - 1]
    for i in range(WORD_BITS):
        for j in range(WORD_BITS):
            column = lane.scratch[i + j]
            layer.both([mul, lane.a[i], lane.b[j]], column)
            if (i == SIGN) != (j == SIGN):
                layer.both([signed, lane.a[i], lane.b[j]], -2 * column)
                ones = ones + column
    layer.relu(signed, ones)


def columns(w: Workspace, lane: Lane, layer: Layer) -> None:
    for k in range(N_COLUMNS):
        targets = [lane.scratch[k + t] if k + t < N_COLUMNS else Form() for t in range(6)]

        def spread(n: int, k: int = k, targets: list[Form] = targets) -> Form:
            return to_bits(n, targets) - n * lane.scratch[k]

        layer.piecewise(lane.scratch[k], MAX_COLUMN[k], spread, w.line("MUL"))


def digits(w: Workspace, lane: Lane, layer: Layer) -> None:
    for j in range(N_DIGITS):
        four = lane.scratch.part(4 * j, 4 * j + 4)
        low, high = lane.scratch[4 * j + LOW], lane.scratch[4 * j + HIGH]

        def split(n: int, low: Form = low, high: Form = high) -> Form:
            return (n % 16) * low + (n // 16) * high

        layer.piecewise(four.number, 90, split, w.line("MUL"))
        for column in four:
            layer.relu(column - OFF * (1 - w.line("MUL")), -column)


def _digit(lane: Lane, j: int) -> Form:
    s = lane.scratch[4 * j + LOW]
    return s + lane.scratch[4 * (j - 1) + HIGH] if j else s


def adder(w: Workspace, lane: Lane, layer: Layer) -> None:
    for j in range(N_DIGITS):
        x, d = _digit(lane, j) - OFF * (1 - w.line("MUL")), lane.scratch[4 * j + STEP]
        layer.relu(x - 14, d)
        layer.relu(x - 16, -d)


def carries(w: Workspace, lane: Lane, layer: Layer) -> None:
    """carry[j] into digit j of either word with 0 coming in; ``digits[j]`` with 1 coming in (high
    word); the low word's own carry goes to ``digits[0]``."""
    mul = w.line("MUL")
    for word in range(2):
        for j in range(1, HALF + 1):
            d = [lane.scratch[4 * (word * HALF + i) + STEP] for i in range(j)]
            weighted = total((1 << i) * form for i, form in enumerate(d))
            if j < HALF:
                out = lane.scratch[4 * (word * HALF + j) + CARRY]
                layer.step(weighted - (1 << j) + 1, out, mul)
                if word:
                    layer.step(weighted + 1 - (1 << j) + 1, lane.digits[j], mul)
            elif not word:
                layer.step(weighted - (1 << j) + 1, lane.digits[0], mul)


def finish(lane: Lane, layer: Layer) -> None:
    out = lane.digits[0]
    low, high = lane.on["MUL_LO"], lane.on["MUL_HI"]
    for j in range(HALF):
        targets = list(lane.result[4 * j : 4 * j + 4])
        zero = Form()
        carry = lane.scratch[4 * j + CARRY] if j else zero
        _digit_out(layer, _digit(lane, j) + carry, low, targets)
        k = j + HALF
        carry0 = lane.scratch[4 * k + CARRY] if j else zero
        carry1 = lane.digits[j] if j else zero + 1
        _digit_out(layer, _digit(lane, k) + carry0, high - out, targets)
        _digit_out(layer, _digit(lane, k) + carry1, high + out - 1, targets)


def _digit_out(layer: Layer, s: Form, line: Form, targets: list[Form]) -> None:
    layer.piecewise(s, 21, lambda n: to_bits(n % 16, targets), line)
