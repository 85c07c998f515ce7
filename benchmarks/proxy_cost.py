"""What the proxy's own code costs a call, and an execution in memory, as a conversation grows long.

    python benchmarks/proxy_cost.py [--api messages] [--turns 600] [--tokens 200000] [--model FOLDER] [--json]

One conversation of tool calls and their results is put through the code that the proxy service runs for each call, in
one thread, with a scripted answer for the engine. Each call's processor time is held against that of `orjson.loads` on
the very body that it came in, measured beside it; medians over the last turns of two stretches. What the engine and
its wire cost is shown and not counted: `engine` (packing the exact input for it). HTTP and the log's server are not in
these figures: see `proxy.py` and `proxy_rivals.py`.

    cost_late       call / orjson.loads of its body, at the last turns; <= 3 is wanted
    growth          (call / byte of its body, last turns) / (the same around turn 60); <= 1.5 is wanted
    bytes_a_token   what the session keeps after the last turn over its tokens, without messages; <= 16 is wanted
    message_bytes_a_token   the messages, as they were read (text_bytes_a_token: as the client writes them)
"""

import argparse
import gc
import json
import random
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import Any, TypeVar

import orjson
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from gyre.core.tree import record_digest
from gyre.engines.port import GenerateRequest, PackedIds, Sampling
from gyre.engines.wire import GenerateBody
from gyre.models.load import NANO
from gyre.proxy.adapters.generic import Generic
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.normalise import Message
from gyre.proxy.protocols import PROTOCOLS
from gyre.proxy.reply import Opened, Reply, Request
from gyre.proxy.sent import Sent
from gyre.proxy.session import Drawn, Limits, Session
from gyre.proxy.template import Template
from schemas.calls import VersionSpan
from schemas.envelope import COMMIT, Commit, Producer

APIS = ("chat/completions", "messages", "responses")
EARLY, WINDOW = 60, 20
STAGES = ("read", "plan", "record", "add", "write")
CALL = '<tool_call>{{"name": "shell", "arguments": {{"command": "sed -n {0},{1}p src/module_{0}.py"}}}}</tool_call>'
SYSTEM = "You are a careful engineer. " * 40
CONTEXT = 1 << 24
FUNCTION = {"name": "shell", "description": "Run it.", "parameters": {}}
NAMED = {"name": "shell", "description": "Run it.", "input_schema": {}}
WORDS = "self return the value of import path from line def class test name None in is not for if else"
MESSAGES = ("bodies.py", "normalise.py", "recall.py", "anthropic_history.py", "responses_history.py")
"""Where messages are made and kept."""
VOCABULARY = WORDS.split()
T = TypeVar("T")


@dataclass
class Call:
    """What one call cost, nanoseconds of processor time."""

    size: int
    """Bytes of its body."""
    loads: int = 0
    """Of `orjson.loads` on the body, median of five."""
    engine: int = 0
    stages: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.stages.values())


def timed(call: Call, stage: str, work: Callable[[], T]) -> T:
    began = thread_time_ns()
    done = work()
    call.stages[stage] = thread_time_ns() - began
    return done


