"""From sampled text to an assistant message: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` is a call.

A block that names no tool stays text, as does one that is never closed. A block whose name can be read but whose
arguments are no JSON is a call with those raw arguments: the client answers it with an error, and the policy sees it.
"""

import hashlib
import json
import re

from gyre.proxy.normalise import Message, ToolCall

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_BROKEN = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(.*?)\s*\}?\s*', re.DOTALL)


def answer(text: str, call: str) -> Message:
    """The assistant message that this text is; ids derive from `call`, the record's id."""
    calls: list[ToolCall] = []
    kept: list[str] = []
    end = 0
    for block in _BLOCK.finditer(text):
        found = _parsed(block.group(1))
        if found is None:
            continue
        kept.append(text[end : block.start()])
        calls.append(ToolCall(call_id(call, len(calls)), *found))
        end = block.end()
    content = "".join((*kept, text[end:]))
    return Message("assistant", content if not calls or content.strip() else "", tuple(calls))


def call_id(call: str, index: int) -> str:
    """Id of the `index`-th tool call of a record: unique in the run, `[A-Za-z0-9_-]+`, the same on every replay."""
    return f"call_{hashlib.sha256(f'{call}/{index}'.encode()).hexdigest()[:24]}"


def _parsed(body: str) -> tuple[str, str] | None:
    """(name, raw arguments) of a block; None if it names no tool."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        broken = _BROKEN.fullmatch(body)
        return (broken.group(1), broken.group(2)) if broken else None
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        return None
    arguments = value.get("arguments", {})
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    return name, raw
