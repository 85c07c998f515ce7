"""One execution's calls, sans I/O: a request becomes a plan, a generation an answer and a record, a record a branch.

The state is a fold over the execution's records: `add` is all that changes it, live and after a restart alike. Only the
count of calls that have arrived runs ahead of the records.
"""

import sys
from collections.abc import Sequence
from functools import partial
from hashlib import sha256

from gyre.core import tree as trees
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.port import Adapter
from gyre.proxy.drawn import Drawn, cut
from gyre.proxy.errors import PromptTooLong
from gyre.proxy.exchange import Asked
from gyre.proxy.huge import refuse_huge
from gyre.proxy.match import Histories, Place, Point, same
from gyre.proxy.normalise import Message, canonical, dump, load
from gyre.proxy.paths import Paths
from gyre.proxy.placing import Placed, placed
from gyre.proxy.plan import Limits, Plan
from gyre.proxy.roots import Roots, root_cursor
from gyre.proxy.template import Template
from schemas.base import ints, pack_floats, pack_ints
from schemas.calls import DeliveryCorrected, ModelCallRecorded, SamplingRecord

__all__ = ["Drawn", "Limits", "Plan", "Session"]

_SEED_BITS = 53  # so that every JSON reader keeps it
_NEVER = sys.maxsize


class Session:
    """The live tree of one execution and the histories that lead to its nodes."""

    def __init__(self, execution: str, seed: int, template: Template, limits: Limits, harness: Adapter) -> None:
        """`seed` is the execution's; calls draw theirs from it by index."""
        self.tree = trees.Tree(execution)
        self._seed, self._template, self._limits, self._harness = seed, template, limits, harness
        self._histories, self._paths, self._roots = Histories(), Paths(), Roots()
        self._memory = Memory()
        self._next = 0
        self._replies: dict[str, Message] = {}
        self._stops: dict[str, str] = {}
        self._asked: dict[str, tuple[Message, ...]] = {}
        self._fading: dict[str, int] = {}

    def plan(self, asked: Asked) -> Plan:
        """Place a request in the tree and number it.

        Raises:
            PromptTooLong: no room for the answer behind it.
            HistoryUnrenderable: the template refuses the history.
        """
        hints = self._harness.hints(asked, self._memory)
        root, points = self._known(asked, hints.thread)
        where = self._placed(asked, root, points)
        forced = self._forced(asked)
        context = where.context + pack_ints(self._template.model.encode(forced) if forced else ())
        limit = self._limit(asked)
        total = len(context) // 4
        if total + limit > self._limits.context_tokens:
            raise PromptTooLong(total, self._limits.context_tokens - limit)
        index, self._next = self._next, self._next + 1
        call = f"{self.tree.execution}-c{index}"
        self._histories.take(call, points, asked.messages)
        return Plan(
            call=call,
            index=index,
            parent=where.parent,
            prefix_tokens=where.prefix_tokens,
            prefix_messages=where.prefix_messages,
            context=context,
            messages=where.messages,
            message_ends=where.ends,
            root=root,
            hints=hints,
            sampling=self._sampling(limit, index),
            stop=asked.stop,
            tool_calls=asked.tool_choice != "none",
            tools=asked.tools,
            forced=forced,
            fallback=where.fallback,
        )

    def count(self, asked: Asked) -> int:
        """Tokens of the prompt that this request would be. Raises PromptTooLong, HistoryUnrenderable."""
        root, points = self._known(asked, self._harness.hints(asked, self._memory).thread)
        return len(self._placed(asked, root, points).context) // 4

    def finished(self, asked: Asked) -> tuple[str, ...]:
        """Recorded calls that answer exactly this request, oldest first: of a re-sent one, the calls it may mean."""
        thread = self._harness.hints(asked, self._memory).thread
        _, points = self._known(asked, thread)
        calls = points[-1].asked if len(points) > len(asked.messages) else ()
        return tuple(call for call in calls if self._answers(call, asked, thread))

    def reply(self, call: str) -> tuple[Message, trees.Node]:
        """The answer that a recorded call was given, and its record as a node."""
        return self._replies[call], self.tree.nodes[call]

    def record(self, plan: Plan, drawn: Drawn, *, total_seconds: float, delivered: bool) -> ModelCallRecorded:
        """The record of an answered plan; nothing is remembered before `add`."""
        drawn = cut(self._template.model, self._template.stop_token_ids, drawn, plan.stop)
        text = plan.forced + self._text(drawn.output_ids, drawn.finish == "stop", drawn.stop_sequence)
        message = self._template.family.answer(
            text, plan.call, plan.tools, forced=bool(plan.forced), calls=plan.tool_calls
        )
        record = ModelCallRecorded(
            execution=self.tree.execution,
            call=plan.call,
            index=plan.index,
            thread=plan.hints.thread,
            kind=plan.hints.kind,
            parent=plan.parent,
            prefix_tokens=plan.prefix_tokens,
            prefix_messages=plan.prefix_messages,
            fallback=plan.fallback,
            input_ids=plan.increment,
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
        self._asked[plan.call] = plan.messages
        return record

    def add(self, record: ModelCallRecorded) -> frozenset[str]:
        """Take in a record that is in the log. Records that do not fit on the tree are known as such and no more.

        Returns the calls whose answers its client had: the one behind whose answer it goes on, and those among its own
        messages, as where the template drops their thoughts and they are rendered again.
        """
        tree = trees.evolve(self.tree, record)
        known, self.tree = self.tree.nodes, tree
        self._next = max(self._next, record.index + 1)
        messages = self._messages(record)
        if record.call in known or record.call not in tree.nodes:
            return frozenset()
        node, reply = tree.nodes[record.call], load(record.reply)[0]
        self._replies[record.call] = reply
        if record.stop_sequence:
            self._stops[record.call] = record.stop_sequence
        self._learn(record, messages, reply)
        self._paths.add(tree, node)
        fading = self._fading[record.call] = self._fades(record, node, messages, reply)
        points = self._grown(record, messages, fading)
        behind = self._histories.add(record, points, reply)
        whole = record.prefix_messages + len(messages) + 1
        behind.place = Place(record.call, node.length, whole, answered=True, live=fading < node.length)
        parent = tree.nodes.get(record.parent or "")
        goes_on = {parent.call} if parent is not None and record.prefix_tokens == parent.length else set()
        return frozenset(goes_on | {message.record for message in messages} & known.keys())

    def correct(self, event: DeliveryCorrected) -> None:
        """Take in what became of an answer."""
        self.tree = trees.evolve(self.tree, event)
        if event.call in self.tree.nodes:
            self._histories.correct(event.call, event.delivered)

    def _grown(self, record: ModelCallRecorded, messages: Sequence[Message], fading: int) -> list[Point]:
        """The points along a record's own messages; the first call that rendered a place keeps it."""
        start = self._histories.start(record.system_digest, record.parent, record.prefix_messages)
        points = self._histories.grow(start, messages, record.thread)
        for count, (point, end) in enumerate(zip(points[1:], record.message_ends, strict=False), 1):
            if end >= 0 and point.place is None:
                whole = record.prefix_messages + count
                point.place = Place(record.call, end, whole, answered=False, live=fading < end)
        return points

    def _fades(self, record: ModelCallRecorded, node: trees.Node, messages: Sequence[Message], reply: Message) -> int:
        """The token of a call's path from which on stands what the template may not show again."""
        above = self._fading[record.parent] if record.parent is not None else _NEVER
        if above < record.prefix_tokens:
            return above
        if any(map(self._template.live, messages)) and self._template.shows_thought(ints(node.input_ids)):
            return record.prefix_tokens
        text = self._text(ints(record.output_ids), record.finish == "stop", "")
        return node.context - 1 if self._template.fades(text, reply) else _NEVER

    def _answers(self, call: str, asked: Asked, thread: str) -> bool:
        """Whether a record is what this request would be told: thread, limit, stop texts, tool choice."""
        node, stop = self.tree.nodes[call], self._stops.get(call, "")
        size, limit = node.length - node.context, self._limit(asked)
        text = self._text(ints(node.output_ids), node.finish == "stop", stop)
        if size > limit or (node.finish == "length" and size < limit) or (stop and stop not in asked.stop):
            return False
        if any(each in text for each in asked.stop) or node.thread != thread:
            return False
        forced, calls = self._forced(asked), asked.tool_choice != "none"
        said = self._template.family.answer(forced + text, call, asked.tools, forced=bool(forced), calls=calls)
        return said == self._replies[call]

    def _known(self, asked: Asked, thread: str) -> tuple[str, list[Point]]:
        """The request's root, and the points of its history that are known. Raises PromptTooLong."""
        least = len(asked.messages) * self._template.least
        if least > self._limits.context_tokens:
            raise PromptTooLong(least, self._limits.context_tokens)
        root = self._roots.of(asked.messages, asked.tools)
        points = self._histories.walk(root, asked.messages, thread)
        new = asked.messages[len(points) - 1 :]
        texts = [text for each in new for text in (each.content.strip(), *(call.arguments for call in each.calls))]
        tools = [canonical(tool) for tool in asked.tools] if len(points) == 1 else []
        refuse_huge(self._template.model.encode, (*texts, *tools), self._limits.context_tokens)
        return root, points

    def _placed(self, asked: Asked, root: str, points: Sequence[Point]) -> Placed:
        """Where the request goes on. Raises HistoryUnrenderable."""
        reached = partial(self._histories.start, root)
        return placed(self.tree, self._paths, self._template, points, root, asked, reached)

    def _limit(self, asked: Asked) -> int:
        """Most tokens of the answer."""
        return min(asked.max_tokens or self._limits.max_tokens, self._limits.max_tokens)

    def _forced(self, asked: Asked) -> str:
        """With what the answer has to begin for the client's tool choice."""
        offered = {str(tool.get("function", tool).get("name")) for tool in asked.tools}
        name = asked.tool_choice.removeprefix("tool:")
        choice = asked.tool_choice if offered and (name == asked.tool_choice or name in offered) else ""
        return self._template.family.forced(choice)

    def _messages(self, record: ModelCallRecorded) -> Sequence[Message]:
        """A record's messages; the very objects that it was made of where it was made here: they are kept already."""
        loaded, asked = load(record.messages), self._asked.pop(record.call, ())
        return asked if len(asked) == len(loaded) and all(map(same, asked, loaded)) else loaded

    def _sampling(self, limit: int, index: int) -> SamplingRecord:
        hashed = sha256(f"{self._seed}/{index}".encode()).digest()
        seed = int.from_bytes(hashed, "big") >> (256 - _SEED_BITS)
        return SamplingRecord(temperature=self._limits.temperature, top_p=1.0, top_k=0, max_tokens=limit, seed=seed)

    def _text(self, ids: Sequence[int], stopped: bool, stop_sequence: str) -> str:
        """What was sampled, without the mark or the stop text that ended it."""
        marked = stopped and ids and ids[-1] in self._template.stop_token_ids
        text = self._template.model.decode(ids[:-1] if marked else ids)
        return text[: text.index(stop_sequence)] if stop_sequence else text

    def _learn(self, record: ModelCallRecorded, messages: Sequence[Message], reply: Message) -> None:
        """What the harness's adapter is told of later calls."""
        tools = record.system_digest != root_cursor(messages, ())
        self._memory.learn(record, messages, reply, tools=tools)
