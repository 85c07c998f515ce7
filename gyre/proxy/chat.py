"""The OpenAI Chat Completions protocol, in and out: bodies, server-sent events and errors as bytes. No I/O.

Unknown fields, roles and model names are accepted; sampling parameters are read and not followed (design §7), but for
a smaller `max_tokens`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from gyre.proxy.errors import BadRequest, CallError
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Json, Message, messages_of, tools_of

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request."""

    asked: Asked
    model: str
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, ready to be worded."""

    call: str
    model: str
    created: int
    """Seconds since the epoch."""
    message: Message
    length: bool
    """Whether it was cut by max_tokens."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def parse(body: bytes) -> ChatRequest:
    """Read a request's body. Raises BadRequest naming what is wrong."""
    request = _object(body)
    options = request.get("stream_options")
    model = request.get("model")
    return ChatRequest(
        asked=Asked(messages_of(request.get("messages")), tools_of(request.get("tools")), _max_tokens(request)),
        model=model if isinstance(model, str) else "",
        stream=request.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def completion(reply: Reply) -> bytes:
    """The body of a whole answer."""
    choice = {"index": 0, "message": reply.message.wire(), "logprobs": None, "finish_reason": _finish(reply)}
    return orjson.dumps(_head(reply, "chat.completion") | {"choices": [choice], "usage": _usage(reply)})


def opening(call: str, model: str, created: int) -> bytes:
    """The first event of a stream, sent before there is an answer; repeated, it keeps the client waiting."""
    empty = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return _event(_chunk_head(call, model, created) | {"choices": [empty]})


def chunks(reply: Reply, *, include_usage: bool) -> Iterator[bytes]:
    """The events of a whole turn behind the opening, [DONE] included."""
    head = _chunk_head(reply.call, reply.model, reply.created)
    if reply.message.content:
        yield _event(head | {"choices": [_delta({"content": reply.message.content})]})
    for index, call in enumerate(reply.message.calls):
        yield _event(head | {"choices": [_delta({"tool_calls": [{"index": index, **call.wire()}]})]})
    yield _event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}]})
    if include_usage:
        yield _event(head | {"choices": [], "usage": _usage(reply)})
    yield DONE


def error_body(error: CallError) -> bytes:
    """The body of a refusal; its HTTP status is `error.status`."""
    return orjson.dumps(_error(error))


def error_event(error: CallError) -> bytes:
    """A refusal inside a stream that has begun; no [DONE] follows it."""
    return _event(_error(error))


def models_body(model: str, context_tokens: int) -> bytes:
    """The answer to GET /v1/models."""
    one = {"id": model, "object": "model", "created": 0, "owned_by": "gyre", "max_model_len": context_tokens}
    return orjson.dumps({"object": "list", "data": [one]})


def _object(body: bytes) -> Json:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = _mended(body)
    if not isinstance(value, dict):
        raise BadRequest("body: must be a JSON object")
    return value


def _mended(body: bytes) -> object:
    """Some clients send lone surrogates (a file name that is no UTF-8): they become question marks."""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return orjson.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"body: is not JSON: {' '.join(str(error).split())[:200]}") from error


def _max_tokens(request: Json) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = request.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _finish(reply: Reply) -> str:
    if reply.length:
        return "length"
    return "tool_calls" if reply.message.calls else "stop"


def _usage(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _head(reply: Reply, kind: str) -> Json:
    return {"id": f"chatcmpl-{reply.call}", "object": kind, "created": reply.created, "model": reply.model}


def _chunk_head(call: str, model: str, created: int) -> Json:
    return {"id": f"chatcmpl-{call}", "object": "chat.completion.chunk", "created": created, "model": model}


def _delta(delta: Json) -> Json:
    return {"index": 0, "delta": delta, "finish_reason": None}


def _error(error: CallError) -> Json:
    return {"error": {"message": str(error), "type": error.kind, "param": None, "code": error.code}}


def _event(value: Json) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
