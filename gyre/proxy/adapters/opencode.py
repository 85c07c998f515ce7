"""OpenCode. Sessions name themselves in headers; titles and summaries have system prompts of their own and no tools."""

import re

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.memory import Memory, system_text
from gyre.proxy.adapters.port import Hints, named, unchecked, version_of
from gyre.proxy.exchange import Asked

CHECKED = ("1.18.33",)
_VERSION = re.compile(r"opencode/([\w.-]+)")
_TITLE = "You are a title generator"
_SUMMARY = "You are a context summarization"


class OpenCode:
    """Thread: a session with a parent; its summary call names no parent, so known sessions are remembered."""

    name = "opencode"

    def recognises(self, asked: Asked) -> bool:
        """By its name."""
        return bool(version_of(asked, _VERSION))

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify by session headers and system prompts."""
        unknown = unchecked(version_of(asked, _VERSION), CHECKED)
        headers = asked.wire.headers
        own, parent = headers.get("x-session-id", ""), headers.get("x-parent-session-id", "")
        thread = named(own, parent, memory) if own and (parent or memory.thread(own)) else MAIN
        system = system_text(asked.messages)
        if asked.tools:
            return Hints("turn", thread, unknown)
        if system.startswith(_TITLE):
            return Hints("auxiliary", thread, unknown)
        if system.startswith(_SUMMARY):
            return Hints("compaction", thread, unknown)
        return Hints("turn", thread, "; ".join(filter(None, (unknown, "no tools and a system prompt never seen"))))
