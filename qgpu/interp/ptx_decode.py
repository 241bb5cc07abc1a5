"""Decoding for the PTX interpreter: each instruction becomes a function that executes it.

An instruction that is not integer PTX decodes to one that raises when it is reached, so a kernel
is refused only for what it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qgpu.errors import Error
from qgpu.interp.ptx_alu import atomic, carry_rule, comparison, rule_of
from qgpu.interp.ptx_code import Body, Code, Instruction, Read, Write
from qgpu.interp.ptx_memory import CODE_BASE, from_generic, to_generic, variable_bytes, window_of
from qgpu.interp.ptx_operands import Operands
from qgpu.interp.ptx_types import BITS, Unsupported, pattern
from qgpu.interp.ptx_warp import WARP_DECODERS
from qgpu.ptxir import Inst, Operand, Pair, Reg, Sym, Variable, Vec

if TYPE_CHECKING:
    from qgpu.interp.ptx import Machine
    from qgpu.interp.ptx_threads import Lane

Alone = Callable[["Lane"], None]

SPACES = ("global", "const", "shared", "local", "param")
SINK = Reg("_")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def decode_body(machine: Machine, code: Code, body: Body) -> None:
    """Decode one function's instructions in place."""
    operands = Operands(machine, code, body)
    for index in range(body.start, body.start + code.length(body)):
        _decode(operands, code.instructions[index])


def _decode(operands: Operands, instruction: Instruction) -> None:
    inst = instruction.inst
    try:
        if inst.guard is not None:
            instruction.guard = _guard(operands, inst)
        root = inst.opcode[0]
        if root in WARP_DECODERS:
            WARP_DECODERS[root](operands, instruction)
        elif root in DECODERS and not _carries(inst):
            instruction.alone = DECODERS[root](operands, inst)
        else:
            instruction.alone = _arithmetic(operands, inst)
    except (Unsupported, KeyError, IndexError, ValueError, TypeError):
        # An operand list of another shape than the instruction has is as unsupported as its name.
        instruction.alone = _raise(operands.code.unsupported(inst))
        instruction.together = None


def _raise(error: Error) -> Alone:
    def execute(lane: Lane) -> None:
        raise error

    return execute


def _guard(operands: Operands, inst: Inst) -> Read:
    assert inst.guard is not None
    read, negate = operands.read(inst.guard.reg, "pred"), int(inst.guard.negate)
    return lambda lane: read(lane) ^ negate


# --- arithmetic ---------------------------------------------------------------------------------


def _carries(inst: Inst) -> bool:
    return "cc" in inst.opcode or inst.opcode[0] in ("addc", "subc", "madc")


def _arithmetic(operands: Operands, inst: Inst) -> Alone:
    if _carries(inst):
        return _with_carry(operands, inst)
    rule = rule_of(inst.opcode)
    target, *sources = inst.operands
    if len(sources) != len(rule.sources):
        raise Unsupported
    reads = [operands.read(s, t) for s, t in zip(sources, rule.sources, strict=True)]
    write, compute = operands.write(target, rule.result), rule.compute

    def execute(lane: Lane) -> None:
        write(lane, compute(*[read(lane) for read in reads]))

    return execute


def _with_carry(operands: Operands, inst: Inst) -> Alone:
    type_, n_sources, compute = carry_rule(inst.opcode)
    target, *sources = inst.operands
    if len(sources) != n_sources:
        raise Unsupported
    unsigned = f"u{BITS[type_]}"
    reads = [operands.read(source, unsigned) for source in sources]
    write, sets = operands.write(target, type_), "cc" in inst.opcode

    def execute(lane: Lane) -> None:
        value, carry = compute([read(lane) for read in reads], lane.carry)
        write(lane, value)
        if sets:
            lane.carry = carry

    return execute


def _setp(operands: Operands, inst: Inst) -> Alone:
    compare, combine = comparison(list(inst.opcode[1:-1]))
    type_ = inst.opcode[-1]
    if type_ not in BITS or type_[0] == "f":
        raise Unsupported
    target, *sources = inst.operands
    pair = (target.first, target.second) if isinstance(target, Pair) else (target, SINK)
    write_p, write_q = (operands.write(predicate, "pred") for predicate in pair)
    if len(sources) != (2 if combine is None else 3):
        raise Unsupported
    a, b = operands.read(sources[0], type_), operands.read(sources[1], type_)
    c = operands.read(sources[2], "pred") if combine else None

    def execute(lane: Lane) -> None:
        truth = int(compare(a(lane), b(lane)))
        p, q = truth, 1 - truth
        if combine is not None and c is not None:
            third = c(lane)
            p, q = combine(truth, third), combine(1 - truth, third)
        write_p(lane, p)
        write_q(lane, q)

    return execute


