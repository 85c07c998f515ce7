"""What a parser of tool calls is."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gyre.proxy.normalise import Json

_BROKEN = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:')


@dataclass(frozen=True, slots=True)
class Found:
    """One call in a text: the text [start, end) is the call and no words."""

    start: int
    end: int
    name: str
    arguments: str
    """Raw text, meant to be JSON."""


Parser = Callable[[str, Sequence[Json]], list[Found]]
"""Calls of a text, in order; the tools offered (as the Chat Completions protocol writes them) tell types apart."""


def call_of(value: object) -> tuple[str, str] | None:
    """(name, raw arguments) of a JSON object that is a call; None if it names no tool."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str) or not name:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    return name, arguments if isinstance(arguments, str) else compact(arguments)


def read_call(body: str) -> tuple[str, str] | None:
    """The same of a text that should be such an object; arguments that are no JSON come back as they are."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        broken = _BROKEN.match(body)
        return (broken.group(1), body[broken.end() :].rstrip().removesuffix("}").strip()) if broken else None
    return call_of(value)


def compact(value: object) -> str:
    """JSON without spaces, letters as they are."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
