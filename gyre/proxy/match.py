"""Where in an execution's tree an incoming history lies (design §7, token-in, token-out).

The histories of an execution are a trie of messages, one for each root (system prompt and tools). Inputs are matched
exactly. An assistant turn matches a recorded answer given at the same point if its call ids, names and stripped text
are the same: the history then goes on behind that record, so what the client did to arguments, thoughts or whitespace
is forgotten and the recorded turn stands. Assistant text that was not sampled at this very point (a kept tail, a merged
turn, a client's own words) is an input like any other.

Of equal answers to one context, a history goes on from the one that the client names, else from one of its own
thread's, else along the longest known way, else from the latest that nobody has gone on from: conversations that
nothing tells apart each get an answer, whichever came first.

A message that was seen before is found by comparing it with the one kept, which costs nothing where they are the same
object (see `recall`) and a comparison of memory where they are equal: no history is digested again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_

from gyre.proxy.normalise import Message
from schemas.calls import ModelCallRecorded

Signature = tuple[tuple[tuple[str, str], ...], str]
"""Ids and names of calls, as a sorted set, and the stripped text."""
_WALKS = 8
"""Walks remembered: as many conversations may take turns without being walked from their roots."""
_TAKEN = 256
"""Calls in the making that are remembered: one that is cancelled is never recorded."""
_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Place:
    """A point of the tree at which a history may be continued."""

    call: str
    tokens: int
    """Tokens of the call's path up to here."""
    messages: int
    """Messages of the call's history up to here."""
    answered: bool
    """Whether this is right behind the call's own answer."""
    live: bool = False
    """Whether something stands on the path that the template may not show again: a thought."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer at a point."""

    call: str
    thread: str
    delivered: bool
    signature: Signature
    point: "Point"
    """The one behind it."""


class Point:
    """A history up to one message."""

    __slots__ = ("answers", "asked", "below", "echo", "message", "place", "said")

    def __init__(self, message: Message | None, said: Message | None = None) -> None:
        """`message` is the last one, None at a root or behind an answer: there `said` is the recorded one."""
        self.message, self.said = message, said
        self.place: Place | None = None
        self.below: tuple[Point, ...] = ()
        self.answers: tuple[Answer, ...] = ()
        self.asked: tuple[str, ...] = ()
        self.echo: tuple[Message, tuple[Answer, ...]] | None = None
        """The client's form of an answer, last seen here, and what it may be."""

    def behind(self, message: Message, thread: str) -> "tuple[Point, ...]":
        """The points behind this message, the latest last: several where equal answers cannot be told apart."""
        if message.role == "assistant" and (answered := self._answered(message)):
            return tuple(answer.point for answer in _meant(answered, message.record, thread))
        known = next((point for point in self.below if same(point.message, message)), None)
        return () if known is None else (known,)

    def recorded(self, message: Message) -> Message:
        """The last message: of an answer the whole recorded turn, whatever the client kept of it, but with its ids."""
        if self.said is None or self.place is None:
            return message
        ids = {_plain(call.id): call.id for call in message.calls}
        calls = tuple(replace(call, id=ids[_plain(call.id)]) for call in self.said.calls)
        return replace(self.said, calls=calls, record=self.place.call)

    def _answered(self, message: Message) -> tuple[Answer, ...]:
        if not self.answers:
            return ()
        if self.echo is None or self.echo[0] is not message:
            wanted = signature(message)
            self.echo = message, tuple(answer for answer in self.answers if answer.signature == wanted)
        return self.echo[1]


@dataclass(frozen=True, slots=True)
class _Way:
    """A point, and how it was reached."""

    point: Point
    before: "_Way | None" = None

    def points(self) -> list[Point]:
        """All points but the first."""
        found: list[Point] = []
        way = self
        while way.before is not None:
            found.append(way.point)
            way = way.before
        return found[::-1]


def _meant(answers: tuple[Answer, ...], record: str, thread: str) -> tuple[Answer, ...]:
    """Of equal answers, those that a client may mean: it may name one, and it has none that nobody received."""
    if len(answers) == 1:
        return answers
    named = tuple(answer for answer in answers if answer.call == record)
    received = tuple(answer for answer in answers if answer.delivered) or answers
    return named or tuple(answer for answer in received if answer.thread == thread) or received


def same(known: Message | None, message: Message) -> bool:
    """Whether a message is one that is known, to the letter."""
    return known is message or (
        known is not None
        and known.content == message.content
        and known.role == message.role
        and known.call_id == message.call_id
        and known.calls == message.calls
        and known.name == message.name
        and known.thinking == message.thinking
    )


def _again(known: Message, message: Message) -> bool:
    """Whether a message leads where a known one led."""
    return known is message or (known.record == message.record and same(known, message))


def _goes_on(walk: Sequence[Message], messages: Sequence[Message]) -> bool:
    """Whether a history begins with a walk, mostly with the very same objects."""
    return all(map(is_, walk, messages)) or all(map(_again, walk, messages))


def signature(message: Message) -> Signature:
    """What of an assistant turn survives every client: some rewrite ids to letters, digits, `_` and `-`."""
    calls = {(_plain(call.id), call.name) for call in message.calls}
    return tuple(sorted(calls)), message.content.strip()


