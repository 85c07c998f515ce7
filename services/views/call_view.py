"""`gyre call`: one request record, how it was matched, and what the proxy went through to have it answered."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bus import subjects
from gyre.config import Config
from gyre.core import tree as trees
from gyre.core.histories import Asked, Entry, asked
from gyre.errors import GyreError
from gyre.proxy.chat_model import ChatModel
from schemas.base import ints
from schemas.calls import (
    HistoryRejected,
    KvHandoffCompleted,
    ModelCallContinued,
    ModelCallRecorded,
    ModelCallRetried,
    RequestCancelled,
    RouteAssigned,
    RouteMoved,
)
from services.execution_log import ExecutionNotFound, Facts, Said, chat_model, facts_of
from services.source import Source, messages

_OF_ROUTE = (RouteAssigned, RouteMoved, KvHandoffCompleted)
_OF_CALL = (ModelCallRetried, ModelCallContinued, RequestCancelled, HistoryRejected)
_SLACK_SECONDS = 0.25
"""What lies between an answer and its record: a route that moved this shortly before or after is the call's too."""
_PACKED = {"input_ids", "output_ids", "logprobs", "messages", "reply", "type", "v"}


class CallNotFound(GyreError):
    """The run has no record of such a call, nor said anything of it."""


async def call_of(source: Source, call: str) -> dict[str, Any]:
    """One call as plain data; `record` is None when it was never answered and only events tell of it.

    Raises:
        CallNotFound: neither a record nor an event names it.
    """
    facts = await _facts(source, call)
    found = next((each for each in facts.calls if _name(each) == call), None)
    told = {"run": source.run, "execution": facts.execution, "call": call}
    if found is None or not isinstance(found.event, ModelCallRecorded):
        return {**told, "record": None, "events": _events(facts, call, None)}
    chat = chat_model(Config.recorded((await source.started()).config).model.path)
    record = next(each for each in facts.records if each.call == call)
    return {
        **told,
        "sequence": found.sequence,
        "time": _time(found.time),
        "record": record.model_dump(mode="json", exclude=_PACKED),
        **_Placed(facts, record, chat).plain(),
        "events": _events(facts, call, found),
    }


@dataclass(frozen=True, slots=True)
class _Placed:
    """A record in its execution's tree."""

    facts: Facts
    record: ModelCallRecorded
    chat: ChatModel | None

    def plain(self) -> dict[str, Any]:
        record, tree = self.record, self.facts.tree()
        if record.call not in tree.nodes:
            rejected = {each["call"]: each["reason"] for each in self.facts.rejected(tree)}
            return {"node": False, "why": rejected.get(record.call, ""), **self._output()}
        prefix = trees.path_ids(tree, record.parent, record.prefix_tokens) if record.parent else b""
        history = asked({each.call: each for each in self.facts.records}, record.call)
        leaf = next((each for each in self.facts.leaves(tree) if each.leaf == record.call), None)
        return {
            "node": True,
            "leaf": leaf.role if leaf else None,
            "children": [node.call for node in tree.nodes.values() if node.parent == record.call],
            "cut": _cut(record, self.facts, tree),
            "matched": [_entry(each) for each in history.matched],
            "new": self._new(history),
            "prefix_text": self._text(prefix),
            "input_tokens": len(record.input_ids) // 4,
            "input_text": self._text(record.input_ids),
            **self._output(),
        }

    def _new(self, history: Asked) -> list[dict[str, Any]]:
        """New messages with where each ends in the path; -1: no other history may go on from there."""
        ends: Sequence[int | None] = self.record.message_ends or [None] * len(history.new)
        return [{**each.message, "end": end} for each, end in zip(history.new, ends, strict=False)]

    def _output(self) -> dict[str, Any]:
        count = len(self.record.output_ids) // 4
        return {
            "output_tokens": count,
            "output_text": self._text(self.record.output_ids),
            "reply": json.loads(self.record.reply),
        }

    def _text(self, packed: bytes) -> str | None:
        return self.chat.decode(ints(packed)) if self.chat else None


async def _facts(source: Source, call: str) -> Facts:
    """Of the execution that the call belongs to: the proxy names calls after it, anything else is looked for."""
    try:
        facts = await facts_of(source, call.rpartition("-")[0])
        if any(_name(each) == call for each in (*facts.calls, *facts.said)):
            return facts
    except ExecutionNotFound:
        pass
    async for stored in messages(source.calls):
        if stored.commit and any(getattr(event, "call", None) == call for event in stored.commit.events):
            return await facts_of(source, subjects.parse(stored.subject).entity[0])
    raise CallNotFound(f"call {call}: run {source.run} has none; `gyre tree {source.run} EXECUTION --full` lists calls")


def _name(said: Said) -> str | None:
    return getattr(said.event, "call", None)


def _events(facts: Facts, call: str, record: Said | None) -> list[dict[str, Any]]:
    """What concerns the call: what names it, and the execution's route while it was in the making."""
    last = record.time + _SLACK_SECONDS * 1e9 if record else 0.0
    spent = record.event.total_seconds if record and isinstance(record.event, ModelCallRecorded) else 0.0
    first = last - (spent + 2 * _SLACK_SECONDS) * 1e9
    return [
        {"sequence": each.sequence, "time": _time(each.time), **each.event.model_dump(mode="json", exclude={"v"})}
        for each in facts.said
        if (isinstance(each.event, _OF_CALL) and _name(each) == call)
        or (isinstance(each.event, _OF_ROUTE) and first <= each.time <= last)
    ]


def _cut(record: ModelCallRecorded, facts: Facts, tree: trees.Tree) -> str:
    """Where in its parent's path a call goes on, in words."""
    if record.parent is None:
        return "a root: nothing was matched"
    parent = tree.nodes[record.parent]
    if record.prefix_tokens == parent.length:
        return f"behind the answer of {parent.call}"
    if record.prefix_tokens == parent.context:
        return f"behind the input of {parent.call}, before its answer"
    if record.prefix_tokens > parent.context:
        return f"inside the answer of {parent.call}, after {record.prefix_tokens - parent.context} of its tokens"
    behind = next(each for each in facts.records if each.call == parent.call)
    if record.prefix_tokens in behind.message_ends:
        number = behind.message_ends.index(record.prefix_tokens) + 1
        return f"behind new message {number} of {len(behind.message_ends)} of {parent.call}"
    return f"inside the input of {parent.call}"


def _entry(entry: Entry) -> dict[str, Any]:
    return {**entry.message, "call": entry.call, "answer": entry.answer}


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")
