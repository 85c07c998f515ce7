"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are calls."""

from collections.abc import Iterator, Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import Found, read_call

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def hermes(text: str, _tools: Sequence[Json]) -> list[Found]:
    """Every closed block that names a tool."""
    blocks = ((start, end, read_call(text[start + len(_OPEN) : end - len(_CLOSE)])) for start, end in _blocks(text))
    return [Found(start, end, *call) for start, end, call in blocks if call]


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end. A policy may say the mark thousands of times: nothing is looked through twice."""
    end = 0
    while (start := text.find(_OPEN, end)) >= 0:
        close = text.find(_CLOSE, start)
        if close < 0:
            return
        end = close + len(_CLOSE)
        yield start, end
