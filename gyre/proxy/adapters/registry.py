"""Adapters by name, and the choice among them when none is configured."""

from importlib import import_module

from gyre.errors import GyreError
from gyre.proxy.adapters.claude_code import ClaudeCode
from gyre.proxy.adapters.codex import Codex
from gyre.proxy.adapters.generic import Generic
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.mini_swe_agent import MiniSweAgent
from gyre.proxy.adapters.opencode import OpenCode
from gyre.proxy.adapters.openhands import OpenHands
from gyre.proxy.adapters.port import Adapter, Hints
from gyre.proxy.adapters.qwen_code import QwenCode
from gyre.proxy.adapters.reference import Reference
from gyre.proxy.exchange import Asked

KNOWN: tuple[Adapter, ...] = (
    Reference(),
    ClaudeCode(),
    Codex(),
    OpenCode(),
    QwenCode(),
    OpenHands(),
    MiniSweAgent(),
    Generic(),
)
"""Tried in this order by `auto`; the last one takes anything."""


class AdapterUnknown(GyreError):
    """No adapter has this name, or its module cannot be loaded."""


class Auto:
    """Each request is read by the first adapter that recognises it: nothing has to be remembered over a restart."""

    name = "auto"

    def recognises(self, asked: Asked) -> bool:
        """Anything."""
        return True

    def hints(self, asked: Asked, memory: Memory) -> Hints:
        """As the request's own harness has it."""
        return next(adapter for adapter in KNOWN if adapter.recognises(asked)).hints(asked, memory)


ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in (Auto(), *KNOWN)}


def find_adapter(name: str) -> Adapter:
    """The adapter that `harness.adapter` names: one of `ADAPTERS`, or `module:object` for one of your own.

    Raises:
        AdapterUnknown: naming the value and the names that there are.
    """
    if name in ADAPTERS:
        return ADAPTERS[name]
    module, colon, found = name.partition(":")
    if not colon:
        raise AdapterUnknown(f"harness.adapter {name!r}: unknown; one of {', '.join(ADAPTERS)}, or module:object")
    try:
        adapter: Adapter = getattr(import_module(module), found)
    except (ImportError, AttributeError, ValueError) as error:
        raise AdapterUnknown(f"harness.adapter {name!r}: cannot be loaded: {error}") from error
    return adapter
