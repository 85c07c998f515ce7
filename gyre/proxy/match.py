"""Where in an execution's tree an incoming history lies (design §7, token-in, token-out).

Each prefix of a history has a cursor: a digest chained over its messages. Inputs are matched exactly. An assistant turn
matches a recorded answer given under the same cursor if its call ids, names and stripped text are the same; the cursor
then names that record, so what the client did to arguments or whitespace is forgotten and the recorded turn stands.
Assistant text that was not sampled under this very cursor (a kept tail, a merged turn) is an input like any other.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gyre.proxy.normalise import Json, Message, canonical

Signature = tuple[frozenset[tuple[str, str]], str]


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


@dataclass(frozen=True, slots=True)
class Walk:
    """An incoming history laid over the tree."""

    cursors: tuple[str, ...]
    """Cursor before the first message, and after each."""
    places: tuple[Place | None, ...]
    """What is known at each cursor."""


def root_cursor(messages: Sequence[Message], tools: Sequence[Json]) -> str:
    """Digest of the system prompt and the tools: the root under which histories may match."""
    leading: list[Json] = []
    for message in messages:
        if message.role != "system":
            break
        leading.append(message.wire())
    return hashlib.sha256(canonical([list(tools), leading]).encode("utf-8", "replace")).hexdigest()


def signature(message: Message) -> Signature:
    """What of an assistant turn survives every client."""
    return frozenset((call.id, call.name) for call in message.calls), message.content.strip()


class Histories:
    """All histories of one execution."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._places: dict[str, Place] = {}
        self._answers: dict[tuple[str, Signature], str] = {}
        self._asked: dict[str, list[str]] = {}
        self._calls: dict[str, tuple[str | None, int, tuple[str, ...]]] = {}

    def walk(self, root: str, messages: Sequence[Message]) -> Walk:
        """Lay a history over the tree. Costs one digest of it."""
        cursors = (root, *self._follow(root, messages))
        return Walk(cursors, (None, *(self._places.get(cursor) for cursor in cursors[1:])))

    def asked_at(self, cursor: str) -> tuple[str, ...]:
        """Calls whose whole context ends at this cursor, oldest first."""
        return tuple(self._asked.get(cursor, ()))

    def add(
        self,
        call: str,
        parent: str | None,
        root: str,
        prefix_messages: int,
        messages: Sequence[Message],
        answer: Message,
    ) -> tuple[str, ...]:
        """Take in a record; returns the cursors after each of its own messages, for `know`."""
        start = root if parent is None else self._cursor(parent, prefix_messages)
        own = tuple(self._follow(start, messages))
        context = own[-1] if own else start
        behind = _digest("answer", call)
        self._asked.setdefault(context, []).append(call)
        self._answers[context, signature(answer)] = call  # a later equal answer wins: it is the one that was kept
        self._calls[call] = (parent, prefix_messages, (*own, behind))
        return own

    def know(self, cursor: str, place: Place) -> None:
        """A history may be continued here; the first call that rendered the place keeps it."""
        self._places.setdefault(cursor, place)

    def behind(self, call: str) -> str:
        """The cursor right behind a call's answer."""
        return self._calls[call][2][-1]

    def _cursor(self, call: str, messages: int) -> str:
        """Cursor after that many messages of a call's history, its answer included."""
        parent, prefix, own = self._calls[call]
        while messages <= prefix and parent is not None:
            parent, prefix, own = self._calls[parent]
        return own[messages - prefix - 1]

    def _follow(self, cursor: str, messages: Sequence[Message]) -> Iterator[str]:
        for message in messages:
            answered = self._answers.get((cursor, signature(message))) if message.role == "assistant" else None
            cursor = self.behind(answered) if answered else _digest(cursor, canonical(message.wire()))
            yield cursor


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
