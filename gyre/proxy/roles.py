"""What kind of call a request is and whose: small adapters, one for each harness, over what the wire shows.

Marks are a harness's own wording and change with its version: they are data here. What no mark tells falls to the
generic rule, which only compares a request with the execution's first one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gyre.core.leaves import MAIN
from gyre.proxy.normalise import Message

Kind = Literal["turn", "compaction", "auxiliary"]
SUB_AGENT = "sub-agent"


@dataclass(frozen=True, slots=True)
class Hints:
    """Kind of a call and the thread that it belongs to (`MAIN`, or a sub-agent's)."""

    kind: Kind
    thread: str


@dataclass(frozen=True, slots=True)
class First:
    """The execution's first call that was not auxiliary."""

    system: str
    tools: bool


@dataclass(frozen=True, slots=True)
class Harness:
    """How one harness words what only it knows; empty tuples: it has no such mark."""

    name: str
    compactions: tuple[str, ...] = ()
    """How the last user message of a compaction request begins."""
    sub_agents: tuple[str, ...] = ()
    """How a sub-agent's system prompt begins."""
    auxiliaries: tuple[str, ...] = ()
    """How the system prompt of a call beside the work (a title, a probe) begins."""

    def hints(self, messages: Sequence[Message], tools: bool, first: First | None) -> Hints:
        """Classify a request; `first` is None for the first one."""
        system = system_text(messages)
        asked = next((message.content for message in reversed(messages) if message.role == "user"), "")
        toolless = first is not None and first.tools and not tools
        if system.startswith(self.auxiliaries or "\0"):
            return Hints("auxiliary", MAIN)
        if toolless and first is not None and system != first.system and not self.compactions:
            return Hints("auxiliary", MAIN)
        compaction = asked.startswith(self.compactions) if self.compactions else toolless
        return Hints("compaction" if compaction else "turn", self._thread(system, first))

    def _thread(self, system: str, first: First | None) -> str:
        if self.sub_agents:
            return SUB_AGENT if system.startswith(self.sub_agents) else MAIN
        return MAIN if first is None or system == first.system else SUB_AGENT


def system_text(messages: Sequence[Message]) -> str:
    """The leading system messages' text."""
    leading: list[str] = []
    for message in messages:
        if message.role != "system":
            break
        leading.append(message.content)
    return "\n".join(leading)


GENERIC = Harness("generic")
REFERENCE = Harness("reference", compactions=("[compaction]",), sub_agents=("You help in a folder.",))
HARNESSES = {harness.name: harness for harness in (GENERIC, REFERENCE)}
