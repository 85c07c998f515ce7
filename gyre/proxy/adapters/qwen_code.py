"""Qwen Code. It sends no id at all: system prompts tell main, sub-agents and summaries apart, tool calls tell whose."""

import re

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.memory import Memory, system_text
from gyre.proxy.adapters.port import Hints, last_user_texts, unchecked, unnamed, version_of
from gyre.proxy.exchange import Asked

CHECKED = ("0.24.4",)
_VERSION = re.compile(r"QwenCode/([\w.-]+)")
_MAIN = "You are Qwen Code"
_SUMMARY = "You are the component that summarize"
"""How the question for a summary begins: the last message of the history as it stands, or the system prompt of a
shortened one."""


class QwenCode:
    """A summary is of the thread whose calls its history holds. Equal prompts make one thread of two sub-agents."""

    name = "qwen-code"

    def recognises(self, asked: Asked) -> bool:
        """By its name."""
        return bool(version_of(asked, _VERSION))

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify by system prompts."""
        unknown = unchecked(version_of(asked, _VERSION), CHECKED)
        system = system_text(asked.messages)
        asks = any(text.startswith(_SUMMARY) for text in last_user_texts(asked.wire.body))
        if asks or system.startswith(_SUMMARY):
            return Hints("compaction", memory.of_history(asked.messages) or MAIN, unknown)
        if asked.tools:
            first = memory.first
            main = system.startswith(_MAIN) or first is None or system == first.system  # users may replace the prompt
            return Hints("turn", MAIN if main else unnamed(asked, memory), unknown)
        strange = "no tools and a system prompt never seen"
        return Hints("turn", memory.of_history(asked.messages) or MAIN, "; ".join(filter(None, (unknown, strange))))
