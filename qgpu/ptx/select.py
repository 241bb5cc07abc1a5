"""Selection: PTX instructions -> nodes over virtual registers, by the rules of ``rules_*.py``.

``Selector`` is what a rule writes with: it reads operands as 32-bit words, emits folded nodes,
opens blocks and assigns destinations under the instruction's guard. ``unmet`` are the instructions
that have to look for the lanes that their mask names (``align.py``). A rule is a function of the
selector and the instruction, found by the first part of the opcode in ``RULES``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from qgpu.errors import CompileError
from qgpu.isa import Immediate, Op
from qgpu.kernel import LaunchShape
from qgpu.machine import MachineSpec
from qgpu.ptx.fold import Facts, simplify
from qgpu.ptx.memory import Memory
from qgpu.ptx.mir import ONE, ZERO, Block, Condition, Edge, Graph, Node, Value, Virtual, imm
from qgpu.ptx.named import has_several_numbers
from qgpu.ptxir import TYPE_BYTES, Function, Imm, Inst, Not, Operand, Pair, Reg, Sym, Vec

Rule = Callable[["Selector", Inst], None]
RULES: dict[str, Rule] = {}
INTEGER_TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the opcodes that start with these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def type_bits(type_: str) -> int:
    return 1 if type_ == "pred" else 8 * TYPE_BYTES[type_]


class Selector:
    """The state of selection: where nodes go and what PTX names stand for."""

    def __init__(
        self, function: Function, spec: MachineSpec, shape: LaunchShape, memory: Memory, file: str,
        unmet: frozenset[Inst] = frozenset(),
    ) -> None:  # fmt: skip
        self.function, self.spec, self.shape, self.memory = function, spec, shape, memory
        self.file, self.unmet = file, unmet
        self.graph = Graph(spec.n_lanes)
        self.facts = Facts(shape.n_threads, spec.n_lanes)
        self.block = self.graph.new_block("entry")
        self.registers: dict[str, list[Virtual]] = {}
        self.labels: dict[str, Block] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self.defined_once = _defined_once(function)
        self.constants: dict[Virtual, Immediate] = {}
        self.inst = Inst((), ())
        self.epoch = 0
        self.tail: Block | None = None
        self.ctaid: Value = ZERO
        self.carry = self.graph.fresh()
        self.uses_barrier = False
        self.names_barriers = has_several_numbers(function)

    # --- errors and types

    def fail(self, reason: str) -> CompileError:
        file, line = self.inst.place(self.file)
        return CompileError(reason, file=file, line=line, instruction=self.inst.text or None)

    def type_of(self, inst: Inst, index: int = -1) -> str:
        """The ``index``-th type in the opcode; floating point is refused here."""
        types = [part for part in inst.opcode[1:] if part in TYPE_BYTES or part == "pred"]
        if not types:
            raise self.fail("an instruction without an integer type is not supported")
        type_ = types[index]
        if type_ not in INTEGER_TYPES and type_ != "pred":
            raise self.fail(f"this machine computes integers only, not .{type_}")
        return type_

    # --- emitting

    def emit(
        self, op: Op, a: Value | None = None, b: Value | None = None, c: Value | None = None,
        guard: Condition | None = None,
    ) -> Value:  # fmt: skip
        """Append an operation and return its value, or the constant or operand that it folds to."""
        node = Node(op, a, b, c, guard, None, self.inst, self.epoch)
        folded = simplify(node, self.facts)
        if folded is not None:
            return folded
        node.dst = self.graph.fresh()
        self.facts.add(node)
        self.block.nodes.append(node)
        return node.dst

    def effect(self, op: Op, a: Value, b: Value, c: Value, guard: Condition | None = None) -> None:
        self.block.nodes.append(Node(op, a, b, c, guard, None, self.inst, self.epoch))

    def trap(self, reason: str) -> None:
        """Note for the host that the launch has failed, and why."""
        address, number = self.memory.trap(str(self.fail(reason)))
        self.effect(Op.ST, imm(address), ZERO, imm(number))

    def move(self, dst: Virtual, value: Value) -> None:
        """``dst = value`` in every lane."""
        self.block.nodes.append(Node(Op.MOV, value, None, None, None, dst, self.inst))

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """``condition ? yes : no`` for a truth value."""
        if not isinstance(condition, Virtual):
            return yes if condition.value & 1 else no
        if yes == no:
            return yes
        if yes == ONE and no == ZERO:
            return condition
        return self.emit(Op.MOV, yes, None, no, Condition(condition))

    def negate(self, truth: Value) -> Value:
        return self.emit(Op.XOR, truth, ONE)

    # --- control flow

    def split(self, hint: str) -> Block:
        """A new block to lead to later; not yet current."""
        return self.graph.new_block(hint)

    @contextmanager
    def guarded(self, branch: bool = False) -> Iterator[None]:
        """What is written inside happens only where the guard holds. Narrow stores and
        ``branch`` lead the other lanes around it; else each node takes the guard itself."""
        narrow = self.inst.opcode[-1] in ("b8", "u8", "s8", "b16", "u16", "s16")
        condition = self.condition
        if condition is None or not (branch or narrow):
            yield
            return
        inside, after, inst = self.split("guarded"), self.split("after"), self.inst
        yes, no = (after, inside) if condition.negate else (inside, after)
        self.branch(condition.reg, yes, no)
        self.block, self.inst = inside, replace(inst, guard=None)
        yield
        self.inst = inst
        self.jump(after)

    def jump(self, block: Block, barrier: bool = False) -> None:
        """End the current block; ``block`` is current from here on."""
        self.block.target = Edge(block, barrier)
        self.block = block

    def branch(self, truth: Value, taken: Block, target: Block) -> None:
        """End the current block in two directions; the caller chooses where to go on."""
        if isinstance(truth, Virtual):
            self.block.condition = Condition(truth)
            self.block.taken, self.block.target = Edge(taken), Edge(target)
        else:
            self.block.target = Edge(taken if truth.value & 1 else target)

    @property
    def exit_edge(self) -> Edge:
        """Where a thread goes that ends."""
        return Edge(self.tail)

    # --- operands

    def register(self, name: str) -> list[Virtual]:
        """The virtual registers of a PTX register, low word first."""
        if name not in self.registers:
            type_ = self.function.registers.get(name)
            if type_ is None:
                raise self.fail(f"the register {name} is not supported")
            if type_ == "b128":
                raise self.fail("this machine has no 128-bit registers")
            count = 2 if TYPE_BYTES.get(type_, 4) == 8 else 1
            self.registers[name] = [self.graph.fresh() for _ in range(count)]
        return self.registers[name]

    def read(self, operand: Operand, bits: int = 32) -> list[Value]:
        """The operand's words, low first: one, or two for 64 bits. Upper bits of a narrower
        operand are as they come; ``extend`` makes them meaningful."""
        n_words = 2 if bits == 64 else 1
        words: list[Value]
        match operand:
            case Imm(value, is_float):
                if is_float:
                    raise self.fail("this machine computes integers only, not floating point")
                words = [imm(value), imm(value >> 32)]
            case Reg(name):
                special = self.special(name)
                words = [special] if special is not None else self._words_of(name)
            case Not(reg):
                words = [self.negate(self.read(reg)[0])]
            case Sym(name, offset):
                words = [self.symbol(name, offset)]
            case _:
                raise self.fail("an operand of a kind that is not supported")
        return [*words, ZERO][:n_words]

    def _words_of(self, name: str) -> list[Value]:
        """The register's words; a constant where that is all that it ever holds."""
        return [self.constants.get(word, word) for word in self.register(name)]

    def symbol(self, name: str, offset: int) -> Value:
        """The address of a variable."""
        place = self.memory.place(name, self.fail)
        if not place.is_local:
            return imm(place.address + offset)
        if self.graph.local_base is None:
            self.graph.local_base = self.graph.fresh()
        return self.emit(Op.ADD, self.graph.local_base, imm(place.address + offset))

    def word(self, operand: Operand) -> Value:
        return self.read(operand)[0]

    def truth(self, operand: Operand) -> Value:
        """A predicate operand as 0 or 1."""
        match operand:
            case Imm(value):
                return imm(value != 0)
        return self.read(operand)[0]

    def special(self, name: str) -> Value | None:
        """The value of a special register, None if it is an ordinary one."""
        from qgpu.ptx.rules_warp import special_register

        return None if name in self.function.registers else special_register(self, name)

    def extend(self, value: Value, type_: str) -> Value:
        """An 8- or 16-bit value made a whole word by its sign or zeros."""
        bits = type_bits(type_)
        if bits >= 32 or bits == 1:
            return value
        if type_[0] != "s":
            return self.emit(Op.AND, value, imm((1 << bits) - 1))
        if self.facts.limit(value) < 1 << (bits - 1):
            return value
        return self.emit(Op.PRMT, value, ZERO, imm(0x8880 if bits == 8 else 0x9910))

    def operand(self, operand: Operand, type_: str) -> Value:
        """A word operand of at most 32 bits, extended by its type."""
        return self.extend(self.word(operand), type_)

    def wide(self, operand: Operand) -> tuple[Value, Value]:
        low, high = self.read(operand, 64)
        return low, high

    # --- results

    @property
    def condition(self) -> Condition | None:
        """The instruction's own guard."""
        guard = self.inst.guard
        if guard is None:
            return None
        return Condition(self.register(guard.reg.name)[0], guard.negate)

    def assign(self, dst: Virtual, value: Value) -> None:
        """``dst = value`` where the instruction's guard holds."""
        condition = self.condition
        if condition is None:
            self.move(dst, value)
            return
        self.block.nodes.append(Node(Op.MOV, value, None, dst, condition, dst, self.inst))

    def write(self, operand: Operand, *words: Value) -> None:
        """Assign the instruction's result; a wider register gets zeros above."""
        self.write_all([(operand, words)])

    def write_all(self, results: Sequence[tuple[Operand, Sequence[Value]]]) -> None:
        """Assign several results; every value is read before any register changes."""
        moves: list[tuple[Virtual, Value]] = []
        for operand, words in results:
            if not isinstance(operand, Reg):
                raise self.fail("the destination is not a register")
            if operand.name != "_":
                targets = self.register(operand.name)
                values = list(zip(targets, [*words, ZERO, ZERO], strict=False))
                moves += values
                if operand.name in self.defined_once and self.inst.guard is None:
                    self.constants |= {t: v for t, v in values if isinstance(v, Immediate)}
        changed: set[Value] = set()
        for place, (target, value) in enumerate(moves):
            changed.add(target)
            for later in range(place + 1, len(moves)):
                if moves[later][1] in changed:
                    copy = self.graph.fresh()
                    self.move(copy, moves[later][1])
                    moves[later] = (moves[later][0], copy)
            self.assign(target, value)


def _defined_once(function: Function) -> set[str]:
    """The registers that one place in the text alone writes."""
    counts: Counter[str] = Counter()
    for statement in function.body:
        if isinstance(statement, Inst) and statement.operands:
            match statement.operands[0]:
                case Reg(name):
                    counts[name] += 1
                case Vec(items):
                    counts.update(item.name for item in items if isinstance(item, Reg))
                case Pair(first, second):
                    counts.update((first.name, second.name))
    return {name for name, count in counts.items() if count == 1}


def select_instruction(selector: Selector, inst: Inst) -> None:
    """One instruction by its rule."""
    selector.inst = inst
    found = RULES.get(inst.opcode[0])
    if found is None:
        raise selector.fail(f"the instruction {inst.opcode[0]} is not supported")
    try:
        found(selector, inst)
    except (ValueError, IndexError, KeyError) as error:  # a rule took the operands apart
        raise selector.fail("operands or modifiers that the instruction does not take") from error
