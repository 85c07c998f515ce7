"""Histories and tools of the OpenAI Responses API in the one canonical form. No I/O.

Consecutive items of the assistant's (reasoning, message, calls, in this order) are one turn. Tools of a namespace are
shown to the policy by their own names, or as `namespace__name` where two share one; free-text tools take one string.
Tools that the provider would run itself have no name here and are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gyre.proxy.bodies import function_tool, objects, parsed_object, refuse_images, string, text_of
from gyre.proxy.errors import BadRequest
from gyre.proxy.normalise import Json, Message, ToolCall, canonical

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


def messages_of(instructions: object, items: object, tools: dict[str, Named]) -> tuple[Message, ...]:
    """The history, the instructions first. Raises BadRequest for what is no input, and for images."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise BadRequest("input: must be a text or a list of at least one item")
    shown = {(tool.namespace, tool.name): name for name, tool in tools.items()}
    found = [Message("system", string(instructions))] if string(instructions) else []
    turn = _Turn()
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise BadRequest(f"input[{index}]: must be an object")
        if (rank := _rank(item)) is not None:
            found += turn.end() if rank < turn.rank or rank == turn.rank == _MESSAGE else ()
            turn.take(rank, item, shown)
        else:
            found += turn.end()
            found += _given(item, f"input[{index}]")
    return (*found, *turn.end())


def free_text(arguments: str) -> str:
    """The text that a free-text tool is called with."""
    value = parsed_object(arguments)
    return value["input"] if value is not None and isinstance(value.get("input"), str) else arguments


@dataclass(slots=True)
class _Turn:
    """An assistant's turn as its items come in."""

    rank: int = 0
    """Of its last item; 0: none yet."""
    thinking: str = ""
    record: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def take(self, rank: int, item: Json, shown: dict[tuple[str, str], str]) -> None:
        """Add an item of this rank."""
        self.rank = rank
        if rank == _REASONING:
            self.thinking += text_of(item.get("summary")) + text_of(item.get("content"))
            self.record = self.record or string(item.get("encrypted_content"))
        elif rank == _MESSAGE:
            self.content += text_of(item.get("content"))
        else:
            self.calls.append(_call(item, shown))

    def end(self) -> tuple[Message, ...]:
        """The turn, if there is one; the next item begins another."""
        if not self.rank:
            return ()
        turn = Message("assistant", self.content, tuple(self.calls), thinking=self.thinking, record=self.record)
        self.rank, self.thinking, self.record, self.content, self.calls = 0, "", "", "", []
        return (turn,)


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


def _call(item: Json, shown: dict[tuple[str, str], str]) -> ToolCall:
    name = string(item.get("name"))
    if item.get("type") == "custom_tool_call":
        arguments = canonical({"input": string(item.get("input"))})
    else:
        given = item.get("arguments")
        arguments = given if isinstance(given, str) else canonical(given if given is not None else {})
    return ToolCall(string(item.get("call_id")), shown.get((string(item.get("namespace")), name), name), arguments)


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
