"""Which tool call started which sub-agent: causal parentage, whatever prefixes their contexts share.

Two things tell: the call's result names the sub-agent's id; or the sub-agent's first user message holds the call's
prompt word for word. Equal prompts are given out in the order of arrival, each call once. A function of an execution's
records alone.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.port import SUB_AGENT
from gyre.proxy.normalise import Message, load
from schemas.calls import ModelCallRecorded

_PROMPTS = ("prompt", "message", "task", "instruction", "instructions")
"""Arguments that harnesses hand their sub-agents over in."""


@dataclass(frozen=True, slots=True)
class Link:
    """A tool call started a sub-agent."""

    call: str
    """The model call that made the tool call."""
    tool_call_id: str
    thread: str
    """The sub-agent's."""
    first: str
    """The sub-agent's first model call."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A tool call that may have started a sub-agent."""

    call: str
    index: int
    thread: str
    id: str
    prompt: str


@dataclass(frozen=True, slots=True)
class _Opening:
    """A call that stands at the beginning of a sub-agent's conversation."""

    record: ModelCallRecorded
    told: tuple[str, ...]
    """What the user's messages say."""

    @property
    def thread(self) -> str:
        """Its conversation."""
        return self.record.thread


def links(records: Sequence[ModelCallRecorded]) -> tuple[Link, ...]:
    """The links of one execution, in the order of the sub-agents' first calls."""
    records = sorted(records, key=lambda record: record.index)
    messages = {record.call: load(record.messages) for record in records}
    made = {each.id: each for record in records for each in _made(record)}
    openings = list(_openings(records, messages))
    named = _named(records, messages, made, {opening.thread for opening in openings})
    free = {each.id: each for each in made.values() if each not in named.values()}
    found: dict[str, _Made] = {}
    linked: set[str] = set()
    for opening in _firsts_first(openings):
        if opening.thread in linked and not _own(opening.thread).startswith(SUB_AGENT):
            continue
        by_result = named.get(opening.thread) if opening.thread not in linked else None
        if taken := by_result or _by_prompt(opening, list(free.values())):
            free.pop(taken.id, None)
            linked.add(opening.thread)
            found[opening.record.call] = taken
    firsts = [opening.record for opening in openings if opening.record.call in found]
    return tuple(Link(found[each.call].call, found[each.call].id, each.thread, each.call) for each in firsts)


def _made(record: ModelCallRecorded) -> Iterator[_Made]:
    for call in load(record.reply)[0].calls:
        yield _Made(record.call, record.index, record.thread, call.id, _prompt(call.arguments))


def _prompt(arguments: str) -> str:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    given = [value.get(name) for name in _PROMPTS] if isinstance(value, dict) else []
    return next((text for text in given if isinstance(text, str) and text.strip()), "").strip()


def _openings(records: Sequence[ModelCallRecorded], messages: Mapping[str, tuple[Message, ...]]) -> Iterator[_Opening]:
    """Sub-agents' calls whose history holds no answer: a thread's first, and those that have the same context."""
    by_call = {record.call: record for record in records}
    contexts: dict[str, tuple[Message, ...]] = {}
    for record in records:
        if record.thread == MAIN or record.kind != "turn" or not record.delivered:
            continue
        history = _history(record, by_call, messages)
        if history is None or contexts.setdefault(record.thread, history) != history:
            continue
        yield _Opening(record, tuple(message.content for message in history if message.role == "user"))


def _history(
    record: ModelCallRecorded,
    by_call: Mapping[str, ModelCallRecorded],
    messages: Mapping[str, tuple[Message, ...]],
) -> tuple[Message, ...] | None:
    """All messages of a call's history; None if an answer is among them."""
    parts = [messages[record.call]]
    count, parent = record.prefix_messages, by_call.get(record.parent or "")
    while count and parent is not None:
        own = messages[parent.call]
        if count > parent.prefix_messages + len(own):
            return None
        parts.append(own[: max(0, count - parent.prefix_messages)])
        count, parent = min(count, parent.prefix_messages), by_call.get(parent.parent or "")
    history = tuple(message for part in reversed(parts) for message in part)
    return None if any(message.role == "assistant" for message in history) else history


def _own(thread: str) -> str:
    """A thread's own id, without those above it."""
    return thread.rpartition("/")[2]


def _firsts_first(openings: Sequence[_Opening]) -> list[_Opening]:
    """Each thread's first opening, then those that repeat one: perhaps a second sub-agent, perhaps a retry."""
    firsts: dict[str, _Opening] = {}
    for each in openings:
        firsts.setdefault(each.thread, each)
    return [*firsts.values(), *(each for each in openings if each is not firsts[each.thread])]


def _named(
    records: Iterable[ModelCallRecorded],
    messages: Mapping[str, tuple[Message, ...]],
    made: Mapping[str, _Made],
    threads: set[str],
) -> dict[str, _Made]:
    """By thread: the tool call whose result names the thread's own id first."""
    own = {_own(thread): thread for thread in sorted(threads)}
    own = {name: thread for name, thread in own.items() if not name.startswith(SUB_AGENT)}
    if not own:
        return {}
    mention = re.compile(rf"(?<![\w-])(?:{'|'.join(re.escape(name) for name in own)})(?![\w-])")
    found: dict[str, _Made] = {}
    for record in records:
        for message in messages[record.call]:
            maker = made.get(message.call_id) if message.role == "tool" else None
            for name in mention.findall(message.content) if maker else ():
                if maker and maker.thread != own[name]:
                    found.setdefault(own[name], maker)
    return found


def _by_prompt(opening: _Opening, free: Sequence[_Made]) -> _Made | None:
    """The tool call whose prompt the opening holds: the parent thread's before others, the longest, the earliest."""
    held = [
        each
        for each in free
        if each.prompt
        and each.index < opening.record.index
        and each.thread != opening.thread
        and any(each.prompt in text for text in opening.told)
    ]
    above = opening.thread.rpartition("/")[0] or MAIN
    return min(held, key=lambda each: (each.thread != above, -len(each.prompt), each.index), default=None)
