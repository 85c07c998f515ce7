"""The OpenAI Responses API, in and out: bodies, server-sent events and errors as bytes. No I/O.

Nothing is stored: a client sends the whole history each time. What the policy thought goes out as the summary of a
reasoning item, whose `encrypted_content` is the id of the record. Ids of items derive from the record's, too.
"""

from collections.abc import Iterator, Mapping
from itertools import count

import orjson

from gyre.proxy.bodies import json_object, limit_of, string
from gyre.proxy.errors import CallError
from gyre.proxy.exchange import Asked, Wire
from gyre.proxy.normalise import Json, ToolCall
from gyre.proxy.recall import MOST, refuse_crowd
from gyre.proxy.reply import Opened, Reply, Request, WireProtocol
from gyre.proxy.responses_history import Named, free_text, messages_of, named_tools
from gyre.proxy.sse import named

_OPENING_EVENTS = 2
_CHOICES = frozenset(("auto", "none", "required"))


def parse(body: bytes, headers: Mapping[str, str], most: int = MOST) -> Request:
    """Read a request's body. Raises BadRequest naming what is wrong, PromptTooLong beyond what `most` tokens hold."""
    request = json_object(body)
    refuse_crowd(request.get("tools"), most)
    tools = named_tools(request.get("tools"))
    asked = Asked(
        messages=messages_of(request.get("instructions"), request.get("input"), tools, most),
        tools=tuple(tool.tool for tool in tools.values()),
        max_tokens=limit_of(request, "max_output_tokens"),
        tool_choice=_tool_choice(request.get("tool_choice")),
        wire=Wire("responses", headers, request),
    )
    return Request(asked, string(request.get("model")), request.get("stream") is True, tools=tools)


class Responses(WireProtocol):
    """The protocol, to whoever moves bytes."""

    parse = staticmethod(parse)

    def completion(self, request: Request, reply: Reply) -> bytes:
        """The body of a whole answer."""
        return orjson.dumps(_whole(request, reply))

    def opening(self, request: Request, opened: Opened) -> bytes:
        """The first two events of a stream: created, in progress."""
        response = _response(request, opened, "in_progress")
        created = {"type": "response.created", "sequence_number": 0, "response": response}
        return named(created) + named({"type": "response.in_progress", "sequence_number": 1, "response": response})

    def keep_alive(self, request: Request, opened: Opened, beat: int) -> bytes:
        """In progress, once more: what clients of this protocol count."""
        response = _response(request, opened, "in_progress")
        number = _OPENING_EVENTS + beat
        return named({"type": "response.in_progress", "sequence_number": number, "response": response})

    def events(self, request: Request, reply: Reply, beats: int) -> Iterator[bytes]:
        """The events of a whole turn behind the opening, completed (or incomplete) last."""
        numbers = count(_OPENING_EVENTS + beats)
        for index, item in enumerate(_items(request, reply)):
            for event in _told(index, item):
                yield named({"type": event["type"], "sequence_number": next(numbers), **event})
        whole = _whole(request, reply)
        yield named({"type": f"response.{whole['status']}", "sequence_number": next(numbers), "response": whole})

    def error_body(self, error: CallError) -> bytes:
        """The body of a refusal."""
        return orjson.dumps({"error": {"message": str(error), "type": error.kind, "param": None, "code": error.code}})

    def error_event(self, request: Request, opened: Opened, beats: int, error: CallError) -> bytes:
        """A refusal inside a stream that has begun: some clients read the first event, others the second."""
        number, code = _OPENING_EVENTS + beats, error.code or error.kind
        told = {"type": "error", "sequence_number": number, "code": code, "message": str(error), "param": None}
        failed = _response(request, opened, "failed") | {"error": {"code": code, "message": str(error)}}
        return named(told) + named({"type": "response.failed", "sequence_number": number + 1, "response": failed})


def _tool_choice(value: object) -> str:
    if isinstance(value, str):
        return value if value in _CHOICES else "auto"
    name = string(value.get("name")) if isinstance(value, dict) else ""
    return f"tool:{name}" if name else "auto"


def _response(request: Request, opened: Opened, status: str) -> Json:
    return {
        "id": f"resp_{opened.call}",
        "object": "response",
        "created_at": opened.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _whole(request: Request, reply: Reply) -> Json:
    cut = reply.ending == "length"
    prompt, answer = reply.opened.prompt_tokens, reply.completion_tokens
    return _response(request, reply.opened, "incomplete" if cut else "completed") | {
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(_items(request, reply)),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens},
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + answer,
        },
    }


def _items(request: Request, reply: Reply) -> Iterator[Json]:
    """The turn as output items; an empty text is none."""
    message, call = reply.message, reply.opened.call
    status = "incomplete" if reply.ending == "length" else "completed"
    if message.thinking:
        summary = [{"type": "summary_text", "text": message.thinking}]
        yield {"type": "reasoning", "id": f"rs_{call}", "summary": summary, "encrypted_content": call}
    if message.content:
        text = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        yield {"type": "message", "id": f"msg_{call}", "status": status, "role": "assistant", "content": [text]}
    for index, asked in enumerate(message.calls):
        yield _call(f"{call}_{index}", status, asked, request.tools.get(asked.name))


def _call(suffix: str, status: str, asked: ToolCall, tool: Named | None) -> Json:
    """A call under the name, and in the namespace, that the client gave the tool."""
    name = tool.name if tool else asked.name
    head: Json = {"status": status, "call_id": asked.id, "name": name}
    if tool and tool.namespace:
        head["namespace"] = tool.namespace
    if tool and tool.custom:
        return {"type": "custom_tool_call", "id": f"ctc_{suffix}", **head, "input": free_text(asked.arguments)}
    return {"type": "function_call", "id": f"fc_{suffix}", **head, "arguments": asked.arguments}


def _told(index: int, item: Json) -> Iterator[Json]:
    """The events that one output item is told by."""
    place: Json = {"item_id": item["id"], "output_index": index}
    yield {"type": "response.output_item.added", "output_index": index, "item": _started(item)}
    if item["type"] == "reasoning":
        yield from _reasoning(place | {"summary_index": 0}, item["summary"][0])
    elif item["type"] == "message":
        yield from _text(place | {"content_index": 0}, item["content"][0])
    elif item["type"] == "function_call":
        yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **place, **done}
    else:
        yield {"type": "response.custom_tool_call_input.delta", **place, "delta": item["input"]}
        yield {"type": "response.custom_tool_call_input.done", **place, "input": item["input"]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _started(item: Json) -> Json:
    """An item before its first delta."""
    empty: Json = {"summary": [], "content": [], "arguments": "", "input": "", "status": "in_progress"}
    return {name: empty.get(name, value) for name, value in item.items()}


def _reasoning(place: Json, part: Json) -> Iterator[Json]:
    yield {"type": "response.reasoning_summary_part.added", **place, "part": part | {"text": ""}}
    yield {"type": "response.reasoning_summary_text.delta", **place, "delta": part["text"]}
    yield {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]}
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def _text(place: Json, part: Json) -> Iterator[Json]:
    yield {"type": "response.content_part.added", **place, "part": part | {"text": ""}}
    yield {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}
