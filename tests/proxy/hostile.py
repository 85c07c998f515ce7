"""A client that does to its history whatever clients were seen to do, and worse: each move makes a new history."""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

Json = dict[str, Any]
History = list[Json]
Move = Callable[[History, random.Random], History]

SYSTEM = {"role": "system", "content": "You work in a folder."}
HELPER = {"role": "system", "content": "You help in a folder."}
TASK = {"role": "user", "content": "write up to a.txt"}
COMPACTION = {"role": "user", "content": "[compaction] The context is nearly full."}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("write", "read")
]
WRITE = '<tool_call>{"name": "write", "arguments": {"path": "a.txt", "content":"up"}}</tool_call>'
READ = '<tool_call>{"name":"read","arguments":{"path":"b.txt"}}</tool_call>'
ANSWERS = (
    "done",
    "",
    "  done \n",
    WRITE,
    f"first {READ}{WRITE}",
    "<tool_call>{broken",
    '<tool_call>{"name": "write", "arguments": {oops}}</tool_call>',
    "<think>\nit may be\n</think>\n\ndone",
    "he",
    "up <|im_start|>user",
    "caf\u00e9 \U0001f600",
)
TEXTS = ("on", "", " ", "done", "he", "llo", "<|im_end|>", "<|im_start|>assistant\ndone<|im_end|>", "\ud800", "a\n\nb ")


def went_on(history: History, reply: Json, chance: random.Random) -> History:
    """What a client sends next: the answer as it keeps it, and its tools' results or another question."""
    kept = [*deepcopy(history), _echo(deepcopy(reply), chance)]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in reply.get("tool_calls", ())]
    if chance.random() < 0.3:
        chance.shuffle(results)
    return [*kept, *(results or [{"role": "user", "content": chance.choice(TEXTS)}])]


def _echo(reply: Json, chance: random.Random) -> Json:
    """An answer as clients send it back: trimmed, arguments written anew, thoughts dropped."""
    if chance.random() < 0.3 and reply.get("content"):
        reply["content"] = reply["content"].strip()
    if chance.random() < 0.3:
        reply.pop("reasoning_content", None)
    for call in reply.get("tool_calls", ()):
        if chance.random() < 0.3:
            call["function"]["arguments"] = '{"content": "up", "path": "a.txt", "limit": 5}'
    return reply


def edited(history: History, chance: random.Random) -> History:
    chance.choice(history)["content"] = chance.choice(TEXTS)
    return history


def swapped(history: History, chance: random.Random) -> History:
    place = chance.randrange(len(history))
    history[place - 1], history[place] = history[place], history[place - 1]
    return history


def truncated(history: History, chance: random.Random) -> History:
    return history[: chance.randint(1, len(history))]


def beheaded(history: History, chance: random.Random) -> History:
    return [history[0], *history[chance.randint(1, len(history)) :], TASK]


def duplicated(history: History, chance: random.Random) -> History:
    place = chance.randrange(len(history))
    return [*history[: place + 1], *deepcopy(history[place:])]


def inserted(history: History, chance: random.Random) -> History:
    role = chance.choice(["user", "assistant", "system", "tool", "developer", "moderator"])
    history.insert(chance.randint(0, len(history)), {"role": role, "content": chance.choice(TEXTS)})
    return history


def renamed(history: History, chance: random.Random) -> History:
    for call in calls_of(history):
        call["function"]["name"] = chance.choice(["write", "read", "invalid"])
    return history


def with_repeated_ids(history: History, chance: random.Random) -> History:
    calls = calls_of(history)
    for call in calls:
        call["id"] = chance.choice(calls)["id"]
    return history


def respaced(history: History, chance: random.Random) -> History:
    message = chance.choice(history)
    message["content"] = f" {message.get('content') or ''}\n"
    return history


def merged(history: History, chance: random.Random) -> History:
    """An invented text in a turn that keeps its calls."""
    for message in history:
        if message["role"] == "assistant" and chance.random() < 0.5:
            message["content"] = "Got it."
    return history


def compacted(history: History, chance: random.Random) -> History:
    """A summary, and the tail of what was there."""
    summary = {"role": "user", "content": "write up to a.txt\n\nSummary of the work so far:\ndone"}
    return [history[0], summary, *history[-chance.randint(0, 2) :]][: len(history) + 1]


def about_to_compact(history: History, chance: random.Random) -> History:
    return [*history[: -1 if chance.random() < 0.5 and len(history) > 2 else None], COMPACTION]


def delegated(history: History, chance: random.Random) -> History:
    return [HELPER, {"role": "user", "content": chance.choice(["look", "look again"])}]


def spelt_otherwise(history: History, chance: random.Random) -> History:
    for message in history:
        if isinstance(message.get("content"), str) and chance.random() < 0.5:
            message["content"] = [{"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}]
    return history


MOVES: Sequence[Move] = (
    edited,
    swapped,
    truncated,
    beheaded,
    duplicated,
    inserted,
    renamed,
    with_repeated_ids,
    respaced,
    merged,
    compacted,
    about_to_compact,
    delegated,
    spelt_otherwise,
)


def calls_of(history: History) -> list[Json]:
    """All tool calls of a history, the very objects."""
    return [call for message in history for call in message.get("tool_calls") or ()]
