"""What a session decides about one request before anything is sampled."""

from dataclasses import dataclass

from gyre.proxy.adapters.port import Hints
from gyre.proxy.normalise import Json, Message
from schemas.base import Int32s, ints
from schemas.calls import SamplingRecord

_TOKEN_BYTES = 4


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
    context: Int32s
    """The exact input: the parent's path cut to `prefix_tokens`, then what is new."""
    messages: tuple[Message, ...]
    message_ends: tuple[int, ...]
    root: str
    hints: Hints
    sampling: SamplingRecord
    stop: tuple[str, ...] = ()
    """Texts before which the answer is cut."""
    tool_calls: bool = True
    """Whether calls in the answer are calls; if not, they stay text."""
    tools: tuple[Json, ...] = ()
    """The tools offered."""
    forced: str = ""
    """With what the answer was made to begin; these tokens end the context, they are nobody's targets."""
    fallback: str = ""
    """Why the call does not go on from as much of its history as is known, "" if it does."""

    @property
    def increment(self) -> Int32s:
        """What is new in the context, packed."""
        return self.context[self.prefix_tokens * _TOKEN_BYTES :]

    @property
    def tokens(self) -> int:
        """Of the context."""
        return len(self.context) // _TOKEN_BYTES

    @property
    def input_ids(self) -> tuple[int, ...]:
        """The increment as numbers."""
        return tuple(ints(self.increment))

    @property
    def full_ids(self) -> tuple[int, ...]:
        """The context as numbers: made anew each time, not for long ones."""
        return tuple(ints(self.context))
