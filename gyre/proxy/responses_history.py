"""Histories and tools of the OpenAI Responses API in the one canonical form. No I/O.

Consecutive items of the assistant's (reasoning, message, calls, in this order) are one turn. Tools of a namespace are
shown to the policy by their own names, or as `namespace__name` where two share one; free-text tools take one string.
Tools that the provider would run itself have no name here and are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import is_

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
class _Item:
    """An item, read: a piece of the assistant's turn, or what came from outside the policy."""

    rank: int = 0
    """Its place in a turn; 0: from outside."""
    given: tuple[Message, ...] = ()
    thinking: str = ""
    record: str = ""
    content: str = ""
    call: ToolCall | None = None
    namespace: str = ""
    joined: "_Joined | None" = None
    """Of the first item of a list: what the list was when it was last read."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """The history that a list begins with, up to its last item from outside: no turn is open there."""

    behind: list[_Item]
    """The items behind the first."""
    shown: dict[tuple[str, str], str]
    """Names of tools as the policy saw them, by namespace and name."""
    messages: list[Message]


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
    leading = (Message("system", string(instructions)),) if string(instructions) else ()
    return (*leading, *_joined(_ITEMS(items, most), shown))


def free_text(arguments: str) -> str:
    """The text that a free-text tool is called with."""
    value = parsed_object(arguments)
    return value["input"] if value is not None and isinstance(value.get("input"), str) else arguments


def _read(item: object, index: int) -> _Item:
    if not isinstance(item, dict):
        raise BadRequest(f"input[{index}]: must be an object")
    rank = _rank(item)
    if rank is None:
        return _Item(given=tuple(_given(item, f"input[{index}]")))
    if rank == _REASONING:
        thinking = text_of(item.get("summary")) + text_of(item.get("content"))
        return _Item(rank, thinking=thinking, record=string(item.get("encrypted_content")))
    if rank == _MESSAGE:
        return _Item(rank, content=text_of(item.get("content")))
    return _Item(rank, call=_call(item), namespace=string(item.get("namespace")))


_ITEMS = Recall(_read)


def _joined(items: list[_Item], shown: dict[tuple[str, str], str]) -> list[Message]:
    """The messages that items are; those of a list that only grew are the very same objects, not made again."""
    done, found = _known(items, shown)
    turn: list[_Item] = []
    sure = size = 0
    for place, item in enumerate(items[done:], done + 1):
        if turn and (item.rank < turn[-1].rank or item.rank == turn[-1].rank == _MESSAGE):
            found.append(_turn(turn, shown))
            turn = []
        if item.rank:
            turn.append(item)
        else:
            found += item.given
            sure, size = place, len(found)
    if sure:
        items[0].joined = _Joined(items[1:sure], shown, found[:size])
    return [*found, _turn(turn, shown)] if turn else found


def _known(items: list[_Item], shown: dict[tuple[str, str], str]) -> tuple[int, list[Message]]:
    """How many of the items were joined before, and the messages that they are."""
    known = items[0].joined
    if known is None or known.shown != shown or len(known.behind) >= len(items):
        return 0, []
    same = all(map(is_, known.behind, items[1:]))
    return (len(known.behind) + 1, list(known.messages)) if same else (0, [])


def _turn(turn: list[_Item], shown: dict[tuple[str, str], str]) -> Message:
    """The turn that some items are."""
    calls = [(item.namespace, item.call) for item in turn if item.call]
    return Message(
        "assistant",
        "".join(item.content for item in turn),
        tuple(replace(call, name=shown.get((space, call.name), call.name)) for space, call in calls),
        thinking="".join(item.thinking for item in turn),
        record=next((item.record for item in turn if item.record), ""),
    )


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
        yield Message("tool", text_of(item.get("output"), "\n"), call_id=string(item.get("call_id")))
    elif kind == "message":
        system = item.get("role") in ("system", "developer")
        if not system:
            refuse_images(item.get("content"), where)
        yield Message("system" if system else "user", text_of(item.get("content"), "\n"))
