"""The PTX parser: every construct that producers print, and one clear line for what is wrong."""

from __future__ import annotations

import pytest

from qgpu.errors import CompileError
from qgpu.ptx.parse import parse_integer, parse_ptx
from qgpu.ptxir import (
    Branchtargets,
    Function,
    Imm,
    Inst,
    Label,
    Mem,
    Not,
    Pair,
    PtxGuard,
    Reg,
    Relocation,
    Sym,
    Variable,
    Vec,
)

HEAD = ".version 7.5\n.target sm_75\n.address_size 64\n"


def entry(body: str, params: str = "", declarations: str = "") -> Function:
    """A kernel ``k`` with plenty of registers."""
    registers = (
        ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>;"
    )
    text = f"{HEAD}{declarations}\n.visible .entry k({params})\n{{ {registers}\n{body}\n}}"
    return parse_ptx(text).functions["k"]


def one(text: str, **more: str) -> Inst:
    """The first instruction of a body."""
    return next(item for item in entry(text, **more).body if isinstance(item, Inst))


R1, R2, R3 = Reg("%r1"), Reg("%r2"), Reg("%r3")
P1, P2, P3 = Reg("%p1"), Reg("%p2"), Reg("%p3")


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("add.s32 %r1, %r2, -5;", (R1, R2, Imm(-5))),
        ("mov.u32 %r1, 0x1fU;", (R1, Imm(31))),
        ("mov.u32 %r1, 0b101;", (R1, Imm(5))),
        ("mov.u32 %r1, 017;", (R1, Imm(15))),
        ("mov.u32 %r1, ~0;", (R1, Imm(-1))),
        ("mov.f32 %f1, 0f3F800000;", (Reg("%f1"), Imm(0x3F800000, True))),
        ("mov.f32 %f1, -0f3F800000;", (Reg("%f1"), Imm(0xBF800000, True))),
        ("mov.b64 %rd1, 0d3FF0000000000000;", (Reg("%rd1"), Imm(0x3FF << 52, True))),
        ("mov.u32 %r1, %tid.x;", (R1, Reg("%tid.x"))),
        ("mov.u32 %r1, WARP_SZ;", (R1, Reg("WARP_SZ"))),
        ("mov.u64 %rd1, k;", (Reg("%rd1"), Sym("k"))),
        ("mov.b64 %rd1, {%r1, %r2};", (Reg("%rd1"), Vec((R1, R2)))),
        ("mov.b64 {%r1, _}, %rd1;", (Vec((R1, Reg("_"))), Reg("%rd1"))),
        ("ld.global.u32 %r1, [%rd1];", (R1, Mem(Reg("%rd1")))),
        ("ld.global.u32 %r1, [%rd1+4];", (R1, Mem(Reg("%rd1"), 4))),
        ("ld.global.u32 %r1, [%rd1+-4];", (R1, Mem(Reg("%rd1"), -4))),
        ("ld.global.u32 %r1, [%rd1-4];", (R1, Mem(Reg("%rd1"), -4))),
        ("ld.global.u32 %r1, [64];", (R1, Mem(None, 64))),
        ("ld.param.u32 %r1, [n];", (R1, Mem(Sym("n")))),
        ("ld.param.u32 %r1, [n+0];", (R1, Mem(Sym("n")))),
        ("st.global.v2.u32 [%rd1], {%r1, %r2};", (Mem(Reg("%rd1")), Vec((R1, R2)))),
        (
            "setp.lt.and.s32 %p1|%p2, %r1, 5, !%p3;",
            (Pair(P1, P2), R1, Imm(5), Not(P3)),
        ),
        (
            "shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;",
            (Pair(R1, P1), R2, Imm(1), Imm(31), Imm(-1)),
        ),
    ],
)
def test_operands(text: str, operands: tuple[object, ...]) -> None:
    assert one(text, params=".param .u32 n").operands == operands


@pytest.mark.parametrize(
    ("text", "opcode"),
    [
        ("ld.global.L1::no_allocate.v2.u32 {%r1,%r2}, [%rd1];",
         ("ld", "global", "L1::no_allocate", "v2", "u32")),
        ("ld.shared::cta.u32 %r1, [%r2];", ("ld", "shared::cta", "u32")),
        ("atom.acq_rel.gpu.global.add.u32 %r1, [%rd1], 1;",
         ("atom", "acq_rel", "gpu", "global", "add", "u32")),
        ("ret;", ("ret",)),
        ("bar.sync 0;", ("bar", "sync")),
        ("add .s32 %r1, %r1, 1;", ("add", "s32")),
    ],
)  # fmt: skip
def test_opcodes_are_split_at_dots(text: str, opcode: tuple[str, ...]) -> None:
    assert one(text).opcode == opcode


