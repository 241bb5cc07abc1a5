"""The circuit IR: what one decoder layer computes, as heads (state) and neurons (logic).

Everything is in value units: bits are 0 or 1, counts are integers. The emitter turns it into
weights with the gains below; docs/numerics.md has the reasons.

A neuron adds ``relu(gate) * up`` to ``out``. SwiGLU gives silu(GAIN * gate) * up, and with
GAIN = 128 silu is exactly GAIN * relu for every integer gate of at most 8 significant bits.

A head is a table of 128 rows by 127 bits (the 128th value dim is the pin that fixes the gated
norm's scale). A token may overwrite one row and read a sum of rows; the read sees the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qgpu.compiler.space import ONE, Field, Form, as_form, total

GAIN = 128.0  # pre-activation of one value unit
OFF = 512  # subtracted in a gate to switch a neuron off whatever its other inputs
PIN_VALUE = 65536.0  # the pin dim of every written row
PIN_DIM = 127
N_ROWS = 128
DATA_BITS = 127


@dataclass
class Head:
    """One GDN head used as a table.

    ``key``/``query``: row -> form that is 1 to address the row, <= 0 otherwise. ``value``: value
    dim -> form in {0, 1}. ``write`` and ``read``: forms, >= 1 to do it, <= 0 not to. ``out``: value
    dim -> residual form that a read bit is added to. ``clear``: >= 1 wipes the table before the
    write. ``pin``: 1 where the written row carries the pin. ``lag``: the token back that keys and
    values are taken from. ``scale``: the factor a read must be multiplied by (1 for one row).
    """

    name: str
    key: Mapping[int, Form]
    query: Mapping[int, Form]
    value: Mapping[int, Form]
    write: Form
    read: Form
    out: Mapping[int, Form]
    clear: Form | None = None
    pin: Form = field(default_factory=lambda: ONE)
    lag: int = 0


@dataclass
class Neuron:
    gate: Form
    up: Form
    out: Form


class Layer:
    """One decoder layer: heads first, then neurons that see the heads' reads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heads: list[Head] = []
        self.neurons: list[Neuron] = []

    def relu(self, gate: Form | int, out: Form, up: Form | int = 1) -> None:
        """out += relu(gate) * up."""
        self.neurons.append(Neuron(as_form(gate), as_form(up), out))

    def both(self, terms: Sequence[Form], out: Form) -> None:
        """out += AND of bits."""
        self.relu(total(terms) - (len(terms) - 1), out)

    def select(self, line: Form, value: Form, out: Form) -> None:
        """out += value where ``line`` is 1 (line in {.., 0, 1}); value any small integer form."""
        self.relu(line, out, value)

    def step(self, x: Form, out: Form, line: Form | None = None, up: Form | int = 1) -> None:
        """out += [x >= 1] * up, for integer |x| < 256; only where ``line`` is 1, if given."""
        if line is not None:
            x = x - OFF * (1 - line)
        self.relu(x, out, up)
        self.relu(x - 1, -out, up)

    def equal(self, x: Form, out: Form) -> None:
        """out += [x == 0] for integer x."""
        self.relu(x + 1, out)
        self.relu(x, -2 * out)
        self.relu(x - 1, out)

    def piecewise(
        self, x: Form, top: int, function: Callable[[int], Form], line: Form | None = None
    ) -> None:
        """Adds ``function(x)`` for the integer 0 <= x <= top, exactly: a linear spline on the
        integers, one neuron a breakpoint. ``function`` maps x to the forms and amounts added;
        it must give nothing at 0 unless ``line`` is given. Only where ``line`` is 1, if given."""
        gate0 = OFF * (1 - line) if line is not None else Form()
        values = [function(n) for n in range(top + 1)]
        if values[0]:
            if line is None:
                raise ValueError("a spline without a line must start at nothing")
            self.relu(line, values[0])
        slope = Form()
        for n in range(top):
            new = values[n + 1] - values[n]
            bend = Form({d: c for d, c in (new - slope).items() if c})
            if bend:
                self.relu(x - n - gate0, bend)
            slope = new

    def clear(self, *fields: Field) -> None:
        """Sets dims that hold non-negative integers back to 0."""
        for one in fields:
            for form in one:
                self.relu(form, -form)


def rows_of(
    bits: Sequence[Form], n_rows: int, enable: Form | int, first: int = 0
) -> dict[int, Form]:
    """Address decode without an MLP: row r's form is ``enable`` if ``bits`` spell r, else <= 0."""
    rows = {}
    for r in range(n_rows):
        ones = r.bit_count()
        terms = [bit if r >> i & 1 else -bit for i, bit in enumerate(bits)]
        rows[r] = total(terms) - ones + enable
    return rows


def bits_to(target: Iterable[Form], start: int = 0) -> dict[int, Form]:
    """Value dims start, start + 1, ... each to (or from) its form."""
    return {start + i: form for i, form in enumerate(target)}
