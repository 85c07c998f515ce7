"""Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]` to the end of the answer."""

import json
from collections.abc import Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import Found, call_of

TAG = "[TOOL_CALLS]"


def mistral(text: str, _tools: Sequence[Json]) -> list[Found]:
    """The calls of the list behind the mark; none when it is no list of calls."""
    start = text.find(TAG)
    try:
        value = json.loads(text[start + len(TAG) :]) if start >= 0 else None
    except (ValueError, RecursionError):
        return []
    calls = [call_of(item) for item in value] if isinstance(value, list) else []
    if not calls or None in calls:
        return []
    size = len(text)
    named = [call for call in calls if call]
    return [Found(size if index else start, size, *call) for index, call in enumerate(named)]
