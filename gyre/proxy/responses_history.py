"""Histories and tools of the OpenAI Responses API in the one canonical form. No I/O.

Consecutive items of the assistant's (reasoning, message, calls, in this order) are one turn. Tools of a namespace are
shown to the policy by their own names, or as `namespace__name` where two share one; free-text tools take one string.
Tools that the provider would run itself have no name here and are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gyre.proxy.bodies import function_tool, objects, parsed_object, refuse_images, string, text_of
from gyre.proxy.errors import BadRequest
from gyre.proxy.normalise import Json, Message, ToolCall, canonical
from gyre.proxy.recall import MOST, Recall

_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_REASONING, _MESSAGE, _CALL = 1, 2, 3
_RANKS = {"reasoning": _REASONING, "message": _MESSAGE, "function_call": _CALL, "custom_tool_call": _CALL}


@dataclass(frozen=True, slots=True)
class Named:
    """A tool as the client knows it."""

    name: str
    namespace: str
    custom: bool
    """Whether it takes free text instead of a JSON object."""
    tool: Json
    """As chat completions write it, under the name that the policy sees."""


def named_tools(tools: object) -> dict[str, Named]:
    """The client's tools, by the names that the policy sees."""
    found: dict[str, Named] = {}
    for namespace, tool in _flat(tools):
        name = string(tool.get("name"))
        shown = f"{namespace}__{name}" if namespace and name in found else name
        custom = tool.get("type") == "custom"
        shape = _FREE_TEXT if custom else tool.get("parameters")
        found.setdefault(shown, Named(name, namespace, custom, function_tool(shown, tool.get("description"), shape)))
    return found


@dataclass(slots=True, eq=False)
class _Part:
    """An assistant's item, read: a piece of a turn."""

    rank: int
    thinking: str = ""
    record: str = ""
    content: str = ""
    call: ToolCall | None = None
    namespace: str = ""
    turn: "tuple[tuple[_Part, ...], tuple[str, ...], Message] | None" = None
    """The turn that ended here when it was last put together: what stood before, the names of its calls, itself."""


def messages_of(instructions: object, items: object, tools: dict[str, Named], most: int = MOST) -> tuple[Message, ...]:
    """The history, the instructions first.

    Raises:
        PromptTooLong: far more items or parts than `most` tokens can hold.
        BadRequest: no input; an image.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise BadRequest("input: must be a text or a list of at least one item")
    shown = {(tool.namespace, tool.name): name for name, tool in tools.items()}
    found = [Message("system", string(instructions))] if string(instructions) else []
    turn: list[_Part] = []
    for item in _ITEMS(items, most):
        if isinstance(item, tuple):
            found += _ended(turn, shown)
            found += item
        else:
            if turn and (item.rank < turn[-1].rank or item.rank == turn[-1].rank == _MESSAGE):
                found += _ended(turn, shown)
            turn.append(item)
    return (*found, *_ended(turn, shown))


def free_text(arguments: str) -> str:
    """The text that a free-text tool is called with."""
    value = parsed_object(arguments)
    return value["input"] if value is not None and isinstance(value.get("input"), str) else arguments


def _read(item: object, index: int) -> "_Part | tuple[Message, ...]":
    """What an item is: a piece of the assistant's turn, or messages from outside the policy."""
    if not isinstance(item, dict):
        raise BadRequest(f"input[{index}]: must be an object")
    rank = _rank(item)
    if rank is None:
        return tuple(_given(item, f"input[{index}]"))
    if rank == _REASONING:
        thinking = text_of(item.get("summary")) + text_of(item.get("content"))
        return _Part(rank, thinking=thinking, record=string(item.get("encrypted_content")))
    if rank == _MESSAGE:
        return _Part(rank, content=text_of(item.get("content")))
    return _Part(rank, call=_call(item), namespace=string(item.get("namespace")))


_ITEMS = Recall(_read)


def _ended(turn: list[_Part], shown: dict[tuple[str, str], str]) -> tuple[Message, ...]:
    """The turn, if there is one, the very same message as last time; the next item begins another."""
    if not turn:
        return ()
    *before, last = turn
    turn.clear()
    parts = (*before, last)
    names = tuple(shown.get((part.namespace, part.call.name), part.call.name) for part in parts if part.call)
    if last.turn is None or last.turn[:2] != (tuple(before), names):
        calls = (part.call for part in parts if part.call)
        message = Message(
            "assistant",
            "".join(part.content for part in parts),
            tuple(replace(call, name=name) for call, name in zip(calls, names, strict=True)),
            thinking="".join(part.thinking for part in parts),
            record=next((part.record for part in parts if part.record), ""),
        )
        last.turn = tuple(before), names, message
    return (last.turn[2],)


def _flat(tools: object, namespace: str = "") -> Iterator[tuple[str, Json]]:
    for tool in objects(tools):
        if tool.get("type") == "namespace":
            yield from _flat(tool.get("tools"), string(tool.get("name")))
        elif string(tool.get("name")):
            yield namespace, tool


def _rank(item: Json) -> int | None:
    """Place of an assistant's item in its turn; None for what others said."""
    kind = string(item.get("type")) or "message"
    return None if kind == "message" and item.get("role") != "assistant" else _RANKS.get(string(kind))


def _call(item: Json) -> ToolCall:
    """A call under the name that the client gave the tool."""
    if item.get("type") == "custom_tool_call":
        arguments = canonical({"input": string(item.get("input"))})
    else:
        given = item.get("arguments")
        arguments = given if isinstance(given, str) else canonical(given if given is not None else {})
    return ToolCall(string(item.get("call_id")), string(item.get("name")), arguments)


def _given(item: Json, where: str) -> Iterator[Message]:
    """What came from outside the policy; items of an unknown type that hold nothing to read are left out."""
    kind = string(item.get("type")) or "message"
    if kind.endswith("_call_output"):
        yield Message("tool", text_of(item.get("output")), call_id=string(item.get("call_id")))
    elif kind == "message":
        system = item.get("role") in ("system", "developer")
        if not system:
            refuse_images(item.get("content"), where)
        yield Message("system" if system else "user", text_of(item.get("content"), "\n"))
