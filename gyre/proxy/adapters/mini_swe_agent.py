"""mini-swe-agent. One conversation with one tool and no id: whatever it asks is main's."""

from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.port import Hints, agent
from gyre.proxy.exchange import Asked

_CLIENTS = ("OpenAI/Python", "litellm/")
_TOOLS = ["bash"]


class MiniSweAgent:
    """Read off 2.4.6, which tells its version to nobody."""

    name = "mini-swe-agent"

    def recognises(self, asked: Asked) -> bool:
        """By its library's name and its only tool."""
        offered = [tool.get("function", {}).get("name") for tool in asked.tools]
        return agent(asked).startswith(_CLIENTS) and offered == _TOOLS

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """Everything is a turn of main."""
        return Hints("turn")
