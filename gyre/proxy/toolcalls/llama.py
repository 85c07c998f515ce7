"""Llama: the answer is one JSON object with `name` and `parameters`, or several between semicolons or line breaks.

`<|python_tag|>` may stand before them. An answer with anything else in it is text: JSON inside prose is no call.
"""

from collections.abc import Iterator, Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import Found, call_of, members, read_call

TAG = "<|python_tag|>"


class _NoCallError(Exception):
    """JSON that is no call, or something else behind a call."""


def llama(text: str, _tools: Sequence[Json]) -> list[Found]:
    """The calls that the whole answer is made of, or none."""
    start = len(text) - len(text.lstrip())
    if text.startswith(TAG, start):
        start += len(TAG)
    try:
        return _joined(list(_objects(text, start)), text)
    except _NoCallError:
        return []
    except (ValueError, RecursionError):
        whole = read_call(text[start:]) if text[start:].lstrip().startswith("{") else None
        return [Found(0, len(text), *whole)] if whole else []


def _objects(text: str, start: int) -> Iterator[tuple[int, tuple[str, str]]]:
    """(end, call) of each object. Raises ValueError for broken JSON at the start."""
    place = start
    while rest := text[place:].lstrip(" \t\r\n;"):
        try:
            found, end = members(text, len(text) - len(rest))
        except (ValueError, RecursionError) as error:
            if place > start:
                raise _NoCallError from error
            raise
        call = call_of(found)
        if call is None or not {"arguments", "parameters"} & found.keys():
            raise _NoCallError
        yield end, call
        place = end


def _joined(calls: list[tuple[int, tuple[str, str]]], text: str) -> list[Found]:
    """Calls side by side: nothing of the text is left over."""
    starts = [0, *(end for end, _ in calls[:-1])]
    ends = [*(end for end, _ in calls[:-1]), len(text)]
    return [Found(start, end, *call) for start, end, (_, call) in zip(starts, ends, calls, strict=True)]
