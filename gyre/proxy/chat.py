"""The OpenAI Chat Completions protocol, in and out: bodies, server-sent events and errors as bytes. No I/O.

Unknown fields, roles and model names are accepted; the fields that tools had before they were tools (`functions`,
`function_call`) are read as their successors. What the policy thought goes out as `reasoning_content`.
"""

from collections.abc import Iterator, Mapping

import orjson

from gyre.proxy.bodies import json_object, limit_of, objects, refuse_images, stops_of, string
from gyre.proxy.errors import CallError
from gyre.proxy.exchange import Asked, Wire
from gyre.proxy.normalise import Json, Message, message_of, messages_of, tools_of
from gyre.proxy.recall import MOST, Recall, refuse_crowd
from gyre.proxy.reply import Opened, Reply, Request, WireProtocol
from gyre.proxy.sse import data

DONE = b"data: [DONE]\n\n"
_CHOICES = frozenset(("auto", "none", "required"))


def parse(body: bytes, headers: Mapping[str, str], most: int = MOST) -> Request:
    """Read a request's body. Raises BadRequest naming what is wrong, PromptTooLong beyond what `most` tokens hold."""
    request = json_object(body)
    refuse_crowd(request.get("tools"), most)
    options = request.get("stream_options")
    asked = Asked(
        messages=messages_of(request.get("messages"), _MESSAGES, most),
        tools=tools_of(_tools(request)),
        max_tokens=limit_of(request, "max_completion_tokens", "max_tokens"),
        stop=stops_of(request.get("stop")),
        tool_choice=_tool_choice(request.get("tool_choice", request.get("function_call"))),
        wire=Wire("chat", headers, request),
    )
    return Request(
        asked=asked,
        model=string(request.get("model")),
        stream=request.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


class Chat(WireProtocol):
    """The protocol, to whoever moves bytes."""

    parse = staticmethod(parse)

    def completion(self, request: Request, reply: Reply) -> bytes:
        """The body of a whole answer."""
        message = {**reply.message.wire(), "content": reply.message.content or (None if reply.message.calls else "")}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return orjson.dumps(
            _head(request, reply.opened, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}
        )

    def opening(self, request: Request, opened: Opened) -> bytes:
        """The first chunk of a stream: a role and no text."""
        return data(_chunk(request, opened, {"role": "assistant", "content": ""}))

    def keep_alive(self, request: Request, opened: Opened, beat: int) -> bytes:
        """The same chunk again: empty text is what clients of this protocol count."""
        return self.opening(request, opened)

    def events(self, request: Request, reply: Reply, beats: int) -> Iterator[bytes]:
        """The chunks of a whole turn behind the opening, [DONE] included."""
        opened = reply.opened
        if reply.message.thinking:
            yield data(_chunk(request, opened, {"reasoning_content": reply.message.thinking}))
        if reply.message.content:
            yield data(_chunk(request, opened, {"content": reply.message.content}))
        for index, call in enumerate(reply.message.calls):
            yield data(_chunk(request, opened, {"tool_calls": [{"index": index, **call.wire()}]}))
        yield data(_chunk(request, opened, {}, _finish(reply)))
        if request.include_usage:
            yield data(_head(request, opened, "chat.completion.chunk") | {"choices": [], "usage": _usage(reply)})
        yield DONE

    def error_body(self, error: CallError) -> bytes:
        """The body of a refusal."""
        return orjson.dumps(_error(error))

    def error_event(self, request: Request, opened: Opened, beats: int, error: CallError) -> bytes:
        """A refusal inside a stream that has begun; no [DONE] follows it."""
        return data(_error(error))


def _message(item: object, index: int) -> Message:
    """A message without images of the user's, and with calls where they stand today."""
    where = f"messages[{index}]"
    if isinstance(item, dict) and item.get("role") == "user":
        refuse_images(item.get("content"), where)
    return message_of(_today(item) if isinstance(item, dict) else item, where)


_MESSAGES = Recall(_message)


def _today(message: Json) -> Json:
    call = message.get("function_call")
    if not isinstance(call, dict) or message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [{"id": "", "type": "function", "function": call}]}


def _tools(request: Json) -> object:
    if "tools" in request:
        return request["tools"]
    return [{"type": "function", "function": function} for function in objects(request.get("functions"))]


def _tool_choice(value: object) -> str:
    if isinstance(value, str):
        return value if value in _CHOICES else "auto"
    if not isinstance(value, dict):
        return "auto"
    function = value.get("function", value)
    name = string(function.get("name")) if isinstance(function, dict) else ""
    return f"tool:{name}" if name else "auto"


def _finish(reply: Reply) -> str:
    if reply.ending == "length":
        return "length"
    return "tool_calls" if reply.message.calls else "stop"


def _usage(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.opened.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.opened.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _head(request: Request, opened: Opened, kind: str) -> Json:
    return {"id": f"chatcmpl-{opened.call}", "object": kind, "created": opened.created, "model": request.model}


def _chunk(request: Request, opened: Opened, delta: Json, finish: str | None = None) -> Json:
    head = _head(request, opened, "chat.completion.chunk")
    return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _error(error: CallError) -> Json:
    return {"error": {"message": str(error), "type": error.kind, "param": None, "code": error.code}}