def _plain(call_id: str) -> str:
    return _PLAIN.sub("_", call_id)


class Histories:
    """All histories of one execution."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._walks: list[tuple[tuple[str, str], tuple[Message, ...], list[Point]]] = []
        self._roots: dict[str, Point] = {}
        self._calls: dict[str, tuple[str | None, int, tuple[Point, ...]]] = {}
        self._answered: dict[str, Point] = {}
        """By recorded call: the point that has its answer."""
        self._taken: dict[str, tuple[Point, Message]] = {}
        """By call in the making: the answer that it goes on from, and with what."""

    def walk(self, root: str, messages: Sequence[Message], thread: str) -> list[Point]:
        """The points of a thread's history, from its root on, as far as it was seen before."""
        points = self._begun((root, thread), messages)
        ahead, sure = _furthest(points[-1], messages[len(points) - 1 :], thread, tuple(self._taken.values()))
        sure += len(points)
        points += ahead
        self._walks.append(((root, thread), tuple(messages[: sure - 1]), points[:sure]))
        del self._walks[:-_WALKS]
        return points

    def take(self, call: str, points: Sequence[Point], messages: Sequence[Message]) -> None:
        """A call is being made behind these points of a history: of equal answers, others take another."""
        depth = len(points) - 1
        if depth < len(messages) and points[-1].message is None:
            self._taken[call] = points[-1], messages[depth]
            while len(self._taken) > _TAKEN:
                del self._taken[next(iter(self._taken))]

    def start(self, root: str, parent: str | None, messages: int) -> Point:
        """The point behind the first `messages` messages of a call's history (None: of no call's)."""
        while parent is not None and messages:
            above, prefix, own = self._calls[parent]
            if messages > prefix:
                return own[min(messages - prefix, len(own)) - 1]
            parent = above
        return self._root(root)

    def add(self, record: ModelCallRecorded, points: Sequence[Point], answer: Message) -> Point:
        """Take in a call whose own messages lead along `points` (the one it starts from first); the point behind it."""
        behind = Point(None, answer)
        depth = record.prefix_messages + len(points) - 1
        self._walks = [walk for walk in self._walks if len(walk[2]) <= depth + 1 or walk[2][depth] is not points[-1]]
        self._taken.pop(record.call, None)
        points[-1].asked += (record.call,)
        points[-1].echo = None
        points[-1].answers += (Answer(record.call, record.thread, record.delivered, signature(answer), behind),)
        self._answered[record.call] = points[-1]
        self._calls[record.call] = (record.parent, record.prefix_messages, (*points[1:], behind))
        return behind

    def correct(self, call: str, delivered: bool) -> None:
        """An answer was received after all, or was not: which of equal ones a client means may depend on it."""
        point = self._answered[call]
        point.answers = tuple(
            replace(answer, delivered=delivered) if answer.call == call else answer for answer in point.answers
        )
        point.echo = None
        self._walks.clear()

    def grow(self, point: Point, messages: Sequence[Message], thread: str) -> list[Point]:
        """This point and those behind the messages, made where they are new; calls in the making have no say."""
        points = [point, *_furthest(point, messages, thread, ())[0]]
        for message in messages[len(points) - 1 :]:
            found = Point(message)
            points[-1].below += (found,)
            points.append(found)
        return points

    def _begun(self, root: tuple[str, str], messages: Sequence[Message]) -> list[Point]:
        """The points of the longest of the latest walks that this history goes on from; it is a walk no more."""
        found = [
            walk
            for walk in self._walks
            if walk[0] == root and len(walk[1]) <= len(messages) and _goes_on(walk[1], messages)
        ]
        if not found:
            return [self._root(root[0])]
        longest = max(found, key=lambda walk: len(walk[1]))
        self._walks.remove(longest)
        return list(longest[2])

    def _root(self, root: str) -> Point:
        return self._roots.setdefault(root, Point(None))


def _furthest(
    point: Point, messages: Sequence[Message], thread: str, taken: Sequence[tuple[Point, Message]]
) -> tuple[list[Point], int]:
    """The points behind a point, along the longest way, and for how many of them there is no other way."""
    ways, sure, depth = [_Way(point)], 0, 0
    for message in messages:
        further = [_Way(each, way) for way in ways for each in way.point.behind(message, thread)]
        if not further:
            break
        ways, depth = further, depth + 1
        sure = depth if len(ways) == 1 and sure == depth - 1 else sure
    if len(ways) == 1:
        return ways[0].points(), sure
    coming = messages[depth] if depth < len(messages) else None
    return max(reversed(ways), key=lambda way: _suits(way.point, coming, taken)).points(), sure


def _suits(point: Point, coming: Message | None, taken: Sequence[tuple[Point, Message]]) -> int:
    """How well a message that stands behind none of such points goes on from this one: 2: it is about to, 1: free."""
    here = [message for each, message in taken if each is point]
    if coming is not None and any(same(message, coming) for message in here):
        return 2
    return 0 if here or point.below else 1
