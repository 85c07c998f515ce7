"""The reference harness that comes with gyre."""

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.memory import Memory, system_text
from gyre.proxy.adapters.port import Hints, agent, unnamed
from gyre.proxy.exchange import Asked

_CLIENT = "gyre-reference/"
_MAIN = "You work in a folder."
_SUB_AGENT = "You help in a folder."
_COMPACTION = "[compaction]"


class Reference:
    """Its own words mark everything."""

    name = "reference"

    def recognises(self, asked: Asked) -> bool:
        """By its name, or by its system prompts."""
        return agent(asked).startswith(_CLIENT) or system_text(asked.messages).startswith((_MAIN, _SUB_AGENT))

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify by its marks."""
        question = next((message.content for message in reversed(asked.messages) if message.role == "user"), "")
        sub_agent = system_text(asked.messages).startswith(_SUB_AGENT)
        thread = unnamed(asked, memory) if sub_agent else MAIN
        return Hints("compaction" if question.startswith(_COMPACTION) else "turn", thread)
