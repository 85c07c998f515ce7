"""The adaptive publisher: pipelined singles below 16 in flight, groups above (design §4 rule 1).

Under `sync_interval: always` the server syncs singles one by one and an atomic batch once, so many callers share one
sync; with the default sync a batch gains nothing, and a group travels by fast ingest, which spares its members'
answers. Conditional commits are always singles: in a batch one conflict would reject all.

Nothing is dropped. What is unanswered is sent again on reconnect, and at a growing interval while connected; repeats
are told apart by `Nats-Msg-Id` or by the condition.
Memory is bounded: beyond 4096 commits or 64 MiB in flight callers wait.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from bus import answers
from bus.budget import Budget
from bus.errors import BusError, Unavailable
from bus.group import Group, SaidBefore, commit_group
from bus.ingest import Ingest
from bus.link import Link

GROUP_FROM = 16
_GROUP_MOST = 500
_GROUP_BYTES = 4 << 20
_SWEEP_SECONDS = 0.25
_RESEND_SECONDS = (2.0, 4.0, 8.0)
_LANES = 2  # fast groups under way: one is prepared while the server stores the other
_APART_SECONDS = 1.0  # how long a group that another speaker broke up keeps the next ones singles
_UNSENT = -1


class WrongSequence(Exception):
    """A condition did not hold when the server looked; `found` as it says, -1 where it does not."""

    def __init__(self, found: int) -> None:
        """Keep the last sequence found."""
        super().__init__(found)
        self.found = found


@dataclass(slots=True, eq=False)
class Pending:
    """A commit whose outcome is not known yet; `said` and `sent` are on the loop's clock."""

    token: int
    subject: str
    body: bytes
    headers: dict[str, str]
    outcome: "asyncio.Future[int]"
    said: float
    sent: float = 0.0
    generation: int = _UNSENT
    tries: int = 0

    def fail(self, error: Exception) -> None:
        """Tell the caller, who may have gone."""
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def succeed(self, sequence: int) -> None:
        """Tell the caller, who may have gone."""
        if not self.outcome.done():
            self.outcome.set_result(sequence)


