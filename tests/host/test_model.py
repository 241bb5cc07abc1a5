"""The merged checkpoint through plain transformers: launches, replay, and checks that can fail.

One checkpoint of the small machine, with the widths of Qwen3.5-2B, is built for the whole module.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import qgpu
from qgpu.cli.options import load_program, parse_arg, read_header
from qgpu.host.build import build
from qgpu.host.chat.device import Device
from qgpu.host.chat.model_text import ModelText
from qgpu.host.chat.session import Session, Turn
from qgpu.host.chat.source import Request, ScriptedSource
from qgpu.host.draft import Drafted
from qgpu.host.drift import measure
from qgpu.host.launch import Execution, Interpreter, Job, make_job, prepare
from qgpu.host.model import Model
from qgpu.host.standin import write_standin
from qgpu.machine import SMALL, WORD_BITS
from qgpu.tokens import Halt, Token, offset_of

pytestmark = pytest.mark.dense
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("dense")
    write_standin("tiny", path / "base")
    build(path / "base", path / "model", SMALL, pad=False)
    return path / "base", path / "model"


@pytest.fixture(scope="module")
def model(folders: tuple[Path, Path]) -> Iterator[Model]:
    yield Model.load(folders[1])


def example(name: str) -> tuple[qgpu.Kernel, dict[str, Any]]:
    """A kernel of the examples with the launch that its header describes."""
    program = load_program(str(EXAMPLES / name))
    header = read_header(program.source)
    sizes = {key: int(header.settings[key]) for key in ("grid", "block")}
    kernel = program.kernel(header.settings["kernel"])
    return kernel, {**sizes, "args": [parse_arg(text) for text in header.args]}


def job_of(name: str) -> Job:
    kernel, options = example(name)
    bound, shape, lowered = prepare(
        kernel, SMALL, options["grid"], options["block"], options["args"], 0
    )
    return make_job(SMALL, bound, shape, lowered)


@pytest.mark.parametrize("name", ["01_dot.cu", "04_reverse.cu"])
def test_an_example_runs_in_the_weights(model: Model, name: str) -> None:
    kernel, options = example(name)
    result = qgpu.launch(kernel, on=model, check=True, **options)
    wanted = qgpu.launch(kernel, on=Interpreter(SMALL), **options)
    assert result.backend == "weights"
    assert result.trace == wanted.trace
    assert result.memory == wanted.memory


@pytest.mark.parametrize("name", ["02_vector_add.cu", "06_histogram.cu"])
def test_a_drafted_trace_is_replayed_by_prefill_and_a_wrong_token_found(
    model: Model, name: str
) -> None:
    job = job_of(name)
    right = Interpreter(SMALL).execute(job, lambda token: None)
    assert model.verify_trace(job.prompt(), right.tokens) == (None, right.memory)
    at = 20
    other = next(token for token in right.tokens if token != right.tokens[at])
    swapped = [*right.tokens[:at], other, *right.tokens[at + 1 :]]
    assert model.verify_trace(job.prompt(), swapped)[0] == at


def test_a_draft_gives_the_same_launch_and_a_bad_draft_is_dropped(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("01_dot.cu")
    right = Interpreter(SMALL).execute(job, lambda token: None)
    seen: list[Token] = []
    done = Drafted(model).execute(job, seen.append)
    assert (done.tokens, done.memory) == (right.tokens, right.memory)
    assert seen == right.tokens
    bad = Execution([right.tokens[1], *right.tokens[1:]], right.memory)
    monkeypatch.setattr(Interpreter, "execute", lambda self, job, watch: bad)
    monkeypatch.setattr(Model, "execute", lambda self, job, watch: right)
    assert Drafted(model).execute(job, lambda token: None) is right


def weight_that_counts(model: Model, job: Job) -> tuple[torch.Tensor, int, int]:
    """A gate weight without which the circuit's last layer would name another first token."""
    layers = model.hf.model.layers[: model.circuit_layers]
    mlp = next(layer.mlp for layer in reversed(layers) if layer.mlp.gate_proj.weight.any())
    seen: list[torch.Tensor] = []
    hook = mlp.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0, -1]))
    model.prefill(model.ids(job.prompt()), model.new_cache())
    hook.remove()
    gate = mlp.gate_proj.weight
    fires = (gate @ seen[-1] > 0) & (mlp.up_proj.weight @ seen[-1] > 0)
    neuron = int((mlp.down_proj.weight.max(0).values * fires).argmax())
    return gate, neuron, int((gate[neuron] * seen[-1]).abs().argmax())


