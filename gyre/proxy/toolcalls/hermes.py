"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are calls."""

import re
from collections.abc import Iterator, Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import Found, is_json, read_call

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_WHOLE = re.compile(r'<tool_call>(\s*+\{(?:[^"\\<]++|"(?:[^"\\]++|\\.)*+")*+)</tool_call>', re.DOTALL)
"""A block up to the first mark outside a string. It runs past another opening only inside a string, and the first quote
behind that one ends the string: no text is looked through more than twice."""


def hermes(text: str, _tools: Sequence[Json]) -> list[Found]:
    """Every closed block that names a tool."""
    blocks = ((start, end, read_call(text[start + len(_OPEN) : end - len(_CLOSE)])) for start, end in _blocks(text))
    return [Found(start, end, *call) for start, end, call in blocks if call]


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end: a mark inside a string ends none, unless what it is in is no JSON."""
    end = 0
    while (start := text.find(_OPEN, end)) >= 0:
        close = text.find(_CLOSE, start)
        if close < 0:
            return
        whole = _WHOLE.match(text, start)
        end = whole.end() if whole and is_json(whole[1]) else close + len(_CLOSE)
        yield start, end
