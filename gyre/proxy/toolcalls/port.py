"""What a parser of tool calls is, and how calls in JSON are read: arguments are cut out of the text as they stand."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gyre.proxy.normalise import Json

_BROKEN = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:')
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(parse_int=float)  # an `int` refuses thousands of digits


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


@dataclass(frozen=True, slots=True)
class Member:
    """A value of a JSON object."""

    value: object
    raw: str
    """As it was written."""


def members(text: str, start: int) -> tuple[dict[str, Member], int]:
    """The members of the JSON object at a place (of one name, the last), and where it ends.

    Raises:
        ValueError: no JSON object is there.
        RecursionError: it is too deep.
    """
    found: dict[str, Member] = {}
    place = _mark(text, start, "{")
    if text.startswith("}", place):
        return found, place + 1
    while True:
        if not text.startswith('"', place):
            raise ValueError(f"character {place}: a name must stand there")
        name, place = _DECODER.raw_decode(text, place)
        begin = _mark(text, place, ":")
        value, end = _DECODER.raw_decode(text, begin)
        found[name] = Member(value, text[begin:end])
        place = skip(text, end)
        if text.startswith("}", place):
            return found, place + 1
        place = _mark(text, place, ",")


def skip(text: str, place: int) -> int:
    """The place behind white space."""
    space = _SPACE.match(text, place)
    return space.end() if space else place


def call_of(found: dict[str, Member]) -> tuple[str, str] | None:
    """(name, raw arguments) of a JSON object that is a call; None if it names no tool."""
    name = found["name"].value if "name" in found else None
    if not isinstance(name, str) or not name:
        return None
    arguments = found.get("arguments", found.get("parameters", Member({}, "{}")))
    return sound(name), sound(arguments.value) if isinstance(arguments.value, str) else arguments.raw


def read_call(body: str) -> tuple[str, str] | None:
    """The same of a text that should be such an object; arguments that are no JSON come back as they are."""
    try:
        found, end = members(body, skip(body, 0))
    except (ValueError, RecursionError):
        return _broken(body)
    return call_of(found) if skip(body, end) == len(body) else _broken(body)


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        _, end = _DECODER.raw_decode(text, skip(text, 0))
    except (ValueError, RecursionError):
        return False
    return skip(text, end) == len(text)


def sound(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair: an escape can write what no UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode()


def _broken(body: str) -> tuple[str, str] | None:
    found = _BROKEN.match(body)
    return (found.group(1), body[found.end() :].rstrip().removesuffix("}").strip()) if found else None


def _mark(text: str, place: int, mark: str) -> int:
    """The place behind a mark and the white space around it."""
    place = skip(text, place)
    if not text.startswith(mark, place):
        raise ValueError(f"character {place}: {mark} must stand there")
    return skip(text, place + 1)
