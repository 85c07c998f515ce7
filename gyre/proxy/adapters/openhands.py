"""OpenHands SDK. Each conversation has a session header; the condenser asks without tools."""

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.memory import Memory, system_text
from gyre.proxy.adapters.port import Hints, named
from gyre.proxy.exchange import Asked

_TITLE = "OpenHands"
_SESSION = "x-litellm-session-id"
_SUMMARY = "You are maintaining"


class OpenHands:
    """Read off SDK 1.58.2, which does not tell its own version."""

    name = "openhands"

    def recognises(self, asked: Asked) -> bool:
        """By the name that it gives its provider, or by its session header."""
        return asked.wire.headers.get("x-title") == _TITLE or _SESSION in asked.wire.headers

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify by sessions; the Anthropic protocol has no root session, so there the system prompt tells."""
        own, root = asked.wire.headers.get(_SESSION, ""), asked.wire.body.get("prompt_cache_key")
        system, first = system_text(asked.messages), memory.first
        if asked.tools and not root:
            sub_agent = first is not None and system != first.system
        else:
            sub_agent = own != root if root else memory.thread(own) is not None
        thread = named(own, "", memory) if own and sub_agent else MAIN
        if asked.tools:
            return Hints("turn", thread)
        if system.startswith(_SUMMARY):
            return Hints("compaction", thread)
        return Hints("turn", thread, "no tools and a system prompt never seen")
