"""A conversation with a model that uses tools, whatever protocol carries it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gyre.errors import GyreError

Json = dict[str, Any]
_MOST_TOKENS = 1 << 40


class JudgeError(GyreError):
    """There is no verdict to be had this time; one line saying why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model may call."""

    name: str
    description: str
    schema: Json
    """JSON Schema of its arguments."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a model."""

    id: str
    name: str
    arguments: Json | None
    """None: they were no JSON object."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said."""

    text: str
    calls: tuple[Call, ...]
    tokens: int | None
    """Of its context and itself; None where the server does not say."""
    raw: Any
    """As its protocol wants it back in the next request."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to."""

    call: Call
    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What the model is told from our side: results of its calls, and words."""

    results: tuple[Result, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation so far."""

    system: str
    tools: tuple[Tool, ...]
    turns: list[Told | Answer] = field(default_factory=list)


class Dialect(Protocol):
    """A protocol: between conversations and bodies of HTTP requests."""

    path: str
    """Below the base URL."""

    def headers(self, key: str) -> Mapping[str, str]:
        """Of every request; `key` may be empty."""

    def body(self, talk: Talk, model: str, most_tokens: int) -> Json:
        """The request for the next answer."""

    def answer(self, body: Any) -> Answer:
        """Read an answer's body, whatever JSON it is. Raises JudgeError where it is none of this protocol."""


def mapping(value: Any, what: str) -> Json:
    """A JSON object, or JudgeError."""
    if not isinstance(value, dict):
        raise JudgeError(f"the judge's answer is malformed: {what} is no object")
    return value


def sequence(value: Any, what: str) -> Sequence[Any]:
    """A JSON array, or JudgeError."""
    if not isinstance(value, list):
        raise JudgeError(f"the judge's answer is malformed: {what} is no list")
    return value


def total(usage: Any, *names: str) -> int | None:
    """The sum of a usage's counts; None without any, or where one is no count: what is not counted is estimated."""
    given = [usage[name] for name in names if usage.get(name) is not None] if isinstance(usage, dict) else []
    counts = [each for each in given if type(each) is int and 0 <= each < _MOST_TOKENS]
    return sum(counts) if counts and len(counts) == len(given) else None
