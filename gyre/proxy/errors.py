"""What can be wrong with a model call, split by who should change something.

CallError               answered to the client as an error of its protocol
├── BadRequest          the body is no request of the protocol
├── TooLarge            nor is a body of this size
├── NotFound            there is nothing at this path
├── PromptTooLong       the history must be shortened
├── HistoryUnrenderable the model's chat template refuses this history
├── Unauthorized        no open execution has this token
├── TooMany             the execution asks more often than it may; the client waits
├── TooSlow             the body does not come
├── NoRoom              there is no memory for the body now; the client waits
├── Abandoned           the call was cancelled: client gone or execution ended
├── EngineTrouble       the policy could not answer; the client may ask again
└── ProxyBroke          a mistake of ours; the log of the process says more
TemplateUnusable        the model's folder cannot serve chats (at start)
"""

from gyre.errors import GyreError


class ProxyError(GyreError):
    """Any failure of the proxy; messages are one line."""


class CallError(ProxyError):
    """Answered to the client: HTTP status, error type and code of the OpenAI protocol."""

    status = 400
    kind = "invalid_request_error"
    code: str | None = None
    wait_seconds: float = 0.0
    """How long the client is told to wait before it asks again; 0: it is told nothing."""


class BadRequest(CallError):
    """The body is no request of the protocol; the message names field and value."""


class TooLarge(CallError):
    """A body beyond what is read."""

    status = 413


class NotFound(CallError):
    """A path that is no API and no probe."""

    status = 404
    kind = "not_found_error"


class PromptTooLong(CallError):
    """The words and the code that clients look for when they decide to compact."""

    code = "context_length_exceeded"

    def __init__(self, tokens: int, maximum: int) -> None:
        """`tokens` of the rendered prompt, and how many there may be at most."""
        super().__init__(f"prompt is too long: {tokens} tokens > {maximum} maximum")
        self.tokens, self.maximum = tokens, maximum


class HistoryUnrenderable(CallError):
    """The chat template raises for this history."""


class Unauthorized(CallError):
    """Unknown or closed token."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class TooMany(CallError):
    """More requests of one execution than are served."""

    status = 429
    kind = "rate_limit_exceeded"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, wait_seconds: float) -> None:
        """After `wait_seconds` there is room for one."""
        super().__init__(message)
        self.wait_seconds = wait_seconds


class TooSlow(CallError):
    """A body that does not come whole."""

    status = 408
    kind = "timeout_error"


class NoRoom(CallError):
    """The memory for bodies is taken."""

    status = 503
    kind = "server_error"
    wait_seconds = 1.0


class Abandoned(CallError):
    """The call was cancelled before it had an answer."""

    status = 503
    kind = "server_error"


class EngineTrouble(CallError):
    """No engine could answer, for a reason that is not the request's fault."""

    status = 503
    kind = "server_error"


class ProxyBroke(CallError):
    """Anything that nobody foresaw."""

    status = 500
    kind = "server_error"


class TemplateUnusable(ProxyError):
    """The model folder lacks a tokenizer or a chat template, or the template fails on a plain conversation."""
