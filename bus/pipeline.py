"""Requests without waiting for each: one wildcard inbox, an integer token a request, a callback an answer.

nats-py's own `request` makes an inbox name, a future and a timer for each message, and `publish_async` never resolves
on a server error; this is the same idea over its public calls at about a third of the time.
"""

import itertools
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg

OnAnswer = Callable[[Msg], None]


class Pipeline:
    """The requests of one connection that have not been answered yet."""

    def __init__(self, nc: Client) -> None:
        """Whoever owns the connection subscribes `on_answer` to `filter`."""
        self._nc = nc
        self._inbox = nc.new_inbox() + "."
        self.filter = self._inbox + "*"
        self._waiting: dict[int, OnAnswer] = {}
        self._tokens = itertools.count(1)

    def expect(self, on_answer: OnAnswer) -> int:
        """A new token whose first answer goes to this callback (which must not raise)."""
        token = next(self._tokens)
        self._waiting[token] = on_answer
        return token

    def forget(self, token: int) -> None:
        """Ignore whatever still answers this token."""
        self._waiting.pop(token, None)

    async def send(self, token: int, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish with this token's reply address; sending again under the same token is allowed."""
        await self._nc.publish(subject, body, self._inbox + str(token), headers)

    async def on_answer(self, message: Msg) -> None:
        """Hand an answer to who waits for it."""
        on_answer = self._waiting.pop(int(message.subject[len(self._inbox) :]), None)
        if on_answer is not None:
            on_answer(message)
