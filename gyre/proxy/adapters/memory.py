"""What an execution's records tell an adapter: a fold over them, the same live and after a restart."""

from collections.abc import Sequence
from dataclasses import dataclass

from gyre.proxy.normalise import Message
from schemas.calls import ModelCallRecorded


@dataclass(frozen=True, slots=True)
class First:
    """The execution's first call that was not auxiliary."""

    system: str
    tools: bool


class Memory:
    """Threads seen, and who made which tool call."""

    def __init__(self) -> None:
        """Nothing was recorded yet."""
        self.first: First | None = None
        self._threads: dict[str, str] = {}
        self._makers: dict[str, str] = {}

    def learn(self, record: ModelCallRecorded, messages: Sequence[Message], reply: Message, *, tools: bool) -> None:
        """Take in a record: its own messages (a root's are its whole history), its answer, whether it offered tools."""
        self._threads.setdefault(record.thread.rpartition("/")[2], record.thread)
        for call in reply.calls:
            self._makers[call.id] = record.thread
        if self.first is None and record.parent is None and record.kind != "auxiliary":
            self.first = First(system_text(messages), tools)

    def thread(self, own: str) -> str | None:
        """The whole name of a thread by its own id; None if no record of it was seen."""
        return self._threads.get(own)

    def of_history(self, messages: Sequence[Message]) -> str | None:
        """The thread that made the last known tool call of a history; None if it holds none."""
        calls = (call for message in reversed(messages) for call in reversed(message.calls))
        return next((thread for call in calls if (thread := self._makers.get(call.id))), None)


def system_text(messages: Sequence[Message]) -> str:
    """The leading system messages' text."""
    leading: list[str] = []
    for message in messages:
        if message.role != "system":
            break
        leading.append(message.content)
    return "\n".join(leading)
