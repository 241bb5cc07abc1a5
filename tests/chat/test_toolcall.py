"""Tool calls in streamed text, in every cut."""

from __future__ import annotations

import pytest

from qgpu.host.chat.toolcall import Part, StreamParser, Text, Thought, ToolCall, parse_call

CALL = (
    "<tool_call>\n<function=compute>\n<parameter=expression>\n[1, 2] @ [3, 4]\n</parameter>\n"
    "</function>\n</tool_call>"
)
EXPECTED = ToolCall("compute", {"expression": "[1, 2] @ [3, 4]"})


def run(text: str, piece: int, thinking: bool = False) -> list[Part]:
    parser = StreamParser(thinking)
    parts: list[Part] = []
    for start in range(0, len(text), piece):
        parts += parser.feed(text[start : start + piece])
    parts += parser.finish()
    return _joined(parts)


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbouring pieces of one kind together: the cut does not matter."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + part.text)
        elif isinstance(part, Thought) and isinstance(last, Thought):
            out[-1] = Thought(last.text + part.text)
        else:
            out.append(part)
    return out


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_call_between_text(piece: int) -> None:
    text = f"Let me see: 1 < 2. {CALL} done <tool"
    assert run(text, piece) == [Text("Let me see: 1 < 2. "), EXPECTED, Text(" done <tool")]


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_two_calls(piece: int) -> None:
    assert run(CALL + CALL, piece) == [EXPECTED, EXPECTED]


@pytest.mark.parametrize("piece", [1, 4, 1000])
def test_thinking(piece: int) -> None:
    assert run("hm <tool_call> no</think>Hi", piece, thinking=True) == [
        Thought("hm <tool_call> no"),
        Text("Hi"),
    ]
    assert run("<think>\nhm\n</think>\nHi", piece) == [Thought("\nhm\n"), Text("\nHi")]
    assert run("never ends", piece, thinking=True) == [Thought("never ends")]


def test_json_form() -> None:
    body = '{"name": "compute", "arguments": {"expression": "1 + 1", "n": [1, 2]}}'
    assert parse_call(body) == ToolCall("compute", {"expression": "1 + 1", "n": "[1, 2]"})
    assert parse_call("{oops").problem == "the tool call is not valid JSON"
    assert parse_call("[1]").problem == "a tool call begins with <function=NAME>"
    assert parse_call('{"name": "x", "arguments": 3}').problem == "the tool call is not valid JSON"


def test_cuda_source_keeps_its_signs() -> None:
    source = "if (a < b && b > c) x <<= 1; // <b>\n    y();"
    body = f"<function=run_cuda>\n<parameter=source>\n{source}\n</parameter>\n</function>"
    assert parse_call(body).arguments == {"source": source}


def test_cut_short() -> None:
    whole = CALL.removesuffix("</tool_call>")
    assert run(whole, 9) == [EXPECTED]
    assert run("<tool_call>", 3) == [ToolCall("", problem="the tool call was cut short")]
    cut = run("<tool_call><function=compute><parameter=expression>1 +", 3)
    assert cut == [ToolCall("compute", {}, "the parameter expression is not closed")]
