"""What stands before all messages of a history: under which root it may match."""

import hashlib
from collections.abc import Sequence

from gyre.proxy.match import same
from gyre.proxy.normalise import Json, Message, canonical

_ROOTS = 32
"""Roots found again without digesting them: more are met where a system prompt changes with each call."""


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
