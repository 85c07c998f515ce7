"""What an adapter is: a request and what is remembered in, kind and thread out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, Protocol

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message, dump

Kind = Literal["turn", "compaction", "auxiliary"]
SUB_AGENT = "sub-agent"
"""How the threads of sub-agents begin that a harness gives no id."""
_ID_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Hints:
    """What a call is, and the conversation that it belongs to."""

    kind: Kind
    thread: str = MAIN
    """`MAIN`, or a sub-agent's: the ids from the outermost one inwards, joined by `/`."""
    unknown: str = ""
    """What could not be told, in words; such a call counts as a turn, and people are told."""


class Adapter(Protocol):
    """How one harness's requests are read."""

    @property
    def name(self) -> str:
        """As `harness.adapter` says it."""

    def recognises(self, asked: Asked) -> bool:
        """Whether a request is this harness's."""

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify a request; `memory` holds the execution's records up to now."""


def named(own: str, parent: str, memory: Memory) -> str:
    """Thread of a sub-agent that the harness calls `own`, started by `parent` ("" or unknown: by main)."""
    plain = _plain(own)
    above = memory.thread(_plain(parent)) if parent else None
    return memory.thread(plain) or (f"{above}/{plain}" if above else plain)


def unnamed(asked: Asked, memory: Memory) -> str:
    """Thread of a sub-agent without an id: the one whose tool calls the history holds, else one by its opening."""
    known = memory.of_history(asked.messages)
    return known if known not in (None, MAIN) else f"{SUB_AGENT}-{_opening(asked.messages)}"


def agent(asked: Asked) -> str:
    """The client's User-Agent."""
    return asked.wire.headers.get("user-agent", "")


def version_of(asked: Asked, pattern: re.Pattern[str]) -> str:
    """The client's version: the first group of `pattern` at the beginning of its User-Agent; "" for another client."""
    found = pattern.match(agent(asked))
    return found.group(1) if found else ""


def unchecked(version: str, checked: tuple[str, ...]) -> str:
    """What to say of a client version that the marks were not read off; "" for one that they were."""
    if version in checked:
        return ""
    return f"version {version or 'not told'}: marks were read off {', '.join(checked)}"


def last_user_texts(body: Mapping[str, Any]) -> list[str]:
    """Text blocks of the last user message of a body, one by one: marks may stand behind tool results."""
    messages = body.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return texts(message.get("content"))
    return []


def texts(content: object) -> list[str]:
    """The texts of a string or of a list of blocks."""
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]


def _opening(messages: Sequence[Message]) -> str:
    """Eight hex digits of what stands before the first answer."""
    count = next((at for at, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return sha256(dump(tuple(messages[:count])).encode("utf-8", "replace")).hexdigest()[:8]


def _plain(own: str) -> str:
    """An id as part of a thread: it can be no other thread's name."""
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in own[:_ID_LENGTH])
    return f"{kept}_" if kept == MAIN else kept
