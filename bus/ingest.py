"""Fast ingest: many callers' commits on their way together, with one answer for all (nats-server 2.14 and later).

Unlike an atomic batch nothing is staged: each message is stored as it comes, and only the last one is answered. So one
answer is read instead of hundreds. It tells the last sequence; the first message goes ahead as an ordinary one and
tells its own. Where the two are as far apart as the members are many, nobody spoke in between and every sequence is
known. Anything else (a lost connection, a full stream, another speaker) is `None`: not a failure, but "ask one by
one", which costs a duplicate answer each and needs no second way of telling errors apart.
"""

import asyncio
import itertools

import nats.errors
from nats.aio.msg import Msg

from bus import answers
from bus.answers import Answer
from bus.link import Link

_ANSWER_SECONDS = 5.0
_START, _APPEND, _COMMIT = 0, 1, 2
_FLOW = 1_000_000  # members between answers in between: more than a group has, since only the last one tells anything
_SLICE = 64  # members that go on their way together: the server stores them while the next ones are encoded
_FIRST, _LAST = "first", "last"

Member = tuple[str, bytes, str]
"""Subject, body, message id."""


class Ingest:
    """The fast groups of one process; a few at a time are on their way."""

    def __init__(self, link: Link) -> None:
        """`start` before `store`."""
        self._link = link
        self._inbox = link.nc.new_inbox()
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._sending = asyncio.Lock()

    async def start(self) -> None:
        """Listen for answers."""
        await self._link.subscribe(self._inbox + ".>", self._on_answer)

    async def store(self, members: list[Member]) -> int | None:
        """Send at least three members; the first one's sequence, the others follow it without a gap. None: unknown.

        With None, any of them may be stored: send each again under its message id.
        """
        if not self._link.up.is_set():
            return None
        loop = asyncio.get_running_loop()
        group = str(next(self._numbers))
        outcomes = [self._expect(loop, group, place) for place in (_FIRST, _LAST)]

        def lost() -> None:
            outcomes[1].cancel()

        self._link.watch(lost)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._send(group, members)
                first, last = [(await each).sequence for each in outcomes]
        except (TimeoutError, nats.errors.Error, OSError):
            return None
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) and current.cancelling():
                raise
            return None  # the connection was lost
        finally:
            self._link.unwatch(lost)
            for place in (_FIRST, _LAST):
                self._waiting.pop(f"{group}.{place}", None)
        return first if first and last - first == len(members) - 1 else None

    def _expect(self, loop: asyncio.AbstractEventLoop, group: str, place: str) -> "asyncio.Future[Answer]":
        outcome: asyncio.Future[Answer] = loop.create_future()
        self._waiting[f"{group}.{place}"] = outcome
        return outcome

    async def _send(self, group: str, members: list[Member]) -> None:
        """One group at a time, so that they do not lie between one another in the log."""
        async with self._sending:
            await self._publish(group, members)

    async def _publish(self, group: str, members: list[Member]) -> None:
        publish = self._link.nc.publish
        subject, body, message_id = members[0]
        await publish(subject, body, f"{self._inbox}.{group}.{_FIRST}", {"Nats-Msg-Id": message_id})
        head, last = f"{self._inbox}.{group}.{_FLOW}.fail.", len(members) - 1
        for place, (subject, body, message_id) in enumerate(members[1:], 1):
            step = _COMMIT if place == last else _START if place == 1 else _APPEND
            await publish(subject, body, f"{head}{place}.{step}.$FI", {"Nats-Msg-Id": message_id})
            if place % _SLICE == 0:
                await asyncio.sleep(0)

    async def _on_answer(self, message: Msg) -> None:
        """Of a group: its first member's answer, its last one's, or an error, which ends it."""
        group, _, rest = message.subject[len(self._inbox) + 1 :].partition(".")
        answer = answers.read(message.data)
        place = _FIRST if rest == _FIRST else _LAST
        outcome = self._waiting.get(f"{group}.{place}")
        between = place == _LAST and not answer.code and not rest.endswith(f".{_COMMIT}.$FI")
        if outcome is not None and not outcome.done() and not between:
            outcome.set_result(answer)
