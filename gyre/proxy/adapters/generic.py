"""Any harness: a request is compared with the execution's first one, and with who made the tool calls that it holds."""

from gyre.core.leaves import MAIN
from gyre.proxy.adapters.memory import Memory, system_text
from gyre.proxy.adapters.port import Hints, unnamed
from gyre.proxy.exchange import Asked


class Generic:
    """Another system prompt: a sub-agent. No tools where there were some: a summary, or a call beside the work."""

    name = "generic"

    def recognises(self, asked: Asked) -> bool:
        """Anything."""
        return True

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Classify by comparison alone."""
        first = memory.first
        if first is None:
            return Hints("turn")
        same = system_text(asked.messages) == first.system
        toolless = first.tools and not asked.tools
        if toolless and not same:
            return Hints("auxiliary")
        thread = MAIN if same or memory.of_history(asked.messages) == MAIN else unnamed(asked, memory)
        return Hints("compaction" if toolless else "turn", thread)
