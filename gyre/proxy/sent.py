"""Which requests are one request, sent again.

A client whose connection broke sends its request once more, while the first one may still be in the making. Clients
that work in several threads name them in headers: equal bodies of two threads are two requests. But for Qwen Code: two
of its sub-agents with one prompt ask the same side by side, and no header or field tells them apart. The library that
it uses counts a request's tries, so that one which is its own first try is no other one's second. A client that names
neither threads nor tries works in one thread, as far as anybody knows.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

THREADS = ("x-claude-code-agent-id", "x-claude-code-session-id", "thread-id", "x-session-id", "x-litellm-session-id")
_TRIES = "x-stainless-retry-count"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it came. Bodies are compared, not digested: that costs only where two are equally long."""

    thread: tuple[str, ...]
    """What the client's headers say of it, the API first."""
    body: bytes
    first: bool = False
    """Whether the client says that it was never sent before, and names no thread."""

    @classmethod
    def of(cls, api: str, headers: Mapping[str, str], body: bytes) -> "Sent":
        """`headers` have lower-case names."""
        named = tuple(headers.get(name, "") for name in THREADS)
        return cls((api, *named), body, not any(named) and headers.get(_TRIES) == "0")

    def repeats(self, other: "Sent") -> bool:
        """Whether this is the other one, sent again."""
        return not self.first and self.thread == other.thread and self.body == other.body

    def digest(self) -> str:
        """SHA-256, lower-case hex: equal for a request that is sent again."""
        return hashlib.sha256("\0".join(self.thread).encode("utf-8", "replace") + b"\0" + self.body).hexdigest()
