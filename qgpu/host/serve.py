"""``qgpu serve``: an OpenAI-compatible chat endpoint on loopback.

The server is stateless, as that interface is: every request brings its conversation. Launches are
reported as tool calls that have already been answered (finish_reason stays "stop"), with their
results in the extra field ``qgpu``. One generation runs at a time: there is one model.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware

from qgpu.errors import Error, UsageError
from qgpu.host.chat.session import Answered, Delta, Event, Session, Turn
from qgpu.host.chat.source import Message

HOST = "127.0.0.1"
MODELS = {"qgpu-normal": "normal", "qgpu-advanced": "advanced"}
MAX_TOKENS = 8192
T = TypeVar("T")


class ApiError(Exception):
    """An error of the interface: status and one line."""

    def __init__(self, status: int, message: str, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class ContentPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields that are understood; sampling fields are accepted and not used."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    n: int = 1
    tools: list[dict[str, Any]] | None = None


@dataclass
class Conversation:
    """A request as a session and its last question."""

    session: Session
    question: str


def open_conversation(base: Session, request: ChatRequest) -> Conversation:
    """The request's own session over the server's source and device."""
    if request.model not in MODELS:
        known = ", ".join(MODELS)
        raise ApiError(404, f"there is no model {request.model}; there are {known}",
                       "model_not_found")  # fmt: skip
    if request.n != 1:
        raise ApiError(400, "n must be 1: there is one model and it writes one answer")
    if request.tools:
        raise ApiError(400, "tools of the client's own are not supported: the GPU is the tool")
    *before, last = request.messages
    if last.role != "user":
        raise ApiError(400, "the last message must be the user's")
    limit = request.max_completion_tokens or request.max_tokens or base.max_tokens
    session = replace(
        base, mode=MODELS[request.model], max_tokens=limit, history=list(_history(before)), turns=[]
    )
    return Conversation(session, last.text)


def _history(messages: list[ChatMessage]) -> Iterator[Message]:
    """Earlier messages. The template allows one system message, which is the project's own, so
    another one becomes part of the conversation."""
    for message in messages:
        if message.role in ("system", "developer"):
            yield {"role": "user", "content": f"Instructions: {message.text}"}
            yield {"role": "assistant", "content": "Understood."}
        elif message.role != "tool":
            yield {"role": message.role, "content": message.text}


# --- events as the interface's objects ------------------------------------------------------------


def tool_calls(turn: Turn) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{n}", "type": "function",
         "function": {"name": use.call.name, "arguments": json.dumps(use.call.arguments)}}
        for n, use in enumerate(turn.uses)
    ]  # fmt: skip


def extra(turn: Turn) -> dict[str, Any]:
    """What the interface has no field for."""
    keys = ("value", "tool_calls", "launches", "launch_tokens", "check", "error")
    data = turn.as_json()
    return {key: data[key] for key in keys}


def usage(turn: Turn) -> dict[str, int]:
    prompt, completion = turn.usage.prompt_tokens, turn.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion}  # fmt: skip


def _envelope(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()),
            "model": model}  # fmt: skip


def completion(model: str, turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.answer}
    if turn.uses:
        message["tool_calls"] = tool_calls(turn)
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {**_envelope("chat.completion", model), "choices": [choice], "usage": usage(turn),
            "qgpu": extra(turn)}  # fmt: skip


def chunks(model: str, events: Iterator[Event], with_usage: bool) -> Iterator[dict[str, Any]]:
    """The stream's objects: text as it comes, each answered call, and the end."""
    envelope = _envelope("chat.completion.chunk", model)

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**envelope, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for event in events:
        match event:
            case Delta(text):
                yield chunk({"content": text})
            case Answered(_, call):
                function = {"name": call.name, "arguments": json.dumps(call.arguments)}
                name = f"call_{calls}"
                one = {"index": calls, "id": name, "type": "function", "function": function}
                yield chunk({"tool_calls": [one]})
                calls += 1
            case Turn():
                yield {**chunk({}, "stop"), "qgpu": extra(event)}
                if with_usage:
                    yield {**envelope, "choices": [], "usage": usage(event)}


def _server_sent(objects: Iterator[dict[str, Any]]) -> Generator[str, None, None]:
    try:
        for item in objects:
            yield f"data: {json.dumps(item)}\n\n"
    except Error as error:
        yield f"data: {json.dumps(_error_body(str(error), 'server_error'))}\n\n"
    yield "data: [DONE]\n\n"


async def _while_connected(
    request: Request, items: Generator[T, None, None]
) -> AsyncGenerator[T, None]:
    """The items, worked out in a thread; a client that goes away ends the turn and frees the
    model."""
    try:
        while not await request.is_disconnected():
            item = await run_in_threadpool(next, items, None)
            if item is None:
                return
            yield item
    finally:
        items.close()


def _error_body(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "param": None, "code": code}}


# --- the application ------------------------------------------------------------------------------


def create_app(base: Session) -> FastAPI:
    """The endpoints over ``base``'s source and device."""
    app = FastAPI(title="qgpu", docs_url=None, redoc_url=None, openapi_url=None)
    # A page in a browser must not reach the server under another name (DNS rebinding).
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    one_at_a_time = threading.Lock()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "qgpu"}
                for name in MODELS]  # fmt: skip
        return {"object": "list", "data": rows}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok", "text": base.source.name, "backend": base.device.backend.name}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(asked: ChatRequest, request: Request) -> dict[str, Any] | StreamingResponse:
        events = _locked(one_at_a_time, open_conversation(base, asked))
        if asked.stream:
            options = asked.stream_options or StreamOptions()
            parts = _server_sent(chunks(asked.model, events, options.include_usage))
            return StreamingResponse(
                _while_connected(request, parts), media_type="text/event-stream"
            )
        async with aclosing(_while_connected(request, events)) as seen:
            async for event in seen:
                if isinstance(event, Turn):
                    return completion(asked.model, event)
        raise ApiError(499, "the client went away", "cancelled")

    @app.exception_handler(ApiError)
    def refuse(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(_error_body(error.message, error.code), error.status)

    @app.exception_handler(Error)
    def failed(request: Request, error: Error) -> JSONResponse:
        return JSONResponse(_error_body(str(error), "server_error"), 500)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse(_error_body(f"{place}: {first['msg']}", "invalid_request_error"), 400)

    return app


def _locked(lock: threading.Lock, talk: Conversation) -> Generator[Event, None, None]:
    """The turn's events, with the model to itself."""
    with lock:
        yield from talk.session.ask(talk.question)


def bind(port: int) -> socket.socket:
    """A listening socket on loopback; port 0 picks a free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "0 to 65535"
        raise UsageError(f"cannot listen on port {port}: {reason}") from None
    return listener


def run(base: Session, port: int) -> None:
    """Serve until interrupted."""
    import uvicorn

    with bind(port) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}/v1"
        print(f"qgpu serves {url} (models: {', '.join(MODELS)}); Ctrl-C ends it", flush=True)
        config = uvicorn.Config(create_app(base), log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])
