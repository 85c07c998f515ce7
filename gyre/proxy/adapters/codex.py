"""Codex. Everything is in its own metadata, a JSON object in a header and in the body."""

import re
from typing import Any

import orjson

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.generic import Generic
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.port import Hints, Kind, named, unchecked, version_of
from gyre.proxy.exchange import Asked

CHECKED = ("0.171.0",)
_METADATA = "x-codex-turn-metadata"
_VERSION = re.compile(r"codex[\w-]*/([\w.-]+)")
_KINDS: dict[str, Kind] = {"turn": "turn", "compaction": "compaction"}


class Codex:
    """Thread: `thread_id` of a sub-agent. Kind: `request_kind`."""

    name = "codex"

    def recognises(self, asked: Asked) -> bool:
        """By its metadata or its name."""
        return _METADATA in asked.wire.headers or bool(version_of(asked, _VERSION))

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify by the metadata; without any, by comparison."""
        told = _metadata(asked)
        if not told:
            return Hints(*_pair(Generic().hints(asked, memory)), f"no {_METADATA}: compared with the first call")
        kind, source = told.get("request_kind"), told.get("thread_source")
        known = _KINDS.get(kind) if isinstance(kind, str) else None
        unknown = [unchecked(version_of(asked, _VERSION), CHECKED)]
        unknown += [] if known else [f"request_kind {kind!r}"]
        unknown += [] if source in ("user", "subagent") else [f"thread_source {source!r}"]
        thread = MAIN
        if source == "subagent":
            thread = named(str(told.get("thread_id")), str(told.get("parent_thread_id", "")), memory)
        return Hints(known or "turn", thread, "; ".join(filter(None, unknown)))


def _pair(hints: Hints) -> tuple[Kind, str]:
    return hints.kind, hints.thread


def _metadata(asked: Asked) -> dict[str, Any]:
    inside = asked.wire.body.get("client_metadata")
    text = asked.wire.headers.get(_METADATA) or (inside.get(_METADATA) if isinstance(inside, dict) else None)
    try:
        value = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
