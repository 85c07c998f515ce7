"""Histories of the Anthropic Messages API in the one canonical form. No I/O.

A user's message with tool results becomes one `tool` message a result, what stands around them `user` messages, in
order. An assistant's turn is (thinking, content, calls) whatever the order of its blocks. Text of separate blocks is
put a line apart, but for the assistant's own, which is only put together again. `role: system` may stand anywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gyre.proxy.bodies import function_tool, objects, part_text, parts, refuse_images, string, text_of
from gyre.proxy.errors import BadRequest
from gyre.proxy.normalise import Json, Message, ToolCall, canonical
from gyre.proxy.recall import MOST, Recall, refuse_crowd

ATTRIBUTION = "x-anthropic-billing-header:"
_UNPARSED = "__unparsedToolInput"
_LINE = "\n"


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one of the API's messages is."""

    messages: tuple[Message, ...]
    named: frozenset[str]
    """Tools that its results refer to."""


def history_of(system: object, messages: object, most: int = MOST) -> tuple[tuple[Message, ...], frozenset[str]]:
    """The history, the system prompt first, and the tools that its results refer to.

    Raises:
        PromptTooLong: far more messages or parts than `most` tokens can hold.
        BadRequest: no list of objects; an image.
    """
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: must be a list of at least one message")
    refuse_crowd(system, most)
    prompt = _LINE.join(text for text in map(part_text, parts(system)) if not text.startswith(ATTRIBUTION))
    found = [Message("system", prompt)] if prompt else []
    turns = _TURNS(messages, most)
    for turn in turns:
        found += turn.messages
    return tuple(found), frozenset[str]().union(*(turn.named for turn in turns if turn.named))


def tools_of(tools: object, named: frozenset[str]) -> tuple[Json, ...]:
    """The tools as chat completions write them, of those whose loading is deferred only the named ones."""
    offered = [tool for tool in objects(tools) if string(tool.get("name"))]
    shown = [tool for tool in offered if tool.get("defer_loading") is not True or tool["name"] in named]
    return tuple(function_tool(tool["name"], tool.get("description"), tool.get("input_schema")) for tool in shown)


def unparsed(arguments: str) -> Json:
    """A call's input that stands for arguments which are no JSON object."""
    return {_UNPARSED: {"raw": arguments, "len": len(arguments)}}


def _read(item: object, index: int) -> _Turn:
    """The messages that one of the API's is."""
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise BadRequest(f"{where}: must be an object with a role")
    return _Turn(tuple(_turn(item, where)), frozenset(_referenced(item.get("content"))))


_TURNS = Recall(_read)


def _turn(item: Json, where: str) -> Iterator[Message]:
    role, content = item.get("role"), item.get("content")
    if role == "assistant":
        yield _assistant(content)
    elif role == "system":
        yield Message("system", text_of(content, _LINE))
    else:
        refuse_images(content, where)
        yield from _user(content)


def _assistant(content: object) -> Message:
    blocks = list(parts(content))
    texts = (part_text(block) for block in blocks if block.get("type") == "text")
    thoughts = (string(block.get("thinking")) for block in blocks if block.get("type") == "thinking")
    calls = (_call(block) for block in blocks if string(block.get("type")).endswith("tool_use"))
    record = next((string(block.get("signature")) for block in blocks if block.get("type") == "thinking"), "")
    return Message("assistant", "".join(texts), tuple(calls), thinking="".join(thoughts), record=record)


def _call(block: Json) -> ToolCall:
    given = block.get("input")
    note = given.get(_UNPARSED) if isinstance(given, dict) else None
    raw = note.get("raw") if isinstance(note, dict) else None
    arguments = raw if isinstance(raw, str) else canonical(given if given is not None else {})
    return ToolCall(string(block.get("id")), string(block.get("name")), arguments)


def _user(content: object) -> Iterator[Message]:
    """The texts of the user's between tool results, and the results."""
    texts: list[str] = []
    told = False
    for block in parts(content):
        if not string(block.get("type")).endswith("tool_result"):
            texts.append(part_text(block))
            continue
        if texts:
            yield Message("user", _LINE.join(texts))
        texts, told = [], True
        yield _result(block)
    if texts or not told:
        yield Message("user", _LINE.join(texts))


def _result(block: Json) -> Message:
    text = text_of(block.get("content"), _LINE)
    failed = block.get("is_error") is True
    return Message("tool", f"[error]\n{text}" if failed else text, call_id=string(block.get("tool_use_id")))


def _referenced(content: object) -> Iterator[str]:
    """Tools that results name."""
    for block in objects(content):
        for part in objects(block.get("content")):
            if part.get("type") == "tool_reference":
                yield string(part.get("tool_name"))
