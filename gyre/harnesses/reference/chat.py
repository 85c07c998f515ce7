"""The model as the agent sees it: messages in, one assistant message out, failures sorted by what to do about them."""

import json
import os
import time

from .wire import OK, Connection, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from .options import Options

    Message = dict[str, Any]

RETRIED = frozenset((408, 409, 425, 429))  # and from here on:
SERVER_ERRORS = 500


class GaveUpError(Exception):
    """The episode cannot go on; the message is the reason."""


class PromptTooLongError(Exception):
    """The server refused the prompt for its length."""


class Answer:
    """One assistant turn: the message to keep in the history, and the tokens that prompt and answer took."""

    def __init__(self, message: "Message", tokens: int) -> None:
        """Keep both."""
        self.message = message
        self.tokens = tokens


class Chat:
    """An OpenAI-compatible chat endpoint."""

    def __init__(self, base_url: str, key: str, model: str, options: "Options") -> None:
        """Nothing is sent yet. Raises ValueError for a URL or key that cannot be used."""
        self._connection = Connection(base_url, key, options.call_timeout)
        self._model = model
        self._options = options

    def ask(self, messages: "list[Message]", tools: "list[Message]") -> Answer:
        """The model's next turn. Raises PromptTooLongError, or GaveUpError when refused or left without a server."""
        body = self._request(messages, tools)
        deadline = time.monotonic() + self._options.retry_for
        pause = 0.1 + os.getpid() % 16 / 100  # spreads out the many agents that one outage makes wait
        while True:
            try:
                return self._once(body)
            except (OSError, ValueError) as error:
                self._connection.close()
                if time.monotonic() + pause > deadline:
                    reason = f"{type(error).__name__}: {error}"
                    raise GaveUpError(f"no answer within {self._options.retry_for:g} s; last: {reason}") from error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _request(self, messages: "list[Message]", tools: "list[Message]") -> bytes:
        request: dict[str, Any] = {"model": self._model, "messages": messages, "max_tokens": self._options.max_tokens}
        if tools:
            request["tools"] = tools
        if self._options.stream:
            request["stream"] = True
            request["stream_options"] = {"include_usage": True}
        return json.dumps(request, separators=(",", ":")).encode()

    def _once(self, body: bytes) -> Answer:
        status, pieces = self._connection.post("/chat/completions", body)
        if status != OK:
            raise _refusal(status, b"".join(pieces).decode(errors="replace"))
        if self._options.stream:
            return _from_events(_events(pieces))
        return _from_body(json.loads(b"".join(pieces)))


def _refusal(status: int, text: str) -> Exception:
    if status >= SERVER_ERRORS or status in RETRIED:
        return WireError(f"HTTP {status}: {text[:200]}")
    lowered = text.lower()
    if status in (400, 413) and ("too long" in lowered or "context length" in lowered or "context_length" in lowered):
        return PromptTooLongError(text[:200])
    return GaveUpError(f"the server refused the request: HTTP {status}: {text[:200]}")


def _from_body(body: "Any") -> Answer:
    try:
        message = body["choices"][0]["message"]
        return Answer(_kept(message.get("content"), message.get("tool_calls")), _tokens(body.get("usage")))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise WireError(f"the answer is not a chat completion: {error!r}") from error


def _kept(content: "Any", calls: "Any") -> "Message":
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    return message


def _tokens(usage: "Any") -> int:
    return int(usage["prompt_tokens"]) + int(usage["completion_tokens"]) if usage else 0


def _events(pieces: "Iterable[bytes]") -> "Iterator[Any]":
    """The JSON of each server-sent event up to [DONE]. Raises WireError if the stream ends without it."""
    rest, done = b"", False
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line[5:].strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                done = True
            elif data and not done:
                yield json.loads(data)
    if not done:
        raise WireError("the stream ended before [DONE]")


def _from_events(events: "Iterable[Any]") -> Answer:
    text: list[str] = []
    calls: dict[int, Message] = {}
    tokens, finished = 0, False
    try:
        for event in events:
            if "error" in event:
                raise WireError(f"the stream carried an error: {str(event['error'])[:200]}")
            tokens = _tokens(event.get("usage")) or tokens
            for choice in event.get("choices") or ():
                finished = finished or choice.get("finish_reason") is not None
                _add_delta(choice.get("delta") or {}, text, calls)
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"the stream is not a chat completion: {error!r}") from error
    if not finished:
        raise WireError("the stream ended before the turn did")
    return Answer(_kept("".join(text) or None, [calls[index] for index in sorted(calls)]), tokens)


def _add_delta(delta: "Message", text: list[str], calls: "dict[int, Message]") -> None:
    text.append(delta.get("content") or "")
    for part in delta.get("tool_calls") or ():
        empty: Message = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = calls.setdefault(part.get("index", 0), empty)
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
