"""An answer's text taken apart: what was thought, what is said, what is called."""

import hashlib
from collections.abc import Sequence

from gyre.proxy.normalise import Json, Message, ToolCall
from gyre.proxy.toolcalls.hermes import hermes
from gyre.proxy.toolcalls.port import Parser


def answer(
    text: str, call: str, parser: Parser | None = hermes, tools: Sequence[Json] = (), thinking: str = ""
) -> Message:
    """The assistant message that this text is; ids derive from `call`, the record's id. Without a parser: text."""
    calls: list[ToolCall] = []
    kept: list[str] = []
    end = 0
    for found in parser(text, tools) if parser else ():
        kept.append(text[end : found.start])
        calls.append(ToolCall(call_id(call, len(calls)), found.name, found.arguments))
        end = found.end
    content = "".join((*kept, text[end:]))
    return Message("assistant", content if not calls or content.strip() else "", tuple(calls), thinking=thinking)


def call_id(call: str, index: int) -> str:
    """Id of the `index`-th tool call of a record: unique in the run, `[A-Za-z0-9_-]+`, the same on every replay."""
    return f"call_{hashlib.sha256(f'{call}/{index}'.encode()).hexdigest()[:24]}"
