"""What passes between a protocol and a session: a request without its protocol, and what it showed on the wire."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gyre.proxy.normalise import Json, Message


@dataclass(frozen=True, slots=True)
class Wire:
    """What a harness adapter may look at beside the messages."""

    protocol: str = "chat"
    """`chat`, `anthropic` or `responses`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: Json = field(default_factory=dict)
    """The request as it came."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of any protocol, normalised."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    """As the Chat Completions protocol writes them."""
    max_tokens: int | None
    stop: tuple[str, ...] = ()
    """Texts before which the answer is cut."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `tool:<name>`."""
    wire: Wire = field(default_factory=Wire)
