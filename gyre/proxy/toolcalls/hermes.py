"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are calls."""

import re
from collections.abc import Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import Found, read_call

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def hermes(text: str, _tools: Sequence[Json]) -> list[Found]:
    """Every closed block that names a tool."""
    blocks = ((block, read_call(block.group(1))) for block in _BLOCK.finditer(text))
    return [Found(block.start(), block.end(), *call) for block, call in blocks if call]
