"""Where in an execution's tree an incoming history lies (design §7, token-in, token-out).

The histories of an execution are a trie of messages, one for each root (system prompt and tools). Inputs are matched
exactly. An assistant turn matches a recorded answer given at the same point if its call ids, names and stripped text
are the same: the history then goes on behind that record, so what the client did to arguments, thoughts or whitespace
is forgotten and the recorded turn stands. Assistant text that was not sampled at this very point (a kept tail, a merged
turn, a client's own words) is an input like any other.

A message that was seen before is found by comparing it with the one kept, which costs nothing where they are the same
object (see `recall`) and a comparison of memory where they are equal: no history is digested again.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gyre.proxy.normalise import Json, Message, canonical

Signature = tuple[tuple[tuple[str, str], ...], str]
"""Ids and names of calls, as a sorted set, and the stripped text."""
_WALKS = 8
"""Walks remembered: as many conversations may take turns without being walked from their roots."""
_ROOTS = 32
"""Roots found again without digesting them: more are met where a system prompt changes with each call."""
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


class Point:
    """A history up to one message."""

    __slots__ = ("answers", "asked", "below", "echo", "message", "place")

    def __init__(self, message: Message | None) -> None:
        """`message` is the last one, None at a root or behind an answer."""
        self.message = message
        self.place: Place | None = None
        self.below: tuple[Point, ...] = ()
        self.answers: tuple[tuple[str, Signature, Point], ...] = ()
        self.asked: tuple[str, ...] = ()
        self.echo: tuple[Message, Point] | None = None
        """The client's form of an answer, last seen here, and the point behind it."""

    def behind(self, message: Message) -> "Point | None":
        """The point behind this message; None if it was never seen here."""
        if message.role == "assistant" and (answered := self._answered(message)) is not None:
            return answered
        return next((point for point in self.below if same(point.message, message)), None)

    def _answered(self, message: Message) -> "Point | None":
        if self.echo is not None and self.echo[0] is message:
            return self.echo[1]
        if not self.answers:
            return None
        wanted = signature(message)
        found = [(call, point) for call, known, point in self.answers if known == wanted]
        if not found:
            return None
        # a later equal answer wins, it is the one that was kept; unless the client says which one it means
        point = next((point for call, point in found if call == message.record), found[-1][1])
        self.echo = message, point
        return point


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


def signature(message: Message) -> Signature:
    """What of an assistant turn survives every client: some rewrite ids to letters, digits, `_` and `-`."""
    calls = {(_PLAIN.sub("_", call.id), call.name) for call in message.calls}
    return tuple(sorted(calls)), message.content.strip()


class Roots:
    """Digests of what stands before all messages, found again without digesting it."""

    def __init__(self) -> None:
        """None seen yet."""
        self._seen: list[tuple[tuple[Json, ...], list[Message], str]] = []

    def of(self, messages: Sequence[Message], tools: Sequence[Json]) -> str:
        """As `root_cursor`."""
        leading = leading_system(messages)
        offered = tuple(tools)
        for known, before, digest in reversed(self._seen):
            if len(before) == len(leading) and all(map(same, before, leading)) and known == offered:
                return digest
        digest = root_cursor(messages, tools)
        self._seen.append((offered, leading, digest))
        del self._seen[:-_ROOTS]
        return digest


def root_cursor(messages: Sequence[Message], tools: Sequence[Json]) -> str:
    """Digest of the system prompt and the tools: the root under which histories may match."""
    leading = [message.wire() for message in leading_system(messages)]
    return hashlib.sha256(canonical([list(tools), leading]).encode("utf-8", "replace")).hexdigest()


def leading_system(messages: Sequence[Message]) -> list[Message]:
    """The system messages at the head."""
    leading: list[Message] = []
    for message in messages:
        if message.role != "system":
            break
        leading.append(message)
    return leading


class Histories:
    """All histories of one execution."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._walks: list[tuple[str, tuple[Message, ...], list[Point]]] = []
        self._roots: dict[str, Point] = {}
        self._calls: dict[str, tuple[str | None, int, tuple[Point, ...]]] = {}

    def walk(self, root: str, messages: Sequence[Message]) -> list[Point]:
        """The points of a history, from its root on, as far as it was seen before."""
        points = self._begun(root, messages)
        for message in messages[len(points) - 1 :]:
            found = points[-1].behind(message)
            if found is None:
                break
            points.append(found)
        self._walks.append((root, tuple(messages[: len(points) - 1]), points))
        del self._walks[:-_WALKS]
        return points

    def start(self, root: str, parent: str | None, messages: int) -> Point:
        """The point behind the first `messages` messages of a call's history (None: of no call's)."""
        while parent is not None and messages:
            above, prefix, own = self._calls[parent]
            if messages > prefix:
                return own[min(messages - prefix, len(own)) - 1]
            parent = above
        return self._root(root)

    def add(
        self, call: str, parent: str | None, prefix_messages: int, points: Sequence[Point], answer: Message
    ) -> Point:
        """Take in a call whose own messages lead along `points` (the one it starts from first); the point behind it."""
        behind = Point(None)
        depth = prefix_messages + len(points) - 1
        self._walks = [walk for walk in self._walks if len(walk[2]) <= depth + 1 or walk[2][depth] is not points[-1]]
        points[-1].asked += (call,)
        points[-1].echo = None
        points[-1].answers += ((call, signature(answer), behind),)
        self._calls[call] = (parent, prefix_messages, (*points[1:], behind))
        return behind

    def grow(self, point: Point, message: Message) -> Point:
        """The point behind a message, made if it is new."""
        found = point.behind(message)
        if found is None:
            found = Point(message)
            point.below += (found,)
        return found

    def _begun(self, root: str, messages: Sequence[Message]) -> list[Point]:
        """The points of the longest of the latest walks that this history goes on from; it is a walk no more."""
        found = [
            walk
            for walk in self._walks
            if walk[0] == root and len(walk[1]) <= len(messages) and all(map(_again, walk[1], messages))
        ]
        if not found:
            return [self._root(root)]
        longest = max(found, key=lambda walk: len(walk[1]))
        self._walks.remove(longest)
        return list(longest[2])

    def _root(self, root: str) -> Point:
        return self._roots.setdefault(root, Point(None))
