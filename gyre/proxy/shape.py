r"""How a template wants its messages: what it refuses or would not show is put in a form that it takes.

Every form is tried on the template itself at start; the first that works is used. What this module does, in one place:
- a system message that the template takes nowhere, or not here, is a user message with the same text; several at the
  head become one where only one is taken;
- a tool result that the template does not know is a user message `<tool_response>\n...\n</tool_response>`;
- neighbours of one role are merged, a blank line between their texts, where the template wants strict turns; a user
  message behind a tool result is then added to that result in the same way;
- calls are text `<tool_call>{...}</tool_call>` where the template does not show them; arguments are an object where
  the template would quote a text; a turn with several calls is several turns where only one is taken;
- ids of calls are nine letters and digits where the template insists on that.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import HistoryUnrenderable
from gyre.proxy.normalise import Json, Message, ToolCall

_SHORT_ID = 9
_SYSTEM, _USER, _THEN = Message("system", "Mark S1."), Message("user", "Mark U1."), Message("user", "Mark U2.")
_CALL = ToolCall("call_0", "moor", '{"path": "quay.txt"}')
_CALLING, _TEXT = Message("assistant", "", (_CALL,)), Message("assistant", "Mark A1.")
_RESULT = Message("tool", "Mark R1.", call_id="call_0", name="moor")


@dataclass(frozen=True, slots=True)
class Shape:
    """What one template takes."""

    head: bool = True
    """A system message at the head."""
    later: bool = True
    """System messages anywhere else."""
    tool: bool = True
    """Tool results."""
    merged: frozenset[str] = frozenset()
    """Roles whose neighbours are merged."""
    results_absorb: bool = False
    """User text behind a tool result is added to it."""
    calls: bool = True
    raw_arguments: bool = True
    many_calls: bool = True
    short_ids: bool = False

    def shown(self, messages: Sequence[Message]) -> list[Json]:
        """The messages as the template is given them."""
        return [self._json(message) for message in self._merged(self._split(self._roles(messages)))]

    def _roles(self, messages: Sequence[Message]) -> list[Message]:
        made: list[Message] = []
        for message in messages:
            at_head = all(before.role == "system" for before in made)
            if message.role == "system" and not (self.head if at_head and not made else self.later):
                if at_head and made and self.head:
                    made[-1] = _sum(made[-1], message)
                    continue
                made.append(replace(message, role="user"))
            elif message.role == "tool" and not self.tool:
                made.append(Message("user", f"<tool_response>\n{message.content}\n</tool_response>"))
            else:
                made.append(message)
        return made

    def _split(self, messages: list[Message]) -> list[Message]:
        if self.many_calls or not self.calls:
            return messages
        made: list[Message] = []
        for message in messages:
            made.append(replace(message, calls=message.calls[:1]))
            made += [Message("assistant", "", (call,)) for call in message.calls[1:]]
        return made

    def _merged(self, messages: list[Message]) -> list[Message]:
        made: list[Message] = []
        for message in messages:
            before = made[-1].role if made else ""
            same = message.role == before and message.role in self.merged
            if same or (self.results_absorb and (before, message.role) == ("tool", "user")):
                made[-1] = _sum(made[-1], message)
            else:
                made.append(message)
        return made

    def _json(self, message: Message) -> Json:
        shown: Json = {**message.wire(), "content": message.content}
        if message.calls and not self.calls:
            shown["content"] += "".join(_call_text(call) for call in message.calls)
            del shown["tool_calls"]
        for call in shown.get("tool_calls", ()):
            call["id"] = self._id(call["id"])
            if not self.raw_arguments:
                call["function"]["arguments"] = _object(call["function"]["arguments"])
        if message.call_id:
            shown["tool_call_id"] = self._id(message.call_id)
        return shown

    def _id(self, call_id: str) -> str:
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_SHORT_ID] if self.short_ids else call_id


def shape_of(model: ChatModel) -> Shape:
    """Try out what the model's template takes."""
    shape = _with_calls(model, _with_roles(model, _with_turns(model, Shape())))
    shape = _with_turns(model, shape)
    if not _shows(model, shape, (_USER, _CALLING, _RESULT, _THEN)) and shape.tool:
        absorbing = replace(shape, results_absorb=True)
        shape = absorbing if _shows(model, absorbing, (_USER, _CALLING, _RESULT, _THEN)) else shape
    return shape


def _with_turns(model: ChatModel, shape: Shape) -> Shape:
    """Whether neighbours of one role may stand apart."""
    tries = {"user": (_USER, _THEN), "assistant": (_USER, _TEXT, replace(_TEXT, content="Mark A2."))}
    refused = {role for role, messages in tries.items() if not _shows(model, shape, messages)}
    return replace(shape, merged=shape.merged | refused)


def _with_roles(model: ChatModel, shape: Shape) -> Shape:
    head = _shows(model, shape, (_SYSTEM, _USER))
    shape = replace(shape, head=head)
    later = head and _shows(model, shape, (_SYSTEM, _USER, replace(_SYSTEM, content="Mark S2."), _THEN))
    return replace(shape, later=later and _shows(model, shape, (_SYSTEM, replace(_SYSTEM, content="Mark S2."), _USER)))


def _with_calls(model: ChatModel, shape: Shape) -> Shape:
    """The forms of calls and their results, the plainest first."""
    forms = [replace(shape, raw_arguments=raw, short_ids=short) for raw in (True, False) for short in (False, True)]
    shown = [form for form in forms if "moor" in _text(model, form, (_USER, _CALLING, _RESULT))]
    best = [form for form in shown if _CALL.arguments in _text(model, form, (_USER, _CALLING, _RESULT))]
    found = next(iter((*best, *shown)), None)
    if found is None:
        shape = _called_in_text(model, shape)
    else:
        shape = replace(found, tool=_shows(model, found, (_USER, _CALLING, _RESULT)))
    two = Message("assistant", "", (_CALL, replace(_CALL, id="call_1", name="cast")))
    return replace(shape, many_calls=not shape.calls or "cast" in _text(model, shape, (_USER, two)))


def _called_in_text(model: ChatModel, shape: Shape) -> Shape:
    """The template shows no calls beside their results; perhaps it shows calls, or results."""
    for raw in (True, False):
        alone = replace(shape, raw_arguments=raw, tool=False)
        if "moor" in _text(model, alone, (_USER, _CALLING)):
            return alone
    without = replace(shape, calls=False)
    return replace(without, tool=_shows(model, without, (_USER, _CALLING, _RESULT)))


def _shows(model: ChatModel, shape: Shape, messages: Sequence[Message]) -> bool:
    """Whether the template takes the messages and shows each of their texts, in order."""
    text, place = _text(model, shape, messages), 0
    for message in messages:
        place = text.find(message.content, place)
        if place < 0 or not text:
            return False
        place += len(message.content)
    return True


def _text(model: ChatModel, shape: Shape, messages: Sequence[Message]) -> str:
    try:
        return model.render(shape.shown(messages), generate=True)
    except HistoryUnrenderable:
        return ""


def _sum(left: Message, right: Message) -> Message:
    both = [text for text in (left.content, right.content) if text]
    return replace(left, content="\n\n".join(both), calls=left.calls + right.calls)


def _call_text(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": _object(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"


def _object(arguments: str) -> object:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
