"""Messages of a chat in one canonical form, whatever spelling the client chose.

What clients vary without meaning it is gone: content as string or list of parts, null or missing or empty content,
cache marks, key order, unknown keys, `developer` for `system`. Nothing is refused for an unknown field or role.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gyre.proxy.errors import BadRequest
from gyre.proxy.recall import MOST, Recall

Json = dict[str, Any]

ROLES = {"developer": "system", "function": "tool"}
KNOWN = frozenset(("system", "user", "assistant", "tool"))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the policy, or one that the client says the policy made."""

    id: str
    name: str
    arguments: str
    """Raw text, as written; meant to be JSON, not always."""

    def wire(self) -> Json:
        """As the OpenAI protocol writes it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a history; also the assistant's answer."""

    role: str
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Of a tool's result: the call that it answers."""
    name: str = ""
    thinking: str = ""
    """Of an assistant's turn: what it thought before it spoke. Clients keep, trim or drop it: a recorded turn is not
    matched on it."""
    record: str = field(default="", compare=False)
    """Of an assistant's turn: the call that the client says it answers (an echoed signature), or that it was found to
    answer; "" if neither."""

    def wire(self) -> Json:
        """As the OpenAI protocol writes it; an assistant that only calls tools has null content."""
        message: Json = {"role": self.role, "content": self.content}
        if self.calls:
            message["content"] = self.content or None
            message["tool_calls"] = [call.wire() for call in self.calls]
        if self.call_id:
            message["tool_call_id"] = self.call_id
        if self.name:
            message["name"] = self.name
        if self.thinking:
            message["reasoning_content"] = self.thinking
        return message


def messages_of(value: object, read: "Recall[Message] | None" = None, most: int = MOST) -> tuple[Message, ...]:
    """The canonical history, each message by `read`.

    Raises:
        PromptTooLong: far more messages or parts than `most` tokens can hold.
        BadRequest: it is no list of objects or empty.
    """
    if not isinstance(value, list) or not value:
        raise BadRequest("messages: must be a list of at least one message")
    return tuple((read or _MESSAGES)(value, most))


def message_of(value: object, where: str) -> Message:
    """One canonical message. Raises BadRequest naming the place when it is no object with a role."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise BadRequest(f"{where}: must be an object with a role")
    role = ROLES.get(value["role"], value["role"])
    return Message(
        role=role if role in KNOWN else "user",
        content=_text(value.get("content"), "" if role == "assistant" else "\n"),
        calls=_calls(value.get("tool_calls")),
        call_id=_string(value.get("tool_call_id")),
        name=_string(value.get("name")),
        thinking=_string(value.get("reasoning_content")),
    )


def tools_of(value: object) -> tuple[Json, ...]:
    """The tools offered, in order; what is no object, or holds a function that is none, is dropped."""
    tools = [tool for tool in value if isinstance(tool, dict)] if isinstance(value, list) else []
    return tuple(tool for tool in tools if isinstance(tool.get("function", tool), dict))


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values, equal text. Raises BadRequest for too deep ones."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise BadRequest(f"body: cannot be read: {error}; nest less deeply") from error


def dump(messages: tuple[Message, ...]) -> str:
    """Messages as the record keeps them: the call that a turn answers is named, which no template is shown."""
    return canonical([message.wire() | ({"record": message.record} if message.record else {}) for message in messages])


def load(text: str) -> tuple[Message, ...]:
    """What `dump` wrote; an empty list is no error here."""
    return tuple(_loaded(item, f"messages[{index}]") for index, item in enumerate(orjson.loads(text)))


def _loaded(item: Json, where: str) -> Message:
    message = message_of(item, where)
    return replace(message, record=_string(item["record"])) if "record" in item else message


def _text(content: object, between: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return between.join(_part(part) for part in content)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else f"[{_string(part.get('type')) or 'part'}]"


def _calls(value: object) -> tuple[ToolCall, ...]:
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return tuple(_call(item) for item in items)


def _call(item: Json) -> ToolCall:
    function = item.get("function")
    inner: Json = function if isinstance(function, dict) else item
    arguments = inner.get("arguments")
    text = arguments if isinstance(arguments, str) else canonical(arguments if arguments is not None else {})
    return ToolCall(_string(item.get("id")), _string(inner.get("name")), text)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


_MESSAGES = Recall(lambda item, index: message_of(item, f"messages[{index}]"))