# --- moves and addresses ------------------------------------------------------------------------


def _mov(operands: Operands, inst: Inst) -> Alone:
    type_ = inst.opcode[-1]
    bits = BITS[type_]
    target, source = inst.operands
    reads = _split_read(operands, source, bits)
    writes = _split_write(operands, target, bits)

    def execute(lane: Lane) -> None:
        value = sum(read(lane) << shift for read, shift in reads)
        for write, shift in writes:
            write(lane, value >> shift)

    return execute


def _split_read(operands: Operands, operand: Operand, bits: int) -> list[tuple[Read, int]]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    part = bits // len(items)
    type_ = "pred" if part == 1 else f"b{part}"
    return [(operands.read(item, type_), n * part) for n, item in enumerate(items)]


def _split_write(operands: Operands, operand: Operand, bits: int) -> list[tuple[Write, int]]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    part = bits // len(items)
    type_ = "pred" if part == 1 else f"b{part}"
    return [(operands.write(item, type_), n * part) for n, item in enumerate(items)]


def _space(inst: Inst) -> str:
    for part in inst.opcode[1:]:
        name = part.split("::")[0]
        if name in SPACES:
            return name
    return "generic"


def _cvta(operands: Operands, inst: Inst) -> Alone:
    space, bits = _space(inst), inst.opcode[-1]
    convert = from_generic if "to" in inst.opcode else to_generic
    target, source = inst.operands
    read, write = operands.read(source, bits), operands.write(target, bits)
    if space == "param" and not operands.function.is_kernel:
        space = "local"
    return lambda lane: write(lane, convert(read(lane), space))


def _isspacep(operands: Operands, inst: Inst) -> Alone:
    space = _space(inst)
    target, source = inst.operands
    read, write = operands.read(source, "u64"), operands.write(target, "pred")
    return lambda lane: write(lane, int(window_of(read(lane)) == space))


# --- memory -------------------------------------------------------------------------------------


def _access(inst: Inst) -> tuple[str, str, int]:
    """(space, element type, vector width) of ld or st."""
    if "async" in inst.opcode:
        raise Unsupported
    width = next((VECTORS[part] for part in inst.opcode if part in VECTORS), 1)
    return _space(inst), inst.opcode[-1], width


def _ld(operands: Operands, inst: Inst) -> Alone:
    space, type_, width = _access(inst)
    size = BITS[type_] // 8
    target, memory = inst.operands[:2]
    place = operands.place(memory, space)
    writes = [operands.write(item, type_) for item in operands.parts(target, type_, width)]

    def execute(lane: Lane) -> None:
        value = operands.load(lane, *place(lane), size * width)
        for n, write in enumerate(writes):
            write(lane, value >> 8 * size * n)

    return execute


def _st(operands: Operands, inst: Inst) -> Alone:
    space, type_, width = _access(inst)
    size = BITS[type_] // 8
    memory, source = inst.operands[:2]
    place = operands.place(memory, space)
    plain = f"b{8 * size}"
    reads = [operands.read(item, plain) for item in operands.parts(source, type_, width)]

    def execute(lane: Lane) -> None:
        value = sum(read(lane) << 8 * size * n for n, read in enumerate(reads))
        operands.store(lane, *place(lane), size * width, value)

    return execute


def _atom(operands: Operands, inst: Inst) -> Alone:
    type_ = inst.opcode[-1]
    op = next(part for part in inst.opcode[1:-1] if part in ATOMIC_OPS)
    if "async" in inst.opcode or any(part in VECTORS for part in inst.opcode):
        raise Unsupported
    compute, size = atomic(op, type_), BITS[type_] // 8
    returns = inst.opcode[0] == "atom"
    target, (memory, *sources) = (
        (inst.operands[0], inst.operands[1:]) if returns else (SINK, inst.operands)
    )
    place = operands.place(memory, _space(inst))
    write, plain = operands.write(target, type_), f"b{8 * size}"
    reads = [operands.read(source, plain) for source in sources]
    if len(reads) != (2 if op == "cas" else 1):
        raise Unsupported

    def execute(lane: Lane) -> None:
        where = place(lane)
        old = operands.load(lane, *where, size)
        values = [read(lane) for read in reads]
        new = compute(old, values[0], values[-1])
        operands.store(lane, *where, size, new)
        write(lane, old)

    return execute