class Client:
    """The conversation as a client of one API keeps it; `bodies` are the requests of its turns."""

    def __init__(self, api: str, result_words: int) -> None:
        self._random = random.Random(0)
        self._words, self._api = result_words, api
        ask = {"role": "user", "content": "Write the library that start.md describes."}
        system = {"role": "system", "content": SYSTEM}
        self.items: list[Any] = [ask] if api == "messages" else [system, ask]

    def body(self, count: int | None = None) -> bytes:
        """The request with the first `count` items of the conversation (or all)."""
        items, head = self.items[:count], {"model": "m", "stream": True}
        if self._api == "messages":
            return orjson.dumps({**head, "max_tokens": 256, "system": SYSTEM, "messages": items, "tools": [NAMED]})
        if self._api == "responses":
            return orjson.dumps({**head, "input": items, "tools": [{"type": "function", **FUNCTION}]})
        return orjson.dumps({**head, "messages": items, "tools": [{"type": "function", "function": FUNCTION}]})

    def take(self, message: Message) -> None:
        """Add the answer and its tool's result, as the API writes them."""
        result = " ".join(self._random.choice(VOCABULARY) for _ in range(self._words))
        (call,) = message.calls
        if self._api == "messages":
            use = {"type": "tool_use", "id": call.id, "name": call.name, "input": orjson.loads(call.arguments)}
            told = {"type": "tool_result", "tool_use_id": call.id, "content": result}
            self.items += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [told]}]
        elif self._api == "responses":
            made = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed"}
            self.items += [
                {"type": "function_call", "id": f"fc_{call.id}", **made},
                {"type": "function_call_output", "call_id": call.id, "output": result},
            ]
        else:
            self.items += [message.wire(), {"role": "tool", "tool_call_id": call.id, "content": result}]

    @property
    def opening(self) -> int:
        """Items before the first answer."""
        return 1 if self._api == "messages" else 2


def answered(api: str, session: Session, model: ChatModel, body: bytes, turn: int, call: Call) -> Message:
    """One call, stage by stage as services/proxy/http.py and proxy_calls.py take them; returns the answer."""
    protocol = PROTOCOLS[api]

    def taken() -> Request:
        request = protocol.parse(body, {}, CONTEXT)
        Sent.of(api, {}, body)
        return request

    request = timed(call, "read", taken)
    plan = timed(call, "plan", lambda: session.plan(request.asked))
    drawn = answer(model, turn)
    began = thread_time_ns()
    packed = PackedIds(plan.context)
    asked = GenerateRequest(plan.call, packed, Sampling(max_tokens=64, seed=1), "x", model.stop_token_ids)
    GenerateBody.of(asked).model_dump_json()
    call.engine = thread_time_ns() - began

    def recorded() -> Any:
        record = session.record(plan, drawn, total_seconds=0.0, delivered=True)
        COMMIT.dump_json(commit(record))
        return record

    record = timed(call, "record", recorded)

    def added() -> str:
        session.add(record)
        return record_digest(record)

    timed(call, "add", added)

    def written() -> bytes:
        message, node = session.reply(plan.call)
        opened = Opened(plan.call, 0, node.context)
        said = Reply(opened, message, "stop", node.length - node.context, 0)
        return b"".join((protocol.opening(request, opened), *protocol.events(request, said, 0)))

    timed(call, "write", written)
    return session.reply(plan.call)[0]


def answer(model: ChatModel, turn: int) -> Drawn:
    """What the engine says at this turn."""
    ids = (*model.encode(CALL.format(turn, turn + 40)), model.stop_token_ids[0])
    return Drawn(ids, (-0.25,) * len(ids), (VersionSpan(version=1, tokens=len(ids)),), "stop", (0,), 0, 0.0, 0.0)


def commit(record: Any) -> Commit:
    producer = Producer(service="proxy", instance="p-1")
    return Commit(
        run="bench", producer=producer, commit="c", causation=0, as_of=0, correlation="x", time=1, events=(record,)
    )


def session(template: Template) -> Session:
    return Session("x", 1, template, Limits(1.0, 256, CONTEXT), Generic())