def test_guards_labels_and_lines() -> None:
    body = entry("@%p1 bra $L;\n@!%p2 bra.uni $L;\n$L:\nret;").body
    first, second, label, last = body
    assert isinstance(first, Inst)
    assert isinstance(second, Inst)
    assert isinstance(last, Inst)
    assert (first.guard, second.guard) == (PtxGuard(P1), PtxGuard(P2, negate=True))
    assert label == Label("$L", line=9)
    assert (first.line, second.line, last.line) == (7, 8, 10)
    assert second.text == "@!%p2 bra.uni $L"


def test_branch_targets_take_the_label_before_them() -> None:
    body = entry("brx.idx %r1, $t;\n$t: .branchtargets $A,\n $B;\n$A: $B: ret;").body
    assert body[1:4] == [Branchtargets("$t", ("$A", "$B")), Label("$A", 10), Label("$B", 10)]


def test_call_with_parameters_in_a_scope_of_its_own() -> None:
    call = """{ .param .b32 a; .param .align 8 .b8 r[16]; st.param.b32 [a+0], %r1;
    call.uni (r), f, (a); ld.param.b32 %r2, [r+4]; }"""
    function = entry(
        call + call, declarations=".func (.param .align 8 .b8 x[16]) f(.param .b32 y);"
    )
    assert [(v.name, v.count) for v in function.variables] == [
        ("a", 1), ("r", 16), ("a@2", 1), ("r@2", 16)
    ]  # fmt: skip
    calls = [item for item in function.body if isinstance(item, Inst) and item.opcode[0] == "call"]
    assert calls[0].operands == (Vec((Sym("r"),)), Sym("f"), Vec((Sym("a"),)))
    assert calls[1].operands == (Vec((Sym("r@2"),)), Sym("f"), Vec((Sym("a@2"),)))


def test_a_register_declared_again_in_another_scope_is_another_register() -> None:
    function = entry("{ .reg .u32 t; mov.u32 t, 1; } { .reg .u64 t; mov.u64 t, 2; }")
    assert (function.registers["t"], function.registers["t@2"]) == ("u32", "u64")
    assert [item.operands[0] for item in function.body if isinstance(item, Inst)] == [
        Reg("t"), Reg("t@2")
    ]  # fmt: skip


def test_indirect_calls_and_prototypes() -> None:
    function = entry(
        "p0: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b32 _);\n"
        "call (%r1), %rd1, (%rd2, %r2), p0;\n p1: .callprototype ()_ ();\n call %rd1, (), p1;"
    )
    calls = [item for item in function.body if isinstance(item, Inst)]
    assert calls[0].operands == (
        Vec((R1,)), Reg("%rd1"), Vec((Reg("%rd2"), R2)), Sym("p0")
    )  # fmt: skip
    assert calls[1].operands == (Reg("%rd1"), Vec(()), Sym("p1"))


def test_register_ranges() -> None:
    registers = entry("ret;").registers
    assert registers["%r8"] == "b32"
    assert "%r9" not in registers


@pytest.mark.parametrize(
    ("text", "n_elements", "init"),
    [
        (".global .align 4 .u32 x = 7;", 1, "07000000"),
        (".global .u32 x[2] = {1, -1};", 2, "01000000ffffffff"),
        (".const .align 2 .b16 x[3] = {0x102};", 3, "020100000000"),
        (".global .u8 x[] = {1, 2, 017};", 3, "01020f"),
        (".global .u8 x[2][3] = {{1}, {2, 3}};", 6, "010000020300"),
        (".global .f32 x = 0f3F800000;", 1, "0000803f"),
        (".global .v4 .u8 x = {1, 2, 3, 4};", 4, "01020304"),
        (".visible .global .s64 x = -2;", 1, "feffffffffffffff"),
    ],
)
def test_initial_data(text: str, n_elements: int, init: str) -> None:
    (variable,) = parse_ptx(HEAD + text).variables
    assert variable.init is not None
    assert (variable.count, variable.init.hex()) == (n_elements, init)


def test_addresses_in_initial_data() -> None:
    text = ".global .u8 x[4];\n.const .u64 p[3] = {x, generic(x)+2, 5};"
    pointers = parse_ptx(HEAD + text).variables[1]
    assert pointers.relocations == (
        Relocation(0, 8, Sym("x")), Relocation(8, 8, Sym("x", 2))
    )  # fmt: skip
    assert pointers.init == bytes(16) + (5).to_bytes(8, "little")
    masked = parse_ptx(HEAD + ".global .u8 x; .global .u8 p[2] = {0xFF(x), 0xFF00(x)};")
    assert masked.variables[1].relocations == (
        Relocation(0, 1, Sym("x")), Relocation(1, 1, Sym("x"), 8)
    )  # fmt: skip


