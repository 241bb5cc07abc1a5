"""Named subspaces of the residual stream. No weight is ever addressed by a bare index.

A ``Form`` is a linear form over dims that ``Space`` handed out; ``ONE`` stands for the constant 1
(a pin dim after the norm). Circuits write forms in value units: a dim that holds integers above 1
is stored scaled by its ``unit``, so that the sum of squares next to the pins stays small
(docs/numerics.md); only the emitter (emit.py) knows about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

ONE_DIM = -1


class Form(dict[int, float]):
    """A linear form: dim -> coefficient. Supports +, -, and * by a number."""

    __slots__ = ()

    def __add__(self, other: Form | int) -> Form:
        out = Form(self)
        for dim, c in as_form(other).items():
            out[dim] = out.get(dim, 0) + c
        return out

    __radd__ = __add__

    def __neg__(self) -> Form:
        return Form({dim: -c for dim, c in self.items()})

    def __sub__(self, other: Form | int) -> Form:
        return self + -as_form(other)

    def __rsub__(self, other: Form | int) -> Form:
        return as_form(other) - self

    def __mul__(self, factor: float) -> Form:
        return Form({dim: c * factor for dim, c in self.items()})

    __rmul__ = __mul__


ONE = Form({ONE_DIM: 1})


def as_form(x: Form | int) -> Form:
    """An integer as a multiple of ONE."""
    return x if isinstance(x, Form) else Form({ONE_DIM: x} if x else {})


def total(forms: Iterable[Form]) -> Form:
    """The sum of forms."""
    out = Form()
    for form in forms:
        for dim, c in form.items():
            out[dim] = out.get(dim, 0) + c
    return out


class Field(list[Form]):
    """A named run of dims, as forms: ``field[i]`` reads dim i; ``number`` reads them as bits."""

    def __init__(self, name: str, dims: Iterable[int]) -> None:
        self.name, self.dims = name, tuple(dims)
        super().__init__(Form({dim: 1}) for dim in self.dims)

    @property
    def number(self) -> Form:
        """The unsigned number whose bits the field holds, least significant first."""
        return Form({dim: 1 << i for i, dim in enumerate(self.dims)})

    @property
    def sum(self) -> Form:
        return Form(dict.fromkeys(self.dims, 1))

    def part(self, start: int, stop: int) -> Field:
        return Field(f"{self.name}[{start}:{stop}]", self.dims[start:stop])

    def split(self, width: int) -> list[Field]:
        """The field cut into runs of ``width`` dims (one a lane, say)."""
        return [self.part(i, i + width) for i in range(0, len(self), width)]


class SpaceError(Exception):
    """The residual stream is full."""


class Space:
    """Hands out residual dims by name and takes them back once a circuit has cleared them."""

    def __init__(self, hidden: int, n_pins: int, guards: Sequence[int]) -> None:
        self.hidden = hidden
        self._places: list[tuple[int, float]] = []
        self.guards = list(guards)
        self._free = [dim for dim in range(hidden - 1, -1, -1) if dim not in set(guards)]
        self.pins = [self._free.pop() for _ in range(n_pins)]
        self.live: dict[str, Field] = {}
        self.peak = self.used

    @property
    def used(self) -> int:
        return self.hidden - len(self._free)

    def alloc(
        self, name: str, n: int, unit: float = 1.0, avoid: Collection[int] = frozenset()
    ) -> Field:
        """``n`` fresh dims. ``unit`` is the power of two that one value unit is stored as; residual
        dims in ``avoid`` are taken only when nothing else is free."""
        if name in self.live:
            raise ValueError(f"field {name} is live already")
        if n > len(self._free):
            raise SpaceError(f"{name} needs {n} residual dims, {len(self._free)} are free")
        first = len(self._places)
        if avoid:
            self._free.sort(key=lambda dim: dim not in avoid)
        self._places += [(self._free.pop(), unit) for _ in range(n)]
        field = Field(name, range(first, first + n))
        self.live[name] = field
        self.peak = max(self.peak, self.used)
        return field

    def free(self, *field_list: Field) -> None:
        """Gives dims back; a circuit must have cleared them to 0 before their next use."""
        for field in field_list:
            del self.live[field.name]
            self._free.extend(self._places[dim][0] for dim in reversed(field.dims))

    def place(self, dim: int) -> tuple[int, float]:
        """(residual dim, unit) of a form's dim; a residual dim used again gets a new form dim."""
        return self._places[dim]

    def residual_dims(self, field: Field) -> list[int]:
        return [self.place(dim)[0] for dim in field.dims]
