"""OpenAI's chat completions, as every server of open models speaks them too."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gyre.evaluators.judge.talk import Answer, Call, Json, Talk, Told, mapping, sequence, total


class Chat:
    """Implements `Dialect`."""

    path = "/chat/completions"

    def headers(self, key: str) -> Mapping[str, str]:
        """See `Dialect`."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, talk: Talk, model: str, most_tokens: int) -> Json:
        """See `Dialect`."""
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in talk.tools
        ]
        return {
            "model": model,
            "max_tokens": most_tokens,
            "messages": [{"role": "system", "content": talk.system}, *_messages(talk)],
            "tools": [{"type": "function", "function": function} for function in functions],
        }

    def answer(self, body: Any) -> Answer:
        """See `Dialect`."""
        answer = mapping(body, "it")
        choices = sequence(answer.get("choices"), "choices")
        message = mapping(mapping(choices[0] if choices else None, "its first choice").get("message"), "its message")
        text = message.get("content")
        text = text if isinstance(text, str) else ""
        calls = tuple(
            _call(mapping(each, "a tool call")) for each in sequence(message.get("tool_calls") or [], "tool_calls")
        )
        tokens = total(answer.get("usage"), "prompt_tokens", "completion_tokens")
        return Answer(text, calls, tokens, _echo(text, calls))


def _messages(talk: Talk) -> Iterator[Json]:
    for turn in talk.turns:
        if isinstance(turn, Answer):
            yield turn.raw
        else:
            yield from _told(turn)


def _told(turn: Told) -> Iterator[Json]:
    for result in turn.results:
        yield {"role": "tool", "tool_call_id": result.call.id, "content": result.text}
    if turn.words:
        yield {"role": "user", "content": turn.words}


def _call(call: Json) -> Call:
    function = mapping(call.get("function"), "a call's function")
    name, identity = function.get("name"), call.get("id")
    return Call(str(identity or name), str(name), _arguments(function.get("arguments")))


def _arguments(written: Any) -> Json | None:
    try:
        found = json.loads(written) if isinstance(written, str) else written
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _echo(text: str, calls: tuple[Call, ...]) -> Json:
    """What it said, without what only some servers add or take back; arguments that were no JSON would be refused."""
    echo: Json = {"role": "assistant", "content": text}
    if calls:
        echo["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments or {})},
            }
            for call in calls
        ]
    return echo
