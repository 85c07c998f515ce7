"""What one execution may ask of the proxy, so that the log, the engines and the memory are there for all others.

Requests a second, calls at once, bytes. Without a clock: whoever asks says what time it is. All is far above what
clients were seen to need, and nothing that is refused here is said in the log.
"""

from dataclasses import dataclass

_OTHERS = 4
"""Times as much as one execution has is left free when it takes something."""
_BYTES = 5
"""Of memory for each byte of JSON: the byte itself, and a character that one wide neighbour makes as wide."""
_VALUE_BYTES = 90
"""Of memory for each mark that a value begins or ends at, most of it an object's."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one execution each, but for `held_bytes` and `idle_connections`, which are of all together."""

    burst: int = 1000
    """Requests that may come at once: a crowd of sub-agents, each counting its tokens first."""
    per_second: float = 10.0
    """Requests behind those, in the long run: ten sub-agents whose calls take a second. Each may cost the log a commit
    of 500 bytes, which makes 18 MB in an hour."""
    open_calls: int = 64
    """Requests under way at a time. Harnesses were seen to have ten sub-agents side by side."""
    body_bytes: int = 32 * 2**20
    """Of one body, unpacked: as much as the Messages API itself takes."""
    body_seconds: float = 60.0
    """Until a body has come whole."""
    held_bytes: int = 2**30
    """Of memory for bodies and what they are read into."""
    idle_connections: int = 512
    """Connections without a request under way, at least: headers that never end take a megabyte of each."""
    idle_each: int = 4
    """The same for each execution that runs: a harness keeps one or two open while its tools work."""


BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests that an execution may still make at once."""

    left: float
    at: float
    """When that was, in seconds."""

    def filled(self, bounds: Bounds, now: float) -> "Bucket":
        """As it is now, with what time has added."""
        return Bucket(min(bounds.burst, self.left + (now - self.at) * bounds.per_second), now)

    def wait(self, bounds: Bounds) -> float:
        """Seconds until there is a request in it; 0: there is one."""
        return max(0.0, 1.0 - self.left) / bounds.per_second

    def taken(self) -> "Bucket":
        """One request fewer."""
        return Bucket(self.left - 1.0, self.at)


def room(bounds: Bounds, held: int, own: int) -> int:
    """Bytes that an execution may take beyond its `own`: four times all that it has is then still free for others.

    Alone it has a fifth of all. However many executions take what they can and again what they are let, those that
    come behind them find four times what each has.

    Args:
        bounds: of the proxy.
        held: bytes that all executions have.
        own: bytes of these that are its own.
    """
    return max(0, bounds.held_bytes - held - _OTHERS * own) // (_OTHERS + 1)


def weight(body: bytes) -> int:
    """Most bytes of memory that a body of JSON and what it is read into take: tiny values take thirty times their text.

    Marks inside of texts count too: to tell them apart costs more than the room that it would save.
    """
    return _BYTES * len(body) + _VALUE_BYTES * sum(map(body.count, (b",", b"[", b"{")))
