"""One execution's calls, sans I/O: a request becomes a plan, a generation an answer and a record, a record a branch.

The state is a fold over the execution's records: `add` is all that changes it, live and after a restart alike. Only the
count of calls that have arrived runs ahead of the records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from gyre.core import tree as trees
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.port import Adapter, Hints
from gyre.proxy.errors import HistoryUnrenderable, PromptTooLong
from gyre.proxy.exchange import Asked
from gyre.proxy.match import Histories, Place, Walk, root_cursor
from gyre.proxy.normalise import Message, dump, load
from gyre.proxy.template import GENERATE, Increment, NotAppendOnly, Template
from gyre.proxy.toolcalls import answer
from schemas.base import ints, pack_floats, pack_ints
from schemas.calls import Finish, ModelCallRecorded, SamplingRecord, VersionSpan

_SEED_BITS = 53  # so that every JSON reader keeps it


@dataclass(frozen=True, slots=True)
class Limits:
    """How every call is sampled, whatever the client asked for."""

    temperature: float
    max_tokens: int
    """Most tokens of an answer; a client may ask for fewer."""
    context_tokens: int
    """Most tokens of prompt and answer together."""

    def __post_init__(self) -> None:
        """Raises ValueError when no prompt would fit."""
        if self.context_tokens <= self.max_tokens:
            raise ValueError(f"context_tokens: {self.context_tokens} must exceed max_tokens = {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask an engine, and where the answer will hang in the tree."""

    call: str
    index: int
    parent: str | None
    prefix_tokens: int
    prefix_messages: int
    input_ids: tuple[int, ...]
    """The increment: what is new."""
    full_ids: tuple[int, ...]
    """The exact input: the parent's path cut to `prefix_tokens`, then the increment."""
    messages: tuple[Message, ...]
    message_ends: tuple[int, ...]
    root: str
    hints: Hints
    sampling: SamplingRecord
    stop: tuple[str, ...] = ()
    """Texts before which the answer is cut."""
    tool_calls: bool = True
    """Whether calls in the answer are calls; if not, they stay text."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the engines generated for a plan, in one piece however often it was moved."""

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: Finish
    cells: tuple[int, ...]
    cached_tokens: int
    queue_seconds: float
    engine_seconds: float
    stop_sequence: str = ""
    """The stop text that the output ends with: what the client sees is cut before it."""


