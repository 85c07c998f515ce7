"""A recording through the proxy's own code: requests are planned, scripted answers recorded, without engine or run.

What the stub said stands for what the policy sampled, in the wording of the model family. Its tool calls get the ids
that the proxy would have made, and the recorded history is read as if the client had echoed those. A request that is
sent again while it is being answered joins the first; one whose answer broke off is given the same answer, as live.
"""

import json
from dataclasses import dataclass, field, replace

import orjson

from gyre.core import tree as trees
from gyre.proxy import probes
from gyre.proxy.adapters.port import Adapter
from gyre.proxy.drawn import Drawn
from gyre.proxy.errors import BadRequest, CallError
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.plan import Limits, Plan
from gyre.proxy.protocols import PROTOCOLS
from gyre.proxy.recording import Exchange, Said, Step
from gyre.proxy.sent import Sent
from gyre.proxy.session import Session
from gyre.proxy.template import Template
from schemas.calls import Finish, ModelCallRecorded, VersionSpan

EXECUTION = "recording"
_LIMITS = Limits(temperature=1.0, max_tokens=1 << 20, context_tokens=1 << 30)


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a recording."""

    tree: trees.Tree
    records: tuple[ModelCallRecorded, ...]
    requests: dict[str, tuple[int, ...]]
    """By call: numbers of the recorded requests that it answered."""
    rejected: tuple[tuple[str, str], ...]
    """Requests that have no record, and why."""
    unknown: tuple[tuple[str, str], ...]
    """Calls of which the adapter could not tell all, and what."""


@dataclass(slots=True)
class _Making:
    """A planned call: of an exchange that is not over, or of more than one."""

    plan: Plan
    sent: Sent
    waiting: set[int] = field(default_factory=set)


def play(steps: tuple[Step, ...], template: Template, adapter: Adapter) -> Played:
    """Play a recording from its first request to its last."""
    player = _Player(template, adapter)
    for step in steps:
        if step.over:
            player.over(step.exchange)
        else:
            player.begin(step.exchange)
    return player.played()


class _Player:
    def __init__(self, template: Template, adapter: Adapter) -> None:
        self._template = template
        self._session = Session(EXECUTION, 0, template, _LIMITS, adapter)
        self._records: list[ModelCallRecorded] = []
        self._requests: dict[str, list[int]] = {}
        self._making: dict[int, _Making] = {}
        self._found: dict[int, str] = {}
        self._unconfirmed: set[str] = set()
        self._ids: dict[str, str] = {}
        self._rejected: list[tuple[str, str]] = []
        self._unknown: list[tuple[str, str]] = []

    def begin(self, exchange: Exchange) -> None:
        """A request came: joined, found again or planned."""
        try:
            asked = self._asked(exchange)
            sent = Sent.of(probes.api_of(exchange.path), exchange.headers, orjson.dumps(exchange.body))
            joined = next((each for each in self._making.values() if sent.repeats(each.sent)), None)
            again = [call for call in self._session.finished(asked) if call in self._unconfirmed]
            if joined is None and again:
                self._found[exchange.number] = again[-1]
                return
            making = joined or _Making(self._session.plan(asked), sent)
        except CallError as error:
            self._reject(exchange, str(error))
            return
        making.waiting.add(exchange.number)
        self._making[exchange.number] = making
        if making.plan.hints.unknown and joined is None:
            self._unknown.append((making.plan.call, making.plan.hints.unknown))

    def over(self, exchange: Exchange) -> None:
        """An exchange ended: its call is recorded if it was answered, whoever was still there to read."""
        if (call := self._found.get(exchange.number)) is not None:
            self._note(exchange, call)
            return
        making = self._making.pop(exchange.number, None)
        if making is None:
            return
        making.waiting.discard(exchange.number)
        if exchange.fate in ("answered", "cut"):
            for number in making.waiting:
                self._found[number] = making.plan.call
                del self._making[number]
            self._record(exchange, making)
        elif not making.waiting:
            self._reject(exchange, "the client hung up" if exchange.fate == "gone" else "refused, as recorded")

    def played(self) -> Played:
        """The end: what is still in the making is cancelled."""
        for number in sorted(self._making):
            self._rejected.append((f"request {number}", "never answered"))
        requests = {call: tuple(numbers) for call, numbers in self._requests.items()}
        return Played(self._session.tree, tuple(self._records), requests, tuple(self._rejected), tuple(self._unknown))

    def _asked(self, exchange: Exchange) -> Asked:
        protocol = PROTOCOLS.get(probes.api_of(exchange.path))
        if protocol is None:
            raise BadRequest(f"path {exchange.path}: is no endpoint of a model")
        asked = protocol.parse(orjson.dumps(exchange.body), exchange.headers).asked
        return replace(asked, messages=tuple(self._echoed(message) for message in asked.messages))

    def _echoed(self, message: Message) -> Message:
        """A message with our ids in place of the stub's."""
        calls = tuple(ToolCall(self._ids.get(call.id, call.id), call.name, call.arguments) for call in message.calls)
        return replace(message, calls=calls, call_id=self._ids.get(message.call_id, message.call_id))

    def _record(self, exchange: Exchange, making: _Making) -> None:
        delivered = exchange.fate == "answered" or exchange.repeated
        drawn = drawn_of(exchange.said, self._template)
        record = self._session.record(making.plan, drawn, total_seconds=0.0, delivered=delivered)
        self._session.add(record)
        self._records.append(record)
        if exchange.fate == "cut":
            self._unconfirmed.add(record.call)
        self._note(exchange, record.call)

    def _note(self, exchange: Exchange, call: str) -> None:
        """The exchange's stub ids now stand for those of this call."""
        self._requests.setdefault(call, []).append(exchange.number)
        if exchange.fate == "answered":
            self._unconfirmed.discard(call)
        reply, _ = self._session.reply(call)
        for tool, ours in zip(exchange.said.tools, reply.calls, strict=False):
            self._ids[tool.id] = ours.id
        if [tool.name for tool in exchange.said.tools] != [ours.name for ours in reply.calls]:
            self._reject(exchange, f"{call}: its scripted tool calls cannot be said in the model's wording")

    def _reject(self, exchange: Exchange, reason: str) -> None:
        self._rejected.append((f"request {exchange.number}", reason))


def drawn_of(said: Said, template: Template) -> Drawn:
    """A scripted answer as an engine would have given it."""
    text = said.text + "".join(_call_text(tool.name, tool.arguments) for tool in said.tools)
    stop = () if said.length else template.model.stop_token_ids[:1]
    ids = (*template.model.encode(text), *stop)
    spans = (VersionSpan(version=0, tokens=len(ids)),) if ids else ()
    finish: Finish = "length" if said.length else "stop"
    return Drawn(ids, (0.0,) * len(ids), spans, finish, (0,), 0, 0.0, 0.0)


def _call_text(name: str, arguments: str) -> str:
    """Arguments are written as they are, be they JSON or not."""
    return f'<tool_call>{{"name":{json.dumps(name)},"arguments":{arguments}}}</tool_call>'
