"""An expression computed by launches of the stock kernels: one operation at a time.

The host places data, splits what is too long for the memory, and reads results; every number that
an operation yields comes from a launch. What a kernel found (a result that did not fit in 32 bits,
a remainder, values outside a histogram) becomes a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qgpu.host.chat.device import Device, stock_program
from qgpu.host.chat.expression import (
    Array,
    Binary,
    Call,
    ExpressionError,
    Integer,
    Node,
    Unary,
    parse,
)
from qgpu.host.chat.operands import (
    FITS,
    RULES,
    Value,
    as_value,
    check_arity,
    check_size,
    numbers,
    scalar,
    shape_text,
    sums_fit,
    vector,
)
from qgpu.host.chat.stock import FUNCTIONS, LARGE_PRIME, NAMES, OPERATORS, SPECIAL, Elementwise

TRIAL_DIVISION = 1 << 16  # is_prime counts up to the root; above this the other test is shorter
SORT_PIECE = 64  # ranking takes tokens by the square of this
WRAPPED = "wrapped around 32 bits: the exact result does not fit"


@dataclass
class Answer:
    """What an expression came to."""

    expression: str
    value: Value
    notes: list[str] = field(default_factory=list)

    @property
    def plain(self) -> Any:
        """The value as Python integers and lists."""
        return self.value.tolist()

    def __str__(self) -> str:
        return "\n".join([str(self.plain), *(f"note: {note}" for note in self.notes)])


class Calculator:
    """Evaluates expressions on one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._notes: dict[str, None] = {}

    def calculate(self, text: str) -> Answer:
        """Parse and compute ``text``; qgpu.Error says in one line what cannot be done."""
        self._notes = {}
        before = len(self.device.records)
        value = self._evaluate(parse(text))
        if len(self.device.records) == before:
            self._note("nothing to compute: no launch was needed")
        return Answer(text.strip(), value, list(self._notes))

    # --- the tree -------------------------------------------------------------------------------

    def _evaluate(self, node: Node) -> Value:
        match node:
            case Integer(value):
                return as_value(value)
            case Array(items):
                return self._array([self._evaluate(item) for item in items])
            case Unary("-", operand):
                return self._elementwise("-", OPERATORS["-"], as_value(0), self._evaluate(operand))
            case Unary("~", operand):
                return self._elementwise("~", OPERATORS["^"], self._evaluate(operand), as_value(-1))
            case Binary("@", left, right):
                return self._product("@", self._evaluate(left), self._evaluate(right))
            case Binary(op, left, right):
                return self._elementwise(
                    op, OPERATORS[op], self._evaluate(left), self._evaluate(right)
                )
            case Call(name, arguments):
                return self._call(name, [self._evaluate(a) for a in arguments])
        raise AssertionError(node)

    def _array(self, items: list[Value]) -> Value:
        if len({item.shape for item in items}) > 1:
            raise ExpressionError("the rows of a matrix must have the same length")
        if items and items[0].ndim > 1:
            raise ExpressionError("arrays have at most two dimensions")
        value = as_value(items)
        check_size(value.size)
        return value

    def _call(self, name: str, arguments: list[Value]) -> Value:
        if name in FUNCTIONS:
            kernel = FUNCTIONS[name]
            check_arity(name, arguments, kernel.arity, kernel.arity)
            if name == "is_prime" and (arguments[0] >= TRIAL_DIVISION).any():
                kernel = LARGE_PRIME
            return self._elementwise(name, kernel, *arguments)
        if name not in SPECIAL:
            raise ExpressionError(f"there is no function {name}; there are {', '.join(NAMES)}")
        method: Callable[[list[Value]], Value] = getattr(self, f"_call_{name}")
        return method(arguments)

    # --- one operation, as many launches as it takes --------------------------------------------

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _room(self, fixed: int, per_element: int) -> int:
        """How many elements fit in one launch beside ``fixed`` words.

        Arrays are aligned to two words, and an eighth of the memory is the kernel's own.
        """
        words = self.device.n_words - self.device.n_words // 8 - 2 - fixed - per_element
        if words < 2 * per_element:
            raise ExpressionError(
                f"too big: this needs {fixed} words beside the data, "
                f"the machine has {self.device.n_words}"
            )
        return words // per_element

    def _pieces(self, size: int, room: int) -> Iterator[slice]:
        if size > room:
            self._note(
                f"{size} elements go in pieces of {room}, {-(-size // room)} of them: "
                "one launch of the machine holds no more"
            )
        for start in range(0, size, room):
            yield slice(start, min(start + room, size))

    def _run(self, file: str, kernel: str, threads: int, *args: Any) -> list[Any]:
        """Launch with ``threads`` threads, in CUDA blocks as large as the machine has them."""
        block = min(threads, self.device.n_threads)
        compiled = stock_program(file).kernel(kernel)
        return self.device.launch(compiled, [-(-threads // block)], [block], args)

    def _elementwise(self, op: str, kernel: Elementwise, *operands: Value) -> Value:
        shapes = [value.shape for value in operands if value.ndim]
        if len(set(shapes)) > 1:
            raise ExpressionError(
                f"{op} needs a scalar or equal shapes, not {' and '.join(map(shape_text, shapes))}"
            )
        RULES[kernel.rule](op, operands[-1])
        if kernel.plain and FITS[kernel.plain](*operands):
            kernel = replace(kernel, kernel=kernel.plain, wraps=False)
        flat = [value.ravel() for value in operands]
        steps = [int(value.ndim > 0) for value in operands]
        size = max(value.size for value in flat) if all(v.size for v in flat) else 0
        out = np.zeros(size, np.int32)
        room = self._room(4 * (2 - sum(steps)) + 2, sum(steps) + 1)
        for piece in self._pieces(size, room):
            out[piece] = self._elementwise_piece(kernel, flat, steps, piece)
        return out.reshape(shapes[0] if shapes else ())

    def _elementwise_piece(
        self, kernel: Elementwise, flat: list[Value], steps: list[int], piece: slice
    ) -> Value:
        n = piece.stop - piece.start
        inputs = [value[piece] if step else value for value, step in zip(flat, steps, strict=True)]
        flag = [np.zeros(1, np.int32)] if kernel.wraps else []
        tail = steps if kernel.arity == 2 else []
        after = self._run(
            kernel.file, kernel.kernel, n, *inputs, np.zeros(n, np.int32), *flag, n, *tail
        )
        if flag and after[len(inputs) + 1][0]:
            self._note(WRAPPED)
        result: Value = after[len(inputs)]
        return result

    # --- reductions -----------------------------------------------------------------------------

    def _total(self, kernel: str, vectors: list[Value], words: int = 3, *tail: int) -> Value:
        """A running total over the vectors' elements: see reduce.cu."""
        total = np.zeros(words, np.int32)
        size = vectors[0].size
        for piece in self._pieces(size, self._room(words + 1, len(vectors))):
            parts = [vector[piece] for vector in vectors]
            n = piece.stop - piece.start
            total = self._run("reduce.cu", kernel, n, *parts, total, n, *tail)[len(vectors)]
        return total

    def _sum(self, name: str, vectors: list[Value]) -> Value:
        """The total of a vector, or of two vectors' products."""
        kernel = name if sums_fit(vectors, vectors[0].size) else f"{name}_wide"
        return self._total(kernel, vectors)

    def _low_word(self, total: Value) -> Value:
        if total[1] or total[2]:
            self._note(WRAPPED)
        return as_value(total[0])

    def _call_sum(self, arguments: list[Value]) -> Value:
        return self._low_word(self._sum("sum", [numbers("sum", arguments, empty=True)]))

    def _call_dot(self, arguments: list[Value]) -> Value:
        check_arity("dot", arguments, 2, 2)
        return self._product("dot", *arguments)

    def _call_matmul(self, arguments: list[Value]) -> Value:
        check_arity("matmul", arguments, 2, 2)
        return self._product("matmul", *arguments)

    def _call_mean(self, arguments: list[Value]) -> Value:
        v = numbers("mean", arguments)
        total = self._sum("sum", [v])
        kernel = "mean_wide" if total[1] else "mean"
        quotient, rest = self._run("reduce.cu", kernel, 1, total, np.zeros(2, np.int32), v.size)[1]
        if rest:
            self._note(f"the mean is {quotient} and {rest}/{v.size}: remainder {rest}")
        return as_value(quotient)

    def _call_prod(self, arguments: list[Value]) -> Value:
        v = numbers("prod", arguments, empty=True)
        state = as_value([1, 1, 0, 0, 0])
        for piece in self._pieces(v.size, self._room(6, 1)):
            n = piece.stop - piece.start
            state = self._run("reduce.cu", "prod", 1, v[piece], state, n)[1]
        if state[4]:
            self._note(WRAPPED)
        return as_value(state[0])

    def _extreme(self, name: str, kernel: str, arguments: list[Value]) -> Value:
        v = numbers(name, arguments)
        best = v[:1]
        for piece in self._pieces(v.size, self._room(2, 1)):
            n = piece.stop - piece.start
            best = self._run("reduce.cu", kernel, n, v[piece], best, n)[1]
        return as_value(best[0])

    def _call_min(self, arguments: list[Value]) -> Value:
        return self._extreme("min", "minimum", arguments)

    def _call_max(self, arguments: list[Value]) -> Value:
        return self._extreme("max", "maximum", arguments)

    def _arg_extreme(self, name: str, arguments: list[Value]) -> Value:
        v = numbers(name, arguments)
        state = as_value([v[0], 0])
        for piece in self._pieces(v.size, self._room(2, 1)):
            n = piece.stop - piece.start
            state = self._run("reduce.cu", name, 1, v[piece], state, n, piece.start)[1]
        return as_value(state[1])

    def _call_argmin(self, arguments: list[Value]) -> Value:
        return self._arg_extreme("argmin", arguments)

    def _call_argmax(self, arguments: list[Value]) -> Value:
        return self._arg_extreme("argmax", arguments)

    def _call_count(self, arguments: list[Value]) -> Value:
        check_arity("count", arguments, 1, 2)
        v = arguments[0].ravel()
        if len(arguments) == 1:
            return as_value(self._total("count_nonzero", [v], 1)[0])
        x = scalar("count", "the value to count", arguments[1])
        return as_value(self._total("count_equal", [v], 1, x)[0])

    def _call_histogram(self, arguments: list[Value]) -> Value:
        check_arity("histogram", arguments, 1, 2)
        v = numbers("histogram", arguments[:1])
        if len(arguments) == 2:
            bins = scalar("histogram", "the number of bins", arguments[1])
        else:
            bins = int(self._call_max([v])) + 1
        if not 1 <= bins <= self.device.n_words // 2:
            raise ExpressionError(
                f"histogram counts the values 0 to bins - 1: bins is {bins}, "
                f"and must be 1 to {self.device.n_words // 2}"
            )
        counts = self._total("histogram", [v], bins + 1, bins)
        if counts[bins]:
            self._note(f"{counts[bins]} of the values lie outside 0 to {bins - 1}: not counted")
        return counts[:bins]

    # --- order ----------------------------------------------------------------------------------

    def _call_sort(self, arguments: list[Value]) -> Value:
        v = vector("sort", arguments)
        n = v.size
        if not n:
            return v
        if n <= min(self._room(0, 2), SORT_PIECE):
            result: Value = self._run("order.cu", "sort", n, v, np.zeros(n, np.int32), n)[1]
            return result
        return self._sort_pieces(v)

    def _sort_pieces(self, v: Value) -> Value:
        """The rank of every element against every piece, then each to its place."""
        room = min(self._room(0, 3), SORT_PIECE)
        pieces = list(self._pieces(v.size, room))
        ranks = np.zeros(v.size, np.int32)
        for mine in pieces:
            for other in pieces:
                n, n_other = mine.stop - mine.start, other.stop - other.start
                ranks[mine] = self._run(
                    "order.cu", "rank", n, v[mine], v[other], ranks[mine],
                    n, n_other, mine.start, other.start,
                )[2]  # fmt: skip
        out = np.zeros(v.size, np.int32)
        for window in pieces:
            for mine in pieces:
                n, n_out = mine.stop - mine.start, window.stop - window.start
                out[window] = self._run(
                    "order.cu", "place", n, v[mine], ranks[mine], out[window],
                    n, window.start, n_out,
                )[2]  # fmt: skip
        return out

    def _call_cumsum(self, arguments: list[Value]) -> Value:
        v = vector("cumsum", arguments)
        out, total = np.zeros(v.size, np.int32), np.zeros(3, np.int32)
        for piece in self._pieces(v.size, self._room(4, 2)):
            n = piece.stop - piece.start
            _, out[piece], total, _ = self._run(
                "reduce.cu", "cumsum", 1, v[piece], np.zeros(n, np.int32), total, n
            )
        if total[2]:
            self._note(WRAPPED)
        return out

    def _call_reverse(self, arguments: list[Value]) -> Value:
        v = vector("reverse", arguments)
        out = np.zeros(v.size, np.int32)
        for piece in self._pieces(v.size, self._room(0, 2)):
            n = piece.stop - piece.start
            out[v.size - piece.stop : v.size - piece.start] = self._run(
                "order.cu", "reverse", n, v[piece], np.zeros(n, np.int32), n
            )[1]
        return out

    def _call_range(self, arguments: list[Value]) -> Value:
        check_arity("range", arguments, 1, 3)
        bounds = [scalar("range", "every bound", value) for value in arguments]
        start, stop, step = 0, bounds[0], 1
        if len(bounds) > 1:
            start, stop = bounds[:2]
        if len(bounds) == 3:
            step = bounds[2]
        if step == 0:
            raise ExpressionError("range needs a step that is not zero")
        size = len(range(start, stop, step))
        check_size(size)
        out = np.zeros(size, np.int32)
        for piece in self._pieces(size, self._room(0, 1)):
            n = piece.stop - piece.start
            first = start + piece.start * step
            out[piece] = self._run(
                "elementwise.cu", "range", n, np.zeros(n, np.int32), n, first, step
            )[0]
        return out

    # --- products -------------------------------------------------------------------------------

    def _product(self, op: str, a: Value, b: Value) -> Value:
        if not a.ndim or not b.ndim:
            raise ExpressionError(f"{op} needs vectors or matrices; use * for a scalar")
        if a.shape[-1] != b.shape[0]:
            raise ExpressionError(
                f"{op} needs inner sizes that are equal, not {shape_text(a.shape)} "
                f"and {shape_text(b.shape)}"
            )
        if a.ndim == b.ndim == 1:
            return self._low_word(self._sum("dot", [a, b]))
        left = a if a.ndim == 2 else a.reshape(1, -1)
        right = b if b.ndim == 2 else b.reshape(-1, 1)
        return self._matmul(left, right).reshape((*a.shape[:-1], *b.shape[1:]))

    def _matmul(self, a: Value, b: Value) -> Value:
        (rows, inner), columns = a.shape, b.shape[1]
        check_size(rows * columns)
        tile = self._tile(rows, inner, columns)
        out = np.zeros((rows, columns), np.int32)
        if not all((rows, inner, columns)):
            return out
        for top in range(0, rows, tile[0]):
            for left in range(0, columns, tile[2]):
                place = slice(top, top + tile[0]), slice(left, left + tile[2])
                out[place] = self._matmul_tile(a[place[0]], b[:, place[1]], tile[1])
        return out

    def _tile(self, rows: int, inner: int, columns: int) -> tuple[int, int, int]:
        """The largest tile (rows, inner, columns) whose two factors and sums fit in memory."""
        room, wanted = self._room(2, 1), (rows, inner, columns)

        def words(tile: tuple[int, int, int]) -> int:
            m, k, n = tile
            return m * k + k * n + 2 * m * n + 4

        tile = wanted
        while words(tile) > room:
            largest = max(range(3), key=lambda axis: tile[axis])
            tile = tuple(  # type: ignore[assignment]
                -(-size // 2) if axis == largest else size for axis, size in enumerate(tile)
            )
        if tile != wanted:
            launches = np.prod([-(-w // t) for w, t in zip(wanted, tile, strict=True)])
            self._note(
                f"the product {rows}x{inner} @ {inner}x{columns} in {launches} launches: "
                "one launch of the machine holds no more"
            )
        return tile

    def _matmul_tile(self, a: Value, b: Value, depth: int) -> Value:
        rows, columns = a.shape[0], b.shape[1]
        width = min(columns, self.device.n_threads)
        height = min(rows, self.device.n_threads // width)
        grid, block = [-(-columns // width), -(-rows // height)], [width, height]
        # The plain kernel has the sums alone, the wide one their high words and a flag as well.
        wide = not sums_fit([a, b], a.shape[1])
        sums = [np.zeros(n, np.int32) for n in (rows * columns, rows * columns, 1)[: 1 + 2 * wide]]
        kernel = stock_program("matrix.cu").kernel("matmul_wide" if wide else "matmul")
        for start in range(0, a.shape[1], depth):
            part_a, part_b = a[:, start : start + depth], b[start : start + depth]
            sizes = [rows, part_a.shape[1], columns]
            factors = [part_a.ravel(), part_b.ravel()]
            after = self.device.launch(kernel, grid, block, [*factors, *sums, *sizes])
            sums = after[2 : 2 + len(sums)]
        if any(extra.any() for extra in sums[1:]):
            self._note(WRAPPED)
        return sums[0].reshape(rows, columns)