ATOMIC_OPS = ("add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min", "max")


# --- control ------------------------------------------------------------------------------------


def _bra(operands: Operands, inst: Inst) -> Alone:
    (target,) = inst.operands
    if not isinstance(target, Sym):
        raise Unsupported
    pc = operands.body.labels[target.name]
    return lambda lane: lane.jump(pc)


def _brx(operands: Operands, inst: Inst) -> Alone:
    index, table = inst.operands
    if not isinstance(table, Sym):
        raise Unsupported
    targets = [operands.body.labels[name] for name in operands.body.tables[table.name]]
    read = operands.read(index, "u32")

    def execute(lane: Lane) -> None:
        chosen = read(lane)
        if chosen >= len(targets):
            raise operands.code.fault(inst, f"branch {chosen} of {len(targets)}")
        lane.jump(targets[chosen])

    return execute


def _exit(operands: Operands, inst: Inst) -> Alone:
    return lambda lane: lane.exit()


def _trap(operands: Operands, inst: Inst) -> Alone:
    return _raise(operands.code.fault(inst, "trap"))


def _nothing(operands: Operands, inst: Inst) -> Alone:
    return lambda lane: None


def _call(operands: Operands, inst: Inst) -> Alone:
    parts = list(inst.operands)
    results = parts.pop(0).items if isinstance(parts[0], Vec) else ()  # type: ignore[union-attr]
    target = parts.pop(0)
    arguments = parts[0].items if parts and isinstance(parts[0], Vec) else ()
    read_target = operands.read(target, "u64")

    def execute(lane: Lane) -> None:
        body = operands.code.at.get(read_target(lane) - CODE_BASE)
        if body is None:
            raise operands.code.fault(inst, "a call of something that is not a function")
        callee = body.function
        if not callee.body:
            raise operands.code.fault(inst, f"{callee.name} has no body")
        if len(arguments) != len(callee.params) or len(results) != len(callee.returns):
            raise operands.code.fault(inst, f"arguments do not fit {callee.name}")
        values = [
            _take(operands, lane, item, parameter)
            for item, parameter in zip(arguments, callee.params, strict=True)
        ]
        lane.enter(body, results)
        for value, parameter in zip(values, callee.params, strict=True):
            _give(operands, lane, parameter.name, parameter, value)

    return execute


def _take(operands: Operands, lane: Lane, item: Operand, parameter: Variable) -> int:
    """An argument or a result as one number: a register, a constant, or a .param variable."""
    if isinstance(item, Sym) and item.name in lane.frame.addresses:
        data, start = operands.machine.locate(lane, "local", lane.frame.addresses[item.name], 1)
        return int.from_bytes(data[start : start + variable_bytes(parameter)], "little")
    return operands.read(item, f"b{8 * variable_bytes(parameter)}")(lane)


def _give(operands: Operands, lane: Lane, name: str, parameter: Variable, value: int) -> None:
    """Write a parameter or result into the frame on top."""
    size = variable_bytes(parameter)
    if name in lane.frame.addresses:
        data, start = operands.machine.locate(lane, "local", lane.frame.addresses[name], 1)
        data[start : start + size] = pattern(value, 8 * size).to_bytes(size, "little")
    else:
        lane.frame.registers[name] = pattern(value, 8 * size)


def _ret(operands: Operands, inst: Inst) -> Alone:
    returns = operands.function.returns

    def execute(lane: Lane) -> None:
        if len(lane.frames) == 1:
            lane.exit()
            return
        values = []
        for variable in returns:
            item: Operand = Reg(variable.name) if variable.space == "reg" else Sym(variable.name)
            values.append(_take(operands, lane, item, variable))
        results = lane.leave().results
        for item, variable, value in zip(results, returns, values, strict=True):
            assert isinstance(item, Reg | Sym)
            _give(operands, lane, item.name, variable, value)

    return execute


DECODERS: dict[str, Callable[[Operands, Inst], Alone]] = {
    "setp": _setp, "mov": _mov, "mova": _mov, "cvta": _cvta, "isspacep": _isspacep,
    "ld": _ld, "ldu": _ld, "st": _st, "atom": _atom, "red": _atom,
    "bra": _bra, "brx": _brx, "call": _call, "ret": _ret, "exit": _exit,
    "trap": _trap, "brkpt": _trap,
    **dict.fromkeys(
        ("membar", "fence", "nanosleep", "pmevent", "prefetch", "prefetchu", "applypriority",
         "discard", "griddepcontrol", "setmaxnreg"),
        _nothing,
    ),
}  # fmt: skip
