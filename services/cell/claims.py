"""A cell's micro-steps from their claim to their completion: several in hand where its trainer is a pipeline.

A claim is in the log before its work begins, and owned by what the log says from then on: the queue's entry is
acknowledged at once, whoever dies. A micro-step is completed when its gradient lies in the accumulator at every stage,
which in a filled pipeline is while later ones are under way; a cell drains it once the stream is closed.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bus import subjects
from bus.errors import Conflict
from bus.log import Delivery, Expect, Stored
from gyre.core import ledger
from gyre.errors import GyreError
from gyre.process import give_back
from gyre.trainers.port import AccumulatorSpoilt, MicroStepRefused, Trainer
from gyre.trainers.stream import Ended, Stream, stream_of
from schemas.envelope import Event
from schemas.training import MicroStepClaimed, MicroStepCompleted, MicroStepEnqueued, MicroStepReissued
from services.cell.desk import Desk
from services.exits import Hopeless

log = logging.getLogger("gyre")
CLAIM_WAIT_SECONDS = 0.3
_UNREADABLE_SECONDS = 1.0
_UNREADABLE_TRIES = 30
"""Of one entry, at one cell, while nothing but it is waited for: what is late, or legible to another, has gone on."""
Drop = Callable[[int, str, bool], Awaitable[None]]
"""Discards the contribution to a step, and says why, and whether what is in hand broke."""


class UnreadableWork(GyreError):
    """What the log or a blob holds of a micro-step cannot be read here, or not yet.

    Args:
        why: in one line.
        micro_step: which one it is a reissue of, where that is known.
    """

    def __init__(self, why: str, micro_step: int | None = None) -> None:
        super().__init__(why)
        self.micro_step = micro_step


class Claims:
    """What one cell has claimed."""

    def __init__(self, desk: Desk, trainer: Trainer, drop: Drop) -> None:
        """Nothing is claimed."""
        self._desk, self._trainer, self._drop = desk, trainer, drop
        self._queue = desk.bus.queue("step")
        self.forget()

    def forget(self) -> None:
        """The trainer has let go of everything."""
        self._stream: Stream = stream_of(self._trainer)
        self._works: dict[int, MicroStepEnqueued] = {}
        self._busy = 0.0  # seconds of work that belong to no completion yet
        self._since: float | None = None  # when the trainer began to be busy
        self._unread: Counter[int] = Counter()  # sequence of an entry -> how often it was missed and not read here
        self._desk.held = replace(self._desk.held, in_hand={}, moving=False)

    async def claim(self) -> None:
        """Claim the next micro-step of the queue, if one comes, and begin it; what ends meanwhile need not wait.

        Raises:
            Hopeless: one can never be read.
        """
        desk = self._desk
        deliveries = await self._queue.pull(1, 0.0 if desk.held.moving else CLAIM_WAIT_SECONDS)
        if not deliveries and desk.held.moving:
            await self.advance()
        for delivery in deliveries:
            await desk.heard(delivery.stored.sequence)
            if not ledger.may_claim(desk.view.ledger, desk.index, desk.place.instance):
                await delivery.nak(0.1)
                return
            try:
                work = await self._work_of(delivery)
            except UnreadableWork as unreadable:
                await self._give_back(delivery, unreadable)
                return
            claim = None if work is None else await self._claimed(delivery, work)
            await delivery.ack()
            if work is not None and claim is not None:
                await self._begin(work, claim)

    async def advance(self) -> None:
        """Complete what ends without further input."""
        await self._collect(self._stream.advance)

    async def drain(self) -> None:
        """Complete everything in hand."""
        await self._collect(self._stream.drain)

    async def _give_back(self, delivery: Delivery, unreadable: UnreadableWork) -> None:
        """Acknowledged, nobody would ever come for it again; what nobody can read must not be tried for ever either.

        A message that no model accepts is no micro-step: once the closed stream is whole without it, it is over.
        """
        sequence, state = delivery.stored.sequence, self._desk.view.ledger
        slot = state.slots.get(unreadable.micro_step) if unreadable.micro_step is not None else None
        if slot is None and len(state.slots) == state.total:
            await delivery.term(f"no micro-step of step {state.step}: {unreadable}")
            return
        if sequence not in self._unread:
            log.warning("work of the queue is given back: %s", unreadable)
        missed = slot.status == "ready" if slot is not None else state.total is not None
        busy = any(each.status == "claimed" for each in state.slots.values())
        self._unread[sequence] += missed and not busy
        await delivery.nak(_UNREADABLE_SECONDS)
        if self._unread[sequence] >= _UNREADABLE_TRIES:
            raise Hopeless(f"step {state.step}: a micro-step cannot be read: {unreadable}") from unreadable

    async def _work_of(self, delivery: Delivery) -> MicroStepEnqueued | None:
        """The micro-step's rows, if it is of this step; what is of another one is over. Raises UnreadableWork."""
        step = self._desk.view.ledger.step
        event = _said(delivery.stored, delivery.stored.sequence)
        if isinstance(event, MicroStepReissued) and event.step == step:
            event = _said(await self._desk.bus.ev.get(event.enqueued), event.enqueued, event.micro_step)
        return event if isinstance(event, MicroStepEnqueued) and event.step == step else None

    async def _claimed(self, delivery: Delivery, work: MicroStepEnqueued) -> int | None:
        """The claim; None if it is somebody else's, or was reissued since: its own entry comes.

        One that its claimant was lost with may be to blame: it is begun when nothing else is in hand, which would
        seem to be to blame too.
        """
        desk = self._desk
        if self._suspect(work):
            await self.drain()
        claimed = MicroStepClaimed(
            step=work.step, micro_step=work.micro_step, cell=desk.index, instance=desk.place.instance
        )
        try:
            return await desk.say(_entity(work), claimed, expect=Expect(self._shared(work), delivery.stored.sequence))
        except Conflict:
            return None

    async def _begin(self, work: MicroStepEnqueued, claim: int) -> None:
        desk = self._desk
        self._works[work.micro_step] = work
        desk.held = replace(desk.held, in_hand=desk.held.in_hand | {work.micro_step: claim})
        if self._since is None:
            self._since = time.monotonic()
        try:
            await asyncio.to_thread(self._stream.begin, work)
        except (MicroStepRefused, AccumulatorSpoilt) as error:
            await self._drop(work.step, str(error), True)
            return
        desk.held = replace(desk.held, moving=True)
        if self._suspect(work):
            await self.drain()
        elif len(self._works) >= self._stream.depth:
            await self.advance()

    def _suspect(self, work: MicroStepEnqueued) -> bool:
        slot = self._desk.view.ledger.slots.get(work.micro_step)
        return slot is not None and slot.failures > 0

    async def _collect(self, wait: Callable[[], tuple[Ended, ...]]) -> None:
        desk = self._desk
        began = self._since or time.monotonic()
        try:
            ended = await asyncio.to_thread(wait)
        except (MicroStepRefused, AccumulatorSpoilt) as error:
            await self._drop(desk.held.step, str(error), True)
            return
        finally:
            await asyncio.to_thread(give_back)
        now = time.monotonic()
        self._busy += now - began
        self._since = now if self._stream.moving else None
        desk.held = replace(desk.held, moving=self._stream.moving)
        for left, each in zip(range(len(ended), 0, -1), ended, strict=True):
            if not await self._complete(each, self._busy / left):
                return

    async def _complete(self, ended: Ended, seconds: float) -> bool:
        """Say it, unless the claim is another's by now: then all that was accumulated is dropped."""
        desk = self._desk
        work, claim = self._works.pop(ended.micro_step), desk.held.in_hand[ended.micro_step]
        self._busy -= seconds
        completed = MicroStepCompleted(
            step=work.step,
            micro_step=work.micro_step,
            cell=desk.index,
            instance=desk.place.instance,
            claim=claim,
            stats=ended.found.stats,
            seconds=seconds,
            passage=self._stream.passage,
        )
        try:
            await desk.say(_entity(work), *ended.found.measured, completed, expect=Expect(self._shared(work), claim))
        except Conflict:
            await self._drop(work.step, f"micro-step {work.micro_step}: completed after it was reissued", False)
            return False
        held = desk.held
        in_hand = {key: value for key, value in held.in_hand.items() if key != work.micro_step}
        accumulated = held.accumulated | ({work.micro_step: claim} if work.kind == "train" else {})
        desk.held = replace(held, in_hand=in_hand, accumulated=accumulated)
        return True

    def _shared(self, work: MicroStepEnqueued) -> str:
        return subjects.micro_step(self._desk.place.run, work.step, work.micro_step)


def _said(stored: Stored | None, sequence: int, micro_step: int | None = None) -> Event:
    if stored is None or stored.commit is None:
        why = stored.reason if stored else "it is not there"
        raise UnreadableWork(f"sequence {sequence}: {why}", micro_step)
    return stored.commit.events[0]


def _entity(work: MicroStepEnqueued) -> tuple[str | int, ...]:
    return ("step", work.step, work.micro_step)
