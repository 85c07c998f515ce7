"""Claude Code. Sub-agents name themselves in a header; compaction is a question inside the last user message."""

import re

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.port import Hints, last_user_texts, named, texts, unchecked, unnamed, version_of
from gyre.proxy.exchange import Asked

CHECKED = ("2.1.220", "2.1.332")
"""Versions whose traffic these marks were read off."""
_VERSION = re.compile(r"claude-cli/([\w.-]+)")
_SUB_AGENT = "cc_is_subagent=true"
"""In the billing block of the system prompt, where the header is missing."""
_COMPACTION = "CRITICAL: Respond with TEXT ONLY"
"""How a text block of the last user message begins when a summary is asked for; messages of role system may follow."""


class ClaudeCode:
    """Thread: the agent id. Calls without tools (a title) stand beside the work."""

    name = "claude-code"

    def recognises(self, asked: Asked) -> bool:
        """By its name or its session header."""
        return bool(version_of(asked, _VERSION)) or "x-claude-code-session-id" in asked.wire.headers

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify by headers, then by marks."""
        unknown = unchecked(version_of(asked, _VERSION), CHECKED)
        thread = self._thread(asked, memory)
        if any(text.startswith(_COMPACTION) for text in last_user_texts(asked.wire.body)):
            return Hints("compaction", thread, unknown)
        return Hints("turn" if asked.tools else "auxiliary", thread, unknown)

    def _thread(self, asked: Asked, memory: Memory) -> str:
        headers = asked.wire.headers
        if own := headers.get("x-claude-code-agent-id"):
            return named(own, headers.get("x-claude-code-parent-agent-id", ""), memory)
        if any(_SUB_AGENT in text for text in texts(asked.wire.body.get("system"))):
            return unnamed(asked, memory)
        return MAIN
