"""What a wire protocol is: requests in, whole turns out, all as bytes. chat, anthropic and responses each speak one.

Of a stream, `opening` is sent at once, `keep_alive` while the turn is in the making (clients count these events; pings
and comments do not keep all of them waiting), and `events` once it is whole. Of what steers sampling, only a smaller
limit of tokens, stop texts and the tool choice are followed (design §7: what is recorded is what was sampled).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gyre.proxy.errors import CallError
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message
from gyre.proxy.responses_history import Named

Ending = Literal["stop", "length", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request of any protocol."""

    asked: Asked
    model: str
    """As the client named it: any name is the policy."""
    stream: bool
    include_usage: bool = False
    """Whether a stream of chat chunks ends with a usage chunk."""
    tools: Mapping[str, Named] = field(default_factory=dict)
    """Of the Responses API, whose clients name tools otherwise than the policy does."""

    def begun(self) -> "Request":
        """What is still needed once it is under way: a body as it was read is large."""
        return replace(self, asked=Asked((), (), None))


@dataclass(frozen=True, slots=True)
class Opened:
    """What is known of an answer before there is one."""

    call: str
    created: int
    """Seconds since the epoch."""
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, ready to be worded."""

    opened: Opened
    message: Message
    ending: Ending
    """Why it ends: by itself, at the limit of tokens, or before a stop text."""
    completion_tokens: int
    cached_tokens: int
    """Of the prompt."""
    stop_sequence: str = ""
    """The stop text, when that is why."""


class WireProtocol(Protocol):
    """One protocol, sans I/O."""

    @staticmethod
    def parse(body: bytes, headers: Mapping[str, str], most: int = ...) -> Request:
        """Read a request; `headers` have lower-case names, `most` is how many tokens a context may have.

        Raises:
            BadRequest: naming field and value.
            PromptTooLong: it holds what that many tokens never hold.
        """
        ...

    def completion(self, request: Request, reply: Reply) -> bytes:
        """The body of a whole answer."""
        ...

    def opening(self, request: Request, opened: Opened) -> bytes:
        """How a stream begins, before there is an answer."""
        ...

    def keep_alive(self, request: Request, opened: Opened, beat: int) -> bytes:
        """An event that every client of this protocol counts as progress; `beat` numbers them from 0."""
        ...

    def events(self, request: Request, reply: Reply, beats: int) -> Iterator[bytes]:
        """The whole turn behind the opening and that many keep-alives, its end included."""
        ...

    def error_body(self, error: CallError) -> bytes:
        """The body of a refusal; its HTTP status is `error.status`."""
        ...

    def error_event(self, request: Request, opened: Opened, beats: int, error: CallError) -> bytes:
        """A refusal inside a stream that has begun: its last event."""
        ...
