"""Anthropic's messages."""

from collections.abc import Iterator, Mapping
from typing import Any

from gyre.evaluators.judge.talk import Answer, Call, Json, Talk, Told, mapping, sequence, total

_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_NOTHING = [{"type": "text", "text": "(nothing)"}]  # an empty turn is refused


class Messages:
    """Implements `Dialect`."""

    path = "/v1/messages"

    def headers(self, key: str) -> Mapping[str, str]:
        """See `Dialect`."""
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})

    def body(self, talk: Talk, model: str, most_tokens: int) -> Json:
        """See `Dialect`."""
        return {
            "model": model,
            "max_tokens": most_tokens,
            "system": talk.system,
            "messages": [_message(turn) for turn in talk.turns],
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in talk.tools
            ],
        }

    def answer(self, body: Any) -> Answer:
        """See `Dialect`."""
        answer = mapping(body, "it")
        blocks = [mapping(block, "a block") for block in sequence(answer.get("content"), "content")]
        text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
        calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
        return Answer(text, calls, total(answer.get("usage"), *_COUNTS), blocks)


def _message(turn: Told | Answer) -> Json:
    if isinstance(turn, Answer):
        return {"role": "assistant", "content": turn.raw or _NOTHING}
    return {"role": "user", "content": list(_told(turn))}


def _told(turn: Told) -> Iterator[Json]:
    for result in turn.results:
        block = {"type": "tool_result", "tool_use_id": result.call.id, "content": result.text}
        yield block | ({"is_error": True} if result.failed else {})
    if turn.words:
        yield {"type": "text", "text": turn.words}


def _call(block: Json) -> Call:
    arguments = block.get("input")
    return Call(str(block.get("id")), str(block.get("name")), arguments if isinstance(arguments, dict) else None)