class Publisher:
    """All appends of one process to one stream.

    Singles have their own wildcard inbox and integer tokens: this is the hottest path of the bus, so it is short.
    """

    def __init__(self, link: Link, grouped: bool) -> None:
        """`grouped`: the server syncs each write, so share them."""
        self._link, self._grouped, self._ingest = link, grouped, Ingest(link)
        self._inbox = link.nc.new_inbox() + "."
        self._tokens = itertools.count(1)
        self._budget = Budget()
        self._singles: dict[int, Pending] = {}
        self._backlog: deque[Pending] = deque()
        self._in_flight = 0
        self._apart_until = 0.0
        self._lanes = asyncio.Semaphore(_LANES)
        self._hurrying: dict[asyncio.Task[None], list[Pending]] = {}
        self._wake, self._sweep_now = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Listen for answers, begin to group and to send again."""
        await self._link.subscribe(self._inbox + "*", self._on_answer)
        await self._ingest.start()
        self._link.watch(self._sweep_now.set)
        self._link.watch_refusals(self._on_refusal)
        jobs: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (self._sweep_for_ever, self._group_for_ever)
        self._tasks = [asyncio.create_task(job()) for job in jobs]

    async def publish(self, subject: str, body: bytes, headers: dict[str, str], *, alone: bool) -> int:
        """Store and return the sequence; `alone`: never in a batch.

        Raises:
            WrongSequence: the condition in the headers does not hold.
            StreamFull, NoStream, Denied, Refused, Unavailable: see `bus.log.Log.append`.
        """
        size = len(body)
        if not self._budget.take_now(size):
            await self._budget.take(size)
        self._in_flight += 1
        token = next(self._tokens)
        pending = Pending(token, subject, body, headers, self._loop.create_future(), self._loop.time())
        try:
            if self._closed:
                raise _closed(pending)
            if alone or self._in_flight < GROUP_FROM:
                self._singles[token] = pending
                await self._send(pending)
            else:
                self._backlog.append(pending)
                self._wake.set()
            return await pending.outcome
        finally:
            self._in_flight -= 1
            self._budget.give(size)
            self._singles.pop(token, None)

    async def close(self) -> None:
        """Fail what still waits: its outcome is unknown."""
        self._closed = True
        self._link.unwatch(self._sweep_now.set)
        self._link.unwatch_refusals(self._on_refusal)
        tasks = (*self._tasks, *self._hurrying)
        hurrying = list(itertools.chain.from_iterable(self._hurrying.values()))  # a lane may not have begun
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pending in (*self._singles.values(), *self._backlog, *hurrying):
            pending.fail(_closed(pending))

    async def _send(self, pending: Pending) -> None:
        """Send, or leave it to the sweep when there is no connection."""
        if not self._link.up.is_set():
            return
        pending.generation = self._link.generation
        pending.sent = self._loop.time() if pending.tries else pending.said
        pending.tries += 1
        try:
            await self._link.nc.publish(pending.subject, pending.body, f"{self._inbox}{pending.token}", pending.headers)
        except nats.errors.MaxPayloadError:
            size = len(pending.body)
            pending.fail(ValueError(f"subject {pending.subject}: {size} bytes are over the server's max_payload"))
        except (nats.errors.Error, OSError):
            pending.generation = _UNSENT

    async def _on_answer(self, message: Msg) -> None:
        """The first final answer counts; a passing one leaves the commit to the sweep."""
        pending = self._singles.get(int(message.subject[len(self._inbox) :]))
        if pending is None:
            return
        answer = answers.read(message.data)
        if answer.sequence:
            pending.succeed(answer.sequence)
        elif answer.code in answers.WRONG_LAST:
            pending.fail(WrongSequence(answers.found_sequence(answer)))
        elif not answer.passing:
            pending.fail(answers.failure(pending.subject, answer))

    def _on_refusal(self, subject: str) -> bool:
        """The server names a subject, not a message: all that wait for one there learn it."""
        refused = [each for each in (*self._singles.values(), *self._backlog) if each.subject.lower() == subject]
        for pending in refused:
            pending.fail(self._link.denied(pending.subject))
        return bool(refused)

    async def _sweep_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._sweep_now.wait()
            self._sweep_now.clear()
            now = self._loop.time()
            for pending in (*self._singles.values(), *self._backlog):
                if now > pending.said + self._link.patience_seconds:
                    pending.fail(self._gave_up(pending))
            for pending in tuple(self._singles.values()):
                if self._is_due(pending, now):
                    await self._send(pending)

    def _is_due(self, pending: Pending, now: float) -> bool:
        if pending.outcome.done() or not self._link.up.is_set():
            return False
        wait = _RESEND_SECONDS[min(pending.tries, len(_RESEND_SECONDS)) - 1]
        return pending.generation != self._link.generation or now - pending.sent > wait

    def _gave_up(self, pending: Pending) -> Unavailable:
        patience = self._link.patience_seconds
        return Unavailable(
            f"subject {pending.subject}: no answer from {self._link.url} in {patience:g} s; "
            "is it down, its disk full, or the run not provisioned?"
        )

    async def _group_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._backlog:
                if self._grouped:
                    members = self._next_members(_GROUP_MOST)
                    await (self._commit if len(members) >= GROUP_FROM else self._apart)(members)
                    continue
                await self._lanes.acquire()
                members = self._next_members(max(GROUP_FROM, self._in_flight // _LANES))
                lane = asyncio.create_task(self._hurry(members))
                self._hurrying[lane] = members
                lane.add_done_callback(self._hurried)

    def _hurried(self, lane: "asyncio.Task[None]") -> None:
        del self._hurrying[lane]
        self._lanes.release()

    def _next_members(self, most: int) -> list[Pending]:
        members: list[Pending] = []
        size = 0
        while self._backlog and len(members) < min(most, _GROUP_MOST) and size < _GROUP_BYTES:
            pending = self._backlog.popleft()
            if not pending.outcome.done():
                members.append(pending)
                size += len(pending.body)
        return members

    async def _apart(self, members: list[Pending]) -> None:
        """Send each as a single, but for those whose callers have gone."""
        waiting = [each for each in members if not each.outcome.done()]
        self._singles |= {each.token: each for each in waiting}  # all at once: nobody is lost while others are sent
        for pending in waiting:
            if not pending.tries:  # the sweep may have been first
                await self._send(pending)

    async def _hurry(self, members: list[Pending]) -> None:
        """Send the members by fast ingest; where that does not tell their sequences, a single each does."""
        first = None
        if len(members) >= GROUP_FROM and self._loop.time() >= self._apart_until:
            bodies = [(pending.subject, pending.body, pending.headers["Nats-Msg-Id"]) for pending in members]
            first = await self._ingest.store(bodies)
            if first is None:
                self._apart_until = self._loop.time() + _APART_SECONDS
        if first is None:
            await self._apart(members)
            return
        for place, pending in enumerate(members):
            pending.succeed(first + place)

    async def _commit(self, members: list[Pending]) -> None:
        """Store the members as one; all of them learn the same fate."""
        bodies = [(pending.subject, pending.body, pending.headers["Nats-Msg-Id"]) for pending in members]
        group = Group(bodies, members[0].said + self._link.patience_seconds)
        try:
            first = await commit_group(self._link, group)
        except SaidBefore:
            await self._apart(members)
        except BusError as error:
            for pending in members:
                pending.fail(error)
        except asyncio.CancelledError:
            for pending in members:
                pending.fail(_closed(pending))
            raise
        else:
            for place, pending in enumerate(members):
                pending.succeed(first + place)


def _closed(pending: Pending) -> Unavailable:
    return Unavailable(f"subject {pending.subject}: the bus was closed before the server answered")