def test_a_flipped_weight_is_caught_and_the_first_wrong_token_named(model: Model) -> None:
    kernel, options = example("01_dot.cu")
    with torch.no_grad():
        weight, row, column = weight_that_counts(model, job_of("01_dot.cu"))
        weight[row, column] *= -1
    try:
        with pytest.raises(qgpu.Error, match="token 1 of the launch"):
            qgpu.launch(kernel, on=model, check=True, **options)
    finally:
        with torch.no_grad():
            weight[row, column] *= -1


def test_a_corrupted_state_is_caught(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = qgpu.compile("__global__ void k(int *a) { a[0] = 5; }").kernel()
    real = model.write

    def write(prompt: Any, cache: Any) -> Iterator[Token]:
        for token in real(prompt, cache):
            if isinstance(token, Halt):
                tables = model._state(cache)[0]
                words = tables[model._place.heads][..., :WORD_BITS]
                head, row, bit = (int(i) for i in words.nonzero()[0])
                with torch.inference_mode():
                    tables[model._place.heads[head], row, bit] = 0
            yield token

    monkeypatch.setattr(model, "write", write)
    with pytest.raises(qgpu.CheckError, match=r"word \d+ of the memory differs"):
        qgpu.launch(kernel, on=model, check=True, args=[[0]])


PLAIN = """
import json, sys
import torch, transformers
folder, ids, halt = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
out = model.generate(
    torch.tensor([ids]), do_sample=False, max_new_tokens=100, eos_token_id=halt,
    suppress_tokens=[],
)
assert "qgpu" not in sys.modules
print(json.dumps(out[0, len(ids):].tolist()))
"""


def test_plain_generate_in_a_process_without_qgpu_writes_the_launch(
    model: Model, folders: tuple[Path, Path]
) -> None:
    job = job_of("01_dot.cu")
    wanted = Interpreter(SMALL).execute(job, lambda token: None).tokens
    halt = model.first_token + offset_of(SMALL, Halt())
    argv = [str(folders[1]), json.dumps(model.ids(job.prompt())), str(halt)]
    run = subprocess.run(
        [sys.executable, "-P", "-c", PLAIN, *argv], capture_output=True, text=True, check=True,
        cwd="/",
    )  # fmt: skip
    assert json.loads(run.stdout.splitlines()[-1]) == model.ids(wanted)


def test_text_is_bit_identical_to_the_base(folders: tuple[Path, Path]) -> None:
    found = measure(*folders, "int x = 1; // Grüße 中", max_positions=12)
    for mode in ("prefill", "decode"):
        assert found[mode].identical == found[mode].positions == 12
        assert found[mode].top1 == 1
        assert found[mode].max < 1e-6
    fewer = measure(*folders, "int x = 1;", max_positions=4, decode_positions=2)
    assert [fewer[mode].positions for mode in ("prefill", "decode")] == [4, 2]


def test_a_conversation_with_a_launch_in_it(model: Model) -> None:
    """Question, expression, launch in the weights, answer; the model's own text is the same after
    the launch as before it."""
    hello = Request([{"role": "user", "content": "Hello"}], max_tokens=3)
    before = list(ModelText(model).generate(hello))
    parameter = "<parameter=expression>\n[1, 2, 3] @ [4, 5, 6]\n</parameter>"
    call = f"<function=compute>\n{parameter}\n</function>"
    replies = [f"<tool_call>\n{call}\n</tool_call>", "The dot product is 32."]
    session = Session(ScriptedSource(replies), Device(model, check=True))
    *_, turn = session.ask("What is [1, 2, 3] dot [4, 5, 6]?")
    assert isinstance(turn, Turn)
    assert (turn.value, turn.check, turn.answer) == (32, "ok", "The dot product is 32.")
    assert turn.uses[0].launches[0].backend == "weights"
    assert list(ModelText(model).generate(hello)) == before