def conversation(api: str, template: Template, turns: int, tokens: int) -> tuple[Client, Session, list[Call]]:
    """The whole conversation and what each call of it cost."""
    model = template.model
    a_turn = tokens // turns - len(answer(model, 1).output_ids) - 8
    client = Client(api, a_turn * 400 // len(model.encode(" ".join([WORDS] * 20))))
    live, calls = session(template), []
    for turn in range(turns):
        body = client.body()
        call = Call(len(body), loads=int(median(_loads(body) for _ in range(5))))
        calls.append(call)
        client.take(answered(api, live, model, body, turn, call))
    return client, live, calls


def _loads(body: bytes) -> int:
    began = thread_time_ns()
    orjson.loads(body)
    return thread_time_ns() - began


def kept(api: str, template: Template, client: Client, turns: int) -> tuple[int, int]:
    """(bytes that one session holds after all turns, bytes of the messages that it and the reader of bodies share)."""
    gc.collect()
    tracemalloc.start()
    live = session(template)
    for turn in range(turns):
        answered(api, live, template.model, client.body(client.opening + 2 * turn), turn, Call(0))
    gc.collect()
    held = tracemalloc.take_snapshot().statistics("filename")
    tracemalloc.stop()
    messages = sum(each.size for each in held if Path(each.traceback[0].filename).name in MESSAGES)
    return sum(each.size for each in held) - messages, messages


def stretch(calls: Sequence[Call]) -> dict[str, float]:
    """Medians over a stretch, microseconds, and the ratio to reading the bodies."""
    found = {name: median(call.stages[name] for call in calls) / 1e3 for name in STAGES}
    found |= {"call": median(call.total for call in calls) / 1e3, "loads": median(call.loads for call in calls) / 1e3}
    found |= {"engine": median(call.engine for call in calls) / 1e3, "body_kb": median(c.size for c in calls) / 1e3}
    return found | {"cost": median(call.total / call.loads for call in calls)}


def measure(api: str, template: Template, turns: int, tokens: int) -> dict[str, Any]:
    client, live, calls = conversation(api, template, turns, tokens)
    last = list(live.tree.nodes.values())[-1]
    early, late = stretch(calls[max(0, EARLY - WINDOW) : EARLY]), stretch(calls[-WINDOW:])
    held, shared = kept(api, template, client, turns)
    said = sum(len(orjson.dumps(message)) for message in client.items)
    return {
        "api": api,
        "turns": turns,
        "tokens": last.length,
        "early": early,
        "late": late,
        "cost_early": early["cost"],
        "cost_late": late["cost"],
        "growth": late["call"] / late["body_kb"] / (early["call"] / early["body_kb"]),
        "kept_mb": held / 1e6,
        "bytes_a_token": held / last.length,
        "message_bytes_a_token": shared / last.length,
        "text_bytes_a_token": said / last.length,
    }


def everyday_model(folder: Path) -> ChatModel:
    """nano's template over a tokenizer of everyday size, learnt here from Python's own library: a token is a word."""
    tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    special = [str(tokenizer.id_to_token(number)) for number in range(3)]
    tokenizer.model = BPE()
    sources = sorted(Path(str(json.__file__)).parent.parent.glob("*.py"))[:80]
    tokenizer.train(
        [str(path) for path in sources], BpeTrainer(vocab_size=16384, special_tokens=special, show_progress=False)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((NANO / name).read_bytes())
    return ChatModel.load(folder)


def lines(result: dict[str, Any]) -> Iterator[str]:
    for name, value in result.items():
        shown = value if not isinstance(value, dict) else "  ".join(f"{key} {each:.0f}" for key, each in value.items())
        yield f"{name:22} {f'{shown:.2f}' if isinstance(shown, float) else shown}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=600, help="calls of the conversation, at least 60")
    parser.add_argument("--tokens", type=int, default=200_000, help="tokens of the last call's context, about")
    parser.add_argument("--api", choices=APIS, default=APIS[0], help="as which it is asked")
    parser.add_argument("--model", type=Path, help="folder with tokenizer and template (default: made here)")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    options = parser.parse_args(arguments)
    if options.turns < EARLY:
        sys.exit(f"--turns: {options.turns} is too few; give at least {EARLY}")
    with tempfile.TemporaryDirectory() as folder:
        model = ChatModel.load(options.model) if options.model else everyday_model(Path(folder))
    result = measure(options.api, Template(model), options.turns, options.tokens)
    print(json.dumps(result) if options.json else "\n".join(lines(result)))


if __name__ == "__main__":
    main()