class Session:
    """The live tree of one execution and the histories that lead to its nodes."""

    def __init__(self, execution: str, seed: int, template: Template, limits: Limits, harness: Adapter) -> None:
        """`seed` is the execution's; calls draw theirs from it by index."""
        self.tree = trees.Tree(execution)
        self._seed, self._template, self._limits, self._harness = seed, template, limits, harness
        self._histories = Histories()
        self._memory = Memory()
        self._next = 0
        self._replies: dict[str, Message] = {}

    def plan(self, asked: Asked) -> Plan:
        """Place a request in the tree and number it.

        Raises:
            PromptTooLong: no room for the answer behind it.
            HistoryUnrenderable: the template refuses the history.
        """
        root = root_cursor(asked.messages, asked.tools)
        place, increment = self._placed(self._histories.walk(root, asked.messages), asked)
        prefix = self._prefix(place)
        limit = min(asked.max_tokens or self._limits.max_tokens, self._limits.max_tokens)
        total = len(prefix) + len(increment.ids)
        if total + limit > self._limits.context_tokens:
            raise PromptTooLong(total, self._limits.context_tokens - limit)
        index, self._next = self._next, self._next + 1
        hints = self._harness.hints(asked, self._memory)
        return Plan(
            call=f"{self.tree.execution}-c{index}",
            index=index,
            parent=place.call if place else None,
            prefix_tokens=len(prefix),
            prefix_messages=place.messages if place else 0,
            input_ids=tuple(increment.ids),
            full_ids=(*prefix, *increment.ids),
            messages=asked.messages[place.messages if place else 0 :],
            message_ends=tuple(end + len(prefix) if end >= 0 else -1 for end in increment.ends),
            root=root,
            hints=hints,
            sampling=self._sampling(limit, index),
            stop=asked.stop,
            tool_calls=asked.tool_choice != "none",
        )

    def count(self, asked: Asked) -> int:
        """Tokens of the prompt that this request would be. Raises HistoryUnrenderable."""
        root = root_cursor(asked.messages, asked.tools)
        place, increment = self._placed(self._histories.walk(root, asked.messages), asked)
        return (place.tokens if place else 0) + len(increment.ids)

    def finished(self, asked: Asked) -> tuple[str, ...]:
        """Recorded calls with exactly this context, oldest first: of a re-sent request, the calls it may mean."""
        walk = self._histories.walk(root_cursor(asked.messages, asked.tools), asked.messages)
        return self._histories.asked_at(walk.cursors[-1])

    def reply(self, call: str) -> tuple[Message, trees.Node]:
        """The answer that a recorded call was given, and its record as a node."""
        return self._replies[call], self.tree.nodes[call]

    def record(self, plan: Plan, drawn: Drawn, *, total_seconds: float, delivered: bool) -> ModelCallRecorded:
        """The record of an answered plan; nothing is remembered before `add`."""
        text = self._text(drawn)
        message = answer(text, plan.call) if plan.tool_calls else Message("assistant", text)
        return ModelCallRecorded(
            execution=self.tree.execution,
            call=plan.call,
            index=plan.index,
            thread=plan.hints.thread,
            kind=plan.hints.kind,
            parent=plan.parent,
            prefix_tokens=plan.prefix_tokens,
            prefix_messages=plan.prefix_messages,
            input_ids=pack_ints(plan.input_ids),
            output_ids=pack_ints(drawn.output_ids),
            logprobs=pack_floats(drawn.logprobs),
            versions=drawn.versions,
            finish=drawn.finish,
            sampling=plan.sampling,
            messages=dump(plan.messages),
            message_ends=plan.message_ends,
            reply=dump((message,)),
            stop_sequence=drawn.stop_sequence,
            system_digest=plan.root,
            cells=drawn.cells,
            cached_tokens=drawn.cached_tokens,
            queue_seconds=drawn.queue_seconds,
            engine_seconds=drawn.engine_seconds,
            total_seconds=total_seconds,
            delivered=delivered,
        )

    def add(self, record: ModelCallRecorded) -> None:
        """Take in a record that is in the log. Records that do not fit on the tree are known as such and no more."""
        tree = trees.evolve(self.tree, record)
        known, self.tree = self.tree.nodes, tree
        self._next = max(self._next, record.index + 1)
        if record.call in known or record.call not in tree.nodes:
            return
        node, messages, reply = tree.nodes[record.call], load(record.messages), load(record.reply)[0]
        self._replies[record.call] = reply
        self._learn(record, messages, reply)
        root = record.system_digest
        cursors = self._histories.add(record.call, record.parent, root, record.prefix_messages, messages, reply)
        for count, (cursor, end) in enumerate(
            zip(cursors, record.message_ends, strict=False), record.prefix_messages + 1
        ):
            if end >= 0:
                self._histories.know(cursor, Place(record.call, end, count, answered=False))
        whole = record.prefix_messages + len(messages) + 1
        self._histories.know(self._histories.behind(record.call), Place(record.call, node.length, whole, answered=True))

    def _placed(self, walk: Walk, asked: Asked) -> tuple[Place | None, Increment]:
        """The deepest place that the history may go on from, and what is new behind it; None: a new root."""
        roles = [*(message.role for message in asked.messages), GENERATE]
        for count in range(len(asked.messages), 0, -1):
            place = walk.places[count]
            if place is None or not self._template.may_cut(roles[count - 1], roles[count]):
                continue
            try:
                increment = self._template.increment(roles[count - 1], asked.messages[count:])
            except (NotAppendOnly, HistoryUnrenderable):
                continue
            return place, self._closed(place, increment)
        try:
            return None, self._template.increment(None, asked.messages, asked.tools)
        except (NotAppendOnly, HistoryUnrenderable):
            return None, self._template.whole(asked.messages, asked.tools)

    def _closed(self, place: Place, increment: Increment) -> Increment:
        """Behind a sampled turn, what ends the turn comes first."""
        if not place.answered:
            return increment
        output = self.tree.nodes[place.call].output_ids
        close = self._template.closing(ints(output[-4:])[0] if output else None)
        return Increment(close + increment.ids, [end + len(close) if end >= 0 else -1 for end in increment.ends])

    def _prefix(self, place: Place | None) -> list[int]:
        return ints(trees.path_ids(self.tree, place.call, place.tokens)) if place else []

    def _sampling(self, limit: int, index: int) -> SamplingRecord:
        hashed = sha256(f"{self._seed}/{index}".encode()).digest()
        seed = int.from_bytes(hashed, "big") >> (256 - _SEED_BITS)
        return SamplingRecord(temperature=self._limits.temperature, top_p=1.0, top_k=0, max_tokens=limit, seed=seed)

    def _text(self, drawn: Drawn) -> str:
        """What was sampled, without the mark or the stop text that ended it."""
        ids: Sequence[int] = drawn.output_ids
        stopped = drawn.finish == "stop" and ids and ids[-1] in self._template.model.stop_token_ids
        text = self._template.model.decode(ids[:-1] if stopped else ids)
        return text[: text.index(drawn.stop_sequence)] if drawn.stop_sequence else text

    def _learn(self, record: ModelCallRecorded, messages: Sequence[Message], reply: Message) -> None:
        """What the harness's adapter is told of later calls."""
        tools = record.system_digest != root_cursor(messages, ())
        self._memory.learn(record, messages, reply, tools=tools)