def test_parameters_of_every_producer() -> None:
    function = entry(
        "ret;",
        params=".param .u64 .ptr .global .align 4 p, .param .u64 q, .param .align 8 .b8 s[12],"
        " .param .u8 c",
    )
    assert function.params == [
        Variable("p", "param", "u64", align=8, line=5, is_pointer=True),
        Variable("q", "param", "u64", align=8, line=5),
        Variable("s", "param", "b8", count=12, is_array=True, align=8, line=5),
        Variable("c", "param", "u8", align=1, line=5),
    ]


def test_directives_that_carry_no_meaning_here() -> None:
    text = f"""{HEAD.replace("sm_75", "sm_75, debug")}
// a comment
/* another
   one */
.file 1 "a \\"b\\".cu"
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.weak .func f() .noreturn
{{ trap; }}
.visible .entry k(.param .u64 p) .maxntid 32, 1, 1 .minnctapersm 2
.pragma "whole";
{{ .pragma "nounroll"; .loc 1 12 5, function_name $L__info, inlined_at 1 2 3
ret; }}
.section .debug_str {{
$L__info:
.b8 102,0
}}
.alias g, f;
"""
    module = parse_ptx(text)
    assert (module.version, module.target, module.address_size) == ("7.5", "sm_75", 64)
    assert [function.name for function in module.kernels] == ["k"]
    assert module.functions["vprintf"].body == []
    assert module.functions["g"] is module.functions["f"]
    (ret,) = module.functions["k"].body
    assert isinstance(ret, Inst)
    assert ret.source == ('a "b".cu', 12)


def test_the_file_table_may_come_last() -> None:
    text = f'{HEAD}.entry k() {{ .loc 1 3 1\n ret; }}\n.file 1 "late.cu"'
    (ret,) = parse_ptx(text).functions["k"].body
    assert isinstance(ret, Inst)
    assert ret.source == ("late.cu", 3)


def test_a_definition_wins_over_its_declaration() -> None:
    text = f"{HEAD}.func f();\n.func f() {{ ret; }}\n.func f();"
    assert len(parse_ptx(text).functions["f"].body) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("add.s32 %r1, %r2 %r3;", "x.ptx:5: PTX syntax error at '%r3' [add.s32 %r1, %r2 %r3; }]"),
        ("add.s32 %r1, %r2, #;", "x.ptx:5: PTX syntax error at '#' [add.s32 %r1, %r2, #; }]"),
        ("add.s32 %r1, %x, 1;", "x.ptx:5: '%x' is not declared [add.s32 %r1, %x, 1]"),
        ("bra nowhere;", "x.ptx:5: 'nowhere' is not declared [bra nowhere]"),
        ("L: ret; L: ret;", "x.ptx:5: 'L' is declared twice"),
        (".reg .b32 %z<9999999>;", "x.ptx:5: more than 131072 registers declared [%z]"),
        (".reg .v2 .b32 v;", "x.ptx:5: vector registers are not supported [v]"),
        ("ret", "x.ptx:5: PTX syntax error at '}' [ret }]"),
    ],
)
def test_faults_name_file_line_and_text(body: str, message: str) -> None:
    text = f"{HEAD}.entry k() {{ .reg .b32 %r<9>;\n{body} }}"
    with pytest.raises(CompileError) as caught:
        parse_ptx(text, "x.ptx")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".global .u8 x[2] = {1, 2, 3};", "x.ptx:1: an initialiser with more values than"),
        (".global .u8 x[2][2] = {{1, 2, 3}};", "x.ptx:1: an initialiser with more values than"),
        (".global .u8 x[999999999];", "x.ptx:1: x has 999999999 bytes"),
        (".entry k() {", "x.ptx:1: PTX ends in the middle of a statement"),
        (".tex .u64 t;", "x.ptx:1: a declaration of a kind that this machine does not have"),
        (".entry k() {" * 3, "x.ptx:1: PTX syntax error at '('"),
        (".alias g, f;", "x.ptx: .alias of 'f', which is not declared"),
        (".entry k() " + "{" * 70 + "}" * 70, "x.ptx:0: scopes nested more than 64 deep"),
        (".global .u32 x = 09;", "x.ptx: malformed literal"),
    ],
)
def test_faults_in_declarations(text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_ptx(text, "x.ptx")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("start", [".entry k() ", ".global .u32 x[1] = "])
def test_braces_nested_without_end(start: str) -> None:
    with pytest.raises(CompileError, match=r"^x.ptx: braces nested too deep$"):
        parse_ptx(start + "{" * 5000 + "}" * 5000 + ";", "x.ptx")


def test_a_text_that_is_too_long() -> None:
    with pytest.raises(CompileError, match=r"^x.ptx: the PTX is longer than 4194304 bytes$"):
        parse_ptx(" " * (5 << 20), "x.ptx")


def test_an_empty_file_has_no_kernels() -> None:
    assert parse_ptx("").kernels == []


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("0x10U", 16), ("0B11", 3), ("0777", 511)])
def test_integers(text: str, value: int) -> None:
    assert parse_integer(text) == value
