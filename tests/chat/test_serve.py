"""The endpoint through the official openai client, over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import openai
import pytest
import uvicorn

import qgpu
from qgpu.errors import UsageError
from qgpu.host.chat.device import Device
from qgpu.host.chat.session import Session
from qgpu.host.chat.source import ScriptedSource
from qgpu.host.serve import bind, create_app
from qgpu.machine import SMALL
from tests.chat.test_session import call

DOT = "What is [1, 2, 3] dot [4, 5, 6]?"
SQUARE = "Square 7 with a kernel."
CUDA = (
    "<tool_call>\n<function=run_cuda>\n<parameter=source>\n"
    'extern "C" __global__ void square(const int *v, int *out) { out[0] = v[0] * v[0]; }\n'
    "</parameter>\n<parameter=block>\n1\n</parameter>\n<parameter=args>\n[7]\nzeros:1\n"
    "</parameter>\n</function>\n</tool_call>"
)
SCRIPT = {
    DOT: [call("[1, 2, 3] @ [4, 5, 6]"), "The dot product is 32."],
    SQUARE: [CUDA, "It is 49."],
    "Hi": ["Hello!"],
    "Long": ["word " * 50_000],
    "Divide": [call("1 / 2"), call("1 // 2"), "0"],
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    session = Session(ScriptedSource(SCRIPT), Device(qgpu.Interpreter(SMALL), check=True))
    with bind(0) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(session), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, question: str, **options: Any) -> Any:
    options.setdefault("model", "qgpu-normal")
    return client.chat.completions.create(
        messages=[{"role": "user", "content": question}], **options
    )


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["qgpu-normal", "qgpu-advanced"]


def test_answer_with_its_launch(client: openai.OpenAI) -> None:
    done = ask(client, DOT)
    message = done.choices[0].message
    assert (message.content, done.choices[0].finish_reason) == ("The dot product is 32.", "stop")
    assert message.tool_calls[0].function.name == "compute"
    arguments = json.loads(message.tool_calls[0].function.arguments)
    assert arguments == {"expression": "[1, 2, 3] @ [4, 5, 6]"}
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens > 0
    extra = done.model_extra["qgpu"]
    assert (extra["value"], extra["check"], extra["launches"]) == (32, "ok", 1)
    assert extra["tool_calls"][0]["launches"][0]["kernel"] == "dot"


def test_text_alone(client: openai.OpenAI) -> None:
    done = ask(client, "Hi", max_tokens=10, temperature=0.5)
    assert done.choices[0].message.content == "Hello!"
    assert done.choices[0].message.tool_calls is None


def test_streaming(client: openai.OpenAI) -> None:
    chunks = list(ask(client, DOT, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "The dot product is 32."
    assert len([delta for delta in deltas if delta.content]) > 2
    calls = [c for delta in deltas for c in delta.tool_calls or ()]
    assert [c.function.name for c in calls] == ["compute"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens > 0
    assert chunks[-2].model_extra["qgpu"]["value"] == 32


def test_streaming_helper(client: openai.OpenAI) -> None:
    """The client's own accumulator understands the stream."""
    messages: Any = [{"role": "user", "content": DOT}]
    with client.chat.completions.stream(model="qgpu-normal", messages=messages) as stream:
        done = stream.get_final_completion()
    assert done.choices[0].message.content == "The dot product is 32."
    assert done.choices[0].message.tool_calls is not None


def test_a_client_that_goes_away_frees_the_model(client: openai.OpenAI) -> None:
    stream = ask(client, "Long", stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    assert ask(client, "Hi", timeout=20).choices[0].message.content == "Hello!"
    with pytest.raises(openai.APITimeoutError):
        ask(client, "Long", timeout=0.5)
    assert ask(client, "Hi", timeout=20).choices[0].message.content == "Hello!"


def test_requests_at_the_same_time_take_turns(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda question: ask(client, question), [DOT, "Hi", DOT, SQUARE]))
    values = [answer.model_extra["qgpu"]["value"] for answer in done]
    assert values == [32, None, 32, None]


def test_mended_calls_are_all_reported(client: openai.OpenAI) -> None:
    done = ask(client, "Divide")
    assert len(done.choices[0].message.tool_calls) == 2
    assert done.model_extra["qgpu"]["value"] == 0


def test_advanced_mode(client: openai.OpenAI) -> None:
    done = ask(client, SQUARE, model="qgpu-advanced")
    assert done.choices[0].message.content == "It is 49."
    assert done.model_extra["qgpu"]["value"] == [[7], [49]]


def test_earlier_messages_are_the_history(address: str) -> None:
    source = ScriptedSource(["Yes."])
    from fastapi.testclient import TestClient

    app = create_app(Session(source, Device(qgpu.Interpreter(SMALL))))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
    ]
    with TestClient(app, base_url="http://127.0.0.1") as client:
        done = client.post(
            "/v1/chat/completions", json={"model": "qgpu-normal", "messages": messages}
        )
    assert done.json()["choices"][0]["message"]["content"] == "Yes."
    contents = [message["content"] for message in source.requests[0].messages]
    assert contents[-5:] == ["Instructions: Be brief.", "Understood.", "One?", "1", "Sure?"]


@pytest.mark.parametrize(
    ("options", "status", "line"),
    [
        ({"model": "gpt"}, 404, "there is no model gpt; there are qgpu-normal, qgpu-advanced"),
        ({"n": 2}, 400, "n must be 1: there is one model and it writes one answer"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]}, 400,
            "tools of the client's own are not supported: the GPU is the tool",
        ),
        ({"max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
    ],
)  # fmt: skip
def test_refusals(client: openai.OpenAI, options: Any, status: int, line: str) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        ask(client, "Hi", **options)
    assert error.value.status_code == status
    body: Any = error.value.body
    assert body["message"] == line


def test_the_last_message_must_be_the_users(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the last message must be the user's"):
        client.chat.completions.create(
            model="qgpu-normal", messages=[{"role": "assistant", "content": "x"}]
        )


def test_other_host_names_are_refused(address: str) -> None:
    done = httpx.get(f"{address}/v1/models", headers={"Host": "evil.example"})
    assert done.status_code == 400


def test_a_taken_port_is_one_line() -> None:
    with bind(0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"^cannot listen on port {port}: Address already"):
            bind(port)
    with pytest.raises(UsageError, match=r"^cannot listen on port 99999: 0 to 65535$"):
        bind(99999)
