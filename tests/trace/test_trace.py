"""The trace file: replayed differences, what is inside blocks, Chrome events, bad files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qgpu
from qgpu.errors import UsageError
from qgpu.host.trace import chrome_events, load_trace, trace_json, write_chrome, write_trace
from qgpu.interp.machine import run_blocks
from qgpu.tokens import Exec, name_of
from tests.trace.launches import SPEC, dot_launch


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return trace_json(*dot_launch())


def test_changes_lead_to_the_final_state(data: dict[str, Any]) -> None:
    _, result = dot_launch()
    run = run_blocks(SPEC, result.job.blocks, result.job.memory, result.job.n_threads)
    memory = list(data["memory"])
    registers: dict[tuple[int, int, int], int] = {}
    for step in data["steps"]:
        for change in step["changes"]:
            if change[0] == "m":
                _, address, before, after = change
                assert memory[address] == before
                memory[address] = after
            else:
                _, warp, lane, register, before, after = change
                assert registers.get((warp, lane, register), 0) == before
                registers[warp, lane, register] = after
    assert memory == run.memory
    for warp, file in enumerate(run.registers):
        for register, words in enumerate(file):
            for lane, word in enumerate(words):
                assert registers.get((warp, lane, register), 0) == word


def test_every_token_is_there_and_changes_belong_to_values(data: dict[str, Any]) -> None:
    _, result = dot_launch()
    assert [step["token"] for step in data["steps"]] == [name_of(token) for token in result.trace]
    for step in data["steps"]:
        assert bool(step["changes"]) == (step["kind"] in ("Val", "Uniform", "Sign"))
        assert ("stages" in step) == (step["kind"] == "Exec")


def test_inside_a_block(data: dict[str, Any]) -> None:
    last = [step for step in data["steps"] if step["kind"] == "Exec"][-1]
    assert last["stages"][1] == {"results": [104, 90, 118, 100]}
    assert last["stages"][2]["guard"] == [False, False, True, False]
    assert last["stages"][2]["addresses"] == [40] * 4
    assert last["next"] == ["exit"]
    assert data["blocks"][2]["predicates"] == [1]


def test_arguments_and_sources(data: dict[str, Any]) -> None:
    assert data["arguments"][1] == {
        "name": "arg 1", "word": 6, "words": 3, "dtype": "int32", "after": [4, -5, 6],
    }  # fmt: skip
    lines = [[stage["line"] for stage in block["stages"]] for block in data["blocks"]]
    # What came from the device header has no line in the source that is shown.
    assert lines == [[2, 2, 3, 3], [3, 4], [None, 4, 4]]
    ptx = data["ptx"].splitlines()
    assert "mul.lo" in ptx[data["blocks"][1]["stages"][0]["ptx"] - 1]
    assert data["blocks"][2]["stages"][0]["ptx"] is None


def test_lines_of_a_real_lowering(tmp_path: Path) -> None:
    """From CUDA both lines, from PTX without debug lines that of the PTX."""
    source = 'extern "C" __global__ void k(int *p) {\n    p[0] = __popc(p[1]) * 3;\n}\n'
    program = qgpu.compile(source)
    ptx = "\n".join(line for line in program.ptx.splitlines() if ".loc" not in line)
    for made in (program, qgpu.compile(ptx, kind="ptx")):
        kernel = made.kernel("k")
        blocks = trace_json(kernel, qgpu.launch(kernel, args=[[0, 7]]))["blocks"]
        stages = [stage for block in blocks for stage in block["stages"]]
        texts = made.ptx.splitlines()
        popc = next(stage for stage in stages if stage["text"].startswith("popc"))
        assert "popc" in texts[popc["ptx"] - 1]
        store = next(stage for stage in stages if stage["text"].startswith("st"))
        assert "st.global" in texts[store["ptx"] - 1]
        assert store["line"] == (2 if made is program else None)


def test_what_the_interpreter_did_not_see_is_left_out() -> None:
    """From the first token that the backend wrote differently nothing is claimed about blocks."""
    kernel, result = dot_launch()
    trace = list(result.trace)
    trace[5] = Exec(1, 0, 3)
    steps = trace_json(kernel, replace(result, trace=trace))["steps"]
    assert steps[5]["differs"] is True
    assert "stages" in steps[0]
    assert not any("stages" in step for step in steps[5:])


def test_layers(data: dict[str, Any]) -> None:
    layers = data["layers"]
    assert len(layers) == 45
    assert layers[0]["name"] == "header"
    assert {layer["unit"] for layer in layers} >= {"stage0", "stage3", "name", "idle"}
    assert all(layer["does"] != layer["name"] for layer in layers)
    assert all(layer["heads"] + layer["neurons"] > 0 for layer in layers if layer["unit"] != "idle")


def test_chrome_events(data: dict[str, Any], tmp_path: Path) -> None:
    write_chrome(tmp_path / "chrome.json", data)
    written = json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]
    assert written == list(chrome_events(data))
    spans = [event for event in written if event["ph"] == "X"]
    # Every token but Halt is a span; a block's span covers its values and ends with them.
    assert len(spans) == len(data["steps"]) - 1
    blocks = [(e["name"], e["ts"], e["dur"]) for e in spans if e["name"].startswith("B")]
    assert blocks == [("B0", 0, 5), ("B1", 5, 6), ("B2", 11, 1), ("B2", 12, 1), ("B2", 13, 3)]
    assert [e["name"] for e in written if e["ph"] == "i"] == ["Halt"]
    for event in written:
        assert event["ph"] in "MXCi"
        assert event["ph"] == "M" or event["ts"] >= 0


def test_round_trip(data: dict[str, Any], tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", *dot_launch())
    assert load_trace(tmp_path / "t.json") == json.loads(json.dumps(data))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "cannot read the trace {}: No such file or directory"),
        ("nonsense", "{} is not a trace: it is not JSON"),
        ("[1]", "{} is not a trace that `qgpu run --trace` wrote (qgpu-trace-1)"),
        ('{"format": "other"}', "{} is not a trace that `qgpu run --trace` wrote (qgpu-trace-1)"),
    ],
)
def test_bad_files(tmp_path: Path, content: str | None, line: str) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as error:
        load_trace(path)
    assert str(error.value) == line.format(path)
