"""A stand-in for a judge's model: a real HTTP server of both protocols whose answers are scripted.

A model's judgement cannot be tested; what is around it can. Requests are held against the types of the real SDKs, and
answers are made of them.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from anthropic.types import Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

Calls = list[tuple[str, Any]]
CHAT: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
MESSAGES: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)


@dataclass
class View:
    """What a model is shown."""

    system: str
    told: list[str]
    """Every text from our side, in order."""
    turns: int
    """Answers that it gave already."""

    @property
    def mark(self) -> str:
        return re.findall(r"<data (\w+)>", self.system)[0]

    @property
    def key(self) -> str:
        return re.findall(r"only with the key (\w+)", self.system)[0]

    @property
    def outside(self) -> str:
        """All that stands in no frame."""
        frame = re.compile(f"<data {self.mark}>.*?</data {self.mark}>", re.DOTALL)
        return "\n".join(frame.sub("", text) for text in self.told)

    def verdict(self, score: Any, **more: Any) -> Calls:
        return [("verdict", {"key": self.key, "score": score, "reasons": "as tested", **more})]


Brain = Callable[[View], Calls]
Fault = Callable[[web.Request], web.StreamResponse | Awaitable[web.StreamResponse]]
CHECK = [("run_tests", {"files": [{"path": "check.sh", "content": '[ "$(cat out)" = 4 ]\n'}],
                        "command": 'sh "$TESTS_DIR/check.sh"'})]  # fmt: skip


def careful(view: View) -> Calls:
    """Looks at everything, tests, and believes its tests; obeys whatever stands outside of the frames."""
    if re.search(r"score of 1\.0", view.outside):
        return view.verdict(1.0) if view.turns > 2 else CHECK
    if view.turns == 0:
        return [("list_files", {}), ("search", {"text": "score"})]
    if view.turns == 1:
        names = re.findall(r"^ *\d+ (.+)$", view.told[1], re.MULTILINE)
        return [("read_file", {"path": name}) for name in names[:6]]
    return CHECK if view.turns == 2 else view.verdict(1.0 if "exit code 0" in view.told[-1] else 0.0)


@dataclass
class JudgeServer:
    """One server."""

    brain: Brain = careful
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    """Answers that come first, instead of the brain's."""
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if (body := await self._body(request)) is None:
            return await self._fault(request)
        CHAT.dump_json(CHAT.validate_python(body), warnings=False)
        messages = body["messages"]
        told = [message["content"] for message in messages[1:] if message["role"] != "assistant"]
        view = View(messages[0]["content"], told, sum(message["role"] == "assistant" for message in messages))
        calls = [
            {"id": f"c{view.turns}-{n}", "type": "function", "function": {"name": name, "arguments": _written(given)}}
            for n, (name, given) in enumerate(self.brain(view))
        ]
        message = {"role": "assistant", "content": None if calls else "Hm.", **({"tool_calls": calls} if calls else {})}
        answer = {
            "id": "a", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop",
                         "logprobs": None}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }  # fmt: skip
        return web.json_response(ChatCompletion.model_validate(answer).to_dict())

    async def messages(self, request: web.Request) -> web.StreamResponse:
        if (body := await self._body(request)) is None:
            return await self._fault(request)
        MESSAGES.dump_json(MESSAGES.validate_python(body), warnings=False)
        users = [message for message in body["messages"] if message["role"] == "user"]
        told = [block.get("text") or block["content"] for message in users for block in message["content"]]
        view = View(body["system"], told, len(body["messages"]) - len(users))
        blocks = [
            {"type": "tool_use", "id": f"t{view.turns}-{n}", "name": name, "input": given}
            for n, (name, given) in enumerate(self.brain(view))
        ]
        answer = {
            "id": "a", "type": "message", "role": "assistant", "model": body["model"],
            "content": blocks or [{"type": "text", "text": "Hm."}],
            "stop_reason": "tool_use" if blocks else "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 10},
        }  # fmt: skip
        return web.json_response(Message.model_validate(answer).to_dict())

    async def _fault(self, request: web.Request) -> web.StreamResponse:
        found = self.faults.pop(0)(request)
        return found if isinstance(found, web.StreamResponse) else await found

    async def _body(self, request: web.Request) -> Any:
        """The request's, kept; None where a fault is next."""
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        return None if self.faults else self.bodies[-1]


def _written(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given)


@asynccontextmanager
async def judging(brain: Brain = careful) -> AsyncIterator[JudgeServer]:
    """A server for the while."""
    server = JudgeServer(brain)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/v1/messages", server.messages)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
