"""Increments: what a chat template adds to a history that is already tokens. History is never tokenised again.

A template may be cut between two messages where, whatever stands around, the text (and its tokens) up to there stay
the same when messages follow. Where that holds is derived at start and verified on probe conversations, text and
tokens, with tools and without; a cut that fails any probe is never used. So an increment is rendered behind a short
stand-in conversation instead of behind the real history, and its cost depends on the new messages alone. A template
that allows no cut is served too: each of its calls is a root of its own, rendered whole.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import HistoryUnrenderable, TemplateUnusable
from gyre.proxy.normalise import Json, Message, ToolCall, tools_of

GENERATE = "generate"
"""Stands for the generation prompt where a cut names the role after it."""

Cut = tuple[str, str]
"""Roles before and after."""

_MARK = "Tidal harbour 5149"
_ARGUMENTS = '{"path": "quay.txt"}'
_CALL = ToolCall("call_0", "moor", _ARGUMENTS)
_SYSTEM = Message("system", "You tend a harbour.")
_USER = Message("user", "Which boats are in?")
_TEXT = Message("assistant", _MARK)
_CALLING = Message("assistant", "", (_CALL,))
_RESULT = Message("tool", "three boats", call_id="call_0")
_LONG = (_SYSTEM, _USER, _CALLING, _RESULT, Message("assistant", "Three."), Message("user", "And now? {x}\n\n<b> "))
_TOOLS = tools_of([{"type": "function", "function": {"name": "moor", "description": "d", "parameters": {}}}])
_STANDINS = {
    "system": (_SYSTEM,),
    "user": (_SYSTEM, _USER),
    "assistant": (_SYSTEM, _USER, _TEXT),
    "tool": (_SYSTEM, _USER, _CALLING, _RESULT),
}
_NEXT = {
    "system": (Message("system", "Mind the tide."),),
    "user": (Message("user", "  Fetch the log,\nplease. "),),
    "assistant": (Message("assistant", "It is dry."),),
    "tool": (Message("tool", " two\nboats", call_id="call_0"), Message("tool", "none", call_id="call_1")),
    GENERATE: (),
}
_HISTORIES = (*_STANDINS.values(), _LONG, (*_LONG, _CALLING), (*_LONG, _CALLING, _RESULT), (*_LONG, _TEXT))


class NotAppendOnly(Exception):
    """This increment cannot be had behind a stand-in: render the whole history."""


@dataclass(frozen=True, slots=True)
class Increment:
    """Tokens that follow a cut: the messages' own, then the generation prompt's."""

    ids: list[int]
    ends: list[int]
    """For each message: tokens of the increment up to its end, -1 where nothing may be cut."""


class Template:
    """A chat model with its verified cuts."""

    def __init__(self, model: ChatModel) -> None:
        """Derive and verify. Raises TemplateUnusable if even a system-less question cannot be rendered."""
        self.model = model
        self._shows_calls, self._raw_arguments = True, True
        self._standins: dict[Cut, tuple[Message, ...]] = {}
        self._texts: dict[Cut, str] = {}
        try:
            self._learn_calls()
            self._close_ids = self._learn_close()
        except HistoryUnrenderable as error:
            raise TemplateUnusable(f"chat template: fails on a plain conversation: {error}") from error
        roles = tuple(_STANDINS)
        self.cuts = frozenset(cut for p in roles for n in (*roles, GENERATE) if self._verified(cut := (p, n)))

    def increment(self, before: str | None, messages: Sequence[Message], tools: Sequence[Json] = ()) -> Increment:
        """Tokens of `messages` and the generation prompt behind a message of role `before`, or as a root (None).

        `tools` are read for a root only: wherever a cut is allowed, they stand before it.

        Raises:
            NotAppendOnly: not from this place; take an earlier one.
            HistoryUnrenderable: the template refuses the messages.
        """
        ids: list[int] = []
        ends: list[int] = []
        for group in self._groups(messages):
            last = len(ends) + len(group) == len(messages)
            split = (group[-1].role, GENERATE) in self.cuts
            ids += self.model.encode(self._text(before, group, tools if before is None else (), last and not split))
            ends += [-1] * (len(group) - 1) + [len(ids) if split or not last else -1]
            before = group[-1].role
        if not ends or ends[-1] >= 0:
            ids += self.model.encode(self._text(before, (), (), generate=True))
        return Increment(ids, ends)

    def whole(self, messages: Sequence[Message], tools: Sequence[Json]) -> Increment:
        """The history as a root, not cut anywhere. Raises HistoryUnrenderable."""
        text = self._render(messages, tools, generate=True)
        return Increment(self.model.encode(text), [-1] * len(messages))

    def closing(self, last_token: int | None) -> list[int]:
        """What follows a sampled turn before the next message: its end mark, unless sampled, and what comes after."""
        return self._close_ids[1:] if self._close_ids[:1] == [last_token] else list(self._close_ids)

    def may_cut(self, before: str, after: str) -> bool:
        """Whether text may be cut between messages of these roles (`after` may be GENERATE)."""
        return (before, after) in self.cuts

    def _groups(self, messages: Sequence[Message]) -> list[list[Message]]:
        groups = [[message] for message in messages[:1]]
        for left, right in pairwise(messages):
            if (left.role, right.role) in self.cuts:
                groups.append([right])
            else:
                groups[-1].append(right)
        return groups

    def _text(self, before: str | None, group: Sequence[Message], tools: Sequence[Json], generate: bool) -> str:
        """Text of one group (or of the bare generation prompt) behind a message of role `before`."""
        if before is None:
            return self._render(group, tools, generate=generate)
        cut = (before, group[0].role if group else GENERATE)
        if cut not in self._texts:
            standin = _STANDINS[before] if cut != ("assistant", "tool") else (_SYSTEM, _USER, _CALLING)
            self._standins[cut], self._texts[cut] = standin, self._render(standin, ())
        text = self._render((*self._standins[cut], *group), (), generate=generate)
        if not text.startswith(self._texts[cut]):
            raise NotAppendOnly
        return text[len(self._texts[cut]) :]

    def _verified(self, cut: Cut) -> bool:
        try:
            return all(
                self._holds(history, cut, tools)
                for history in _HISTORIES
                if history[-1].role == cut[0]
                for tools in ((), _TOOLS)
            )
        except (HistoryUnrenderable, NotAppendOnly):
            return False

    def _holds(self, history: Sequence[Message], cut: Cut, tools: Sequence[Json]) -> bool:
        after = _NEXT[cut[1]]
        start = self._render(history, tools)
        if cut[0] == "assistant" and not self._closed(start):
            return False
        for count in range(1, len(after) + 1) if after else (0,):
            whole = self._render((*history, *after[:count]), tools, generate=not after)
            added = self._text(cut[0], after[:count], (), generate=not after)
            if whole != start + added or self.model.encode(whole) != self.model.encode(start) + self.model.encode(
                added
            ):
                return False
        return True

    def _closed(self, text: str) -> bool:
        """A rendered assistant turn ends as a sampled one is made to end."""
        size = len(self._close_ids)
        return not size or self.model.encode(text)[-size:] == self._close_ids

    def _render(self, messages: Sequence[Message], tools: Sequence[Json], *, generate: bool = False) -> str:
        return self.model.render([self._shown(message) for message in messages], tools, generate=generate)

    def _shown(self, message: Message) -> Json:
        """A message as the template reads it best: arguments as object where text would be quoted."""
        shown: Json = {**message.wire(), "content": message.content}
        if message.calls and not self._shows_calls:
            shown["content"] += "".join(_call_text(call) for call in message.calls)
            del shown["tool_calls"]
        elif message.calls and not self._raw_arguments:
            for call in shown["tool_calls"]:
                call["function"]["arguments"] = _object(call["function"]["arguments"])
        return shown

    def _learn_calls(self) -> None:
        """Find out whether the template shows tool calls, and whether it shows their arguments as the text they are."""
        for raw in (True, False):
            self._raw_arguments, self._shows_calls = raw, True
            try:
                text = self._render((_USER, _CALLING), ())
            except HistoryUnrenderable:
                text = ""
            self._shows_calls = _CALL.name in text
            if _ARGUMENTS in text:
                return

    def _learn_close(self) -> list[int]:
        text = self._render((_USER, _TEXT), ())
        place = text.rfind(_MARK)
        return self.model.encode(text[place + len(_MARK) :]) if place >= 0 else []


def _call_text(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": _object(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"


def _object(arguments: str) -> object:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
