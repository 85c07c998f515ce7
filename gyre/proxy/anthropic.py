"""The Anthropic Messages API, in and out: bodies, server-sent events and errors as bytes. No I/O.

Betas, unknown fields and block types are accepted. Three decisions that somebody will ask about:

- The attribution line that Claude Code puts first in `system` is dropped for good: it is neither matched on nor shown
  to the policy, since its digits change with the first user message, and with them every token behind it. Adapters
  find it in the wire's body.
- A whole (not streamed) answer cannot carry arguments that are no JSON object. They go out as Claude Code itself
  writes such a call into its history, `{"__unparsedToolInput": {"raw": ..., "len": ...}}`, and are read back from
  there. A stream carries them as they are.
- `input_tokens` is the whole prompt, cached or not, and the cache's own fields are 0: the sum, which clients compact
  by, is true from the moment that a stream opens. The id of the record stands in the `signature` of what the policy
  thought.
"""

from collections.abc import Iterator, Mapping

import orjson

from gyre.proxy import anthropic_history as history
from gyre.proxy.bodies import json_object, limit_of, parsed_object, stops_of, string
from gyre.proxy.errors import CallError
from gyre.proxy.exchange import Asked, Wire
from gyre.proxy.normalise import Json
from gyre.proxy.recall import MOST, refuse_crowd
from gyre.proxy.reply import Opened, Reply, Request, WireProtocol
from gyre.proxy.sse import named

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def parse(body: bytes, headers: Mapping[str, str], most: int = MOST) -> Request:
    """Read the body of `messages` or `count_tokens`. Raises BadRequest naming what is wrong, PromptTooLong."""
    request = json_object(body)
    refuse_crowd(request.get("tools"), most)
    messages, named_tools = history.history_of(request.get("system"), request.get("messages"), most)
    asked = Asked(
        messages=messages,
        tools=history.tools_of(request.get("tools"), named_tools),
        max_tokens=limit_of(request, "max_tokens"),
        stop=stops_of(request.get("stop_sequences")),
        tool_choice=_tool_choice(request.get("tool_choice")),
        wire=Wire("anthropic", headers, request),
    )
    return Request(asked, string(request.get("model")), request.get("stream") is True)


class Anthropic(WireProtocol):
    """The protocol, to whoever moves bytes."""

    parse = staticmethod(parse)

    def completion(self, request: Request, reply: Reply) -> bytes:
        """The body of a whole answer."""
        blocks = [_whole(block) for block in _blocks(reply)]
        message = _message(request, reply.opened) | {
            "content": blocks,
            "usage": _usage(reply.opened, reply.completion_tokens),
        }
        return orjson.dumps(message | _ending(reply))

    def opening(self, request: Request, opened: Opened) -> bytes:
        """The first event of a stream: the message, still empty."""
        return named({"type": "message_start", "message": _message(request, opened)})

    def keep_alive(self, request: Request, opened: Opened, beat: int) -> bytes:
        """An end that has no reason yet: pings are not enough for every client, this event is."""
        ending = {"stop_reason": None, "stop_sequence": None}
        return named({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 0}})

    def events(self, request: Request, reply: Reply, beats: int) -> Iterator[bytes]:
        """The events of a whole turn behind the opening, message_stop included."""
        for index, block in enumerate(_blocks(reply)):
            yield named({"type": "content_block_start", "index": index, "content_block": _started(block)})
            for delta in _deltas(block):
                yield named({"type": "content_block_delta", "index": index, "delta": delta})
            yield named({"type": "content_block_stop", "index": index})
        yield named(
            {"type": "message_delta", "delta": _ending(reply), "usage": _usage(reply.opened, reply.completion_tokens)}
        )
        yield named({"type": "message_stop"})

    def error_body(self, error: CallError) -> bytes:
        """The body of a refusal."""
        return orjson.dumps(_error(error))

    def error_event(self, request: Request, opened: Opened, beats: int, error: CallError) -> bytes:
        """A refusal inside a stream that has begun."""
        return named(_error(error))


def counted(tokens: int) -> bytes:
    """The answer to `count_tokens`."""
    return orjson.dumps({"input_tokens": tokens})


def _tool_choice(value: object) -> str:
    if not isinstance(value, dict):
        return "auto"
    if value.get("type") == "tool" and string(value.get("name")):
        return f"tool:{value['name']}"
    return {"any": "required", "none": "none"}.get(string(value.get("type")), "auto")


def _message(request: Request, opened: Opened) -> Json:
    return {
        "id": f"msg_{opened.call}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(opened, 0),
    }


def _usage(opened: Opened, completion_tokens: int) -> Json:
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": opened.prompt_tokens, **cache, "output_tokens": completion_tokens}


def _ending(reply: Reply) -> Json:
    if reply.ending == "stop":
        return {"stop_reason": "tool_use" if reply.message.calls else "end_turn", "stop_sequence": None}
    if reply.ending == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_sequence}


def _blocks(reply: Reply) -> Iterator[Json]:
    """The turn as blocks, a call's `input` still raw text. An empty text is no block."""
    message = reply.message
    if message.thinking:
        yield {"type": "thinking", "thinking": message.thinking, "signature": reply.opened.call}
    if message.content:
        yield {"type": "text", "text": message.content}
    for call in message.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _whole(block: Json) -> Json:
    return {**block, "input": _input(block["input"])} if block["type"] == "tool_use" else block


def _input(arguments: str) -> object:
    """Raw arguments inside a JSON body: untouched if they are an object."""
    if parsed_object(arguments) is None:
        return history.unparsed(arguments)
    return orjson.Fragment(arguments.encode("utf-8", "replace") or b"{}")


def _started(block: Json) -> Json:
    """A block before its first delta."""
    empty = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {name: empty.get(name, value) for name, value in block.items()}


def _deltas(block: Json) -> Iterator[Json]:
    if block["type"] == "text":
        yield {"type": "text_delta", "text": block["text"]}
    elif block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["input"]:
        yield {"type": "input_json_delta", "partial_json": block["input"]}


def _error(error: CallError) -> Json:
    return {"type": "error", "error": {"type": _KINDS.get(error.status, "api_error"), "message": str(error)}}
