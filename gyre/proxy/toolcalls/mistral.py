"""Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]` to the end of the answer."""

from collections.abc import Iterator, Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import Found, call_of, members, skip

TAG = "[TOOL_CALLS]"


def mistral(text: str, _tools: Sequence[Json]) -> list[Found]:
    """The calls of the list behind the mark; none when it is no list of calls."""
    start = text.find(TAG)
    try:
        calls = list(_calls(text, start + len(TAG))) if start >= 0 else []
    except (ValueError, RecursionError):
        return []
    size = len(text)
    return [Found(size if index else start, size, *call) for index, call in enumerate(calls)]


def _calls(text: str, place: int) -> Iterator[tuple[str, str]]:
    """The calls of a list that the text ends with. Raises ValueError where it is none."""
    before = "["
    while (place := skip(text, place)) < len(text) and text[place] == before:
        found, place = members(text, skip(text, place + 1))
        call = call_of(found)
        if call is None:
            raise ValueError("an object that is no call")
        yield call
        before, place = ",", skip(text, place)
    if text[place:].rstrip() != "]":
        raise ValueError("the list must end with the text")
