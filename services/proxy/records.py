"""What a proxy says in CALL: records of calls, and what became of their answers, one after the other per execution.

Each is said on the condition that nothing came after what this proxy knows of the execution. Of two proxies that have
it at once, one is therefore heard: the other one's call is refused, and it reads CALL again before it goes on. What
became of an answer is a word about what is in CALL already: it is said in any case.
"""

import asyncio
import logging

from bus.errors import Conflict, StreamFull
from bus.log import BusPort
from gyre.core.tree import Called
from gyre.proxy.errors import EngineTrouble
from schemas.calls import DeliveryCorrected, ModelCallRecorded
from services.proxy.seat import Seat
from services.proxy.world import World
from services.records import last_record, read_records
from services.speaker import Speaker

_LOG = logging.getLogger(__name__)


class Overtaken(EngineTrouble):
    """Another proxy recorded calls of this execution: the seat is out of date."""


class Records:
    """Writes CALL for all seats."""

    def __init__(self, bus: BusPort, world: World, speaker: Speaker) -> None:
        """`world` tells how much of EV was known when something was said."""
        self._bus, self._world, self._speaker = bus, world, speaker

    async def keep(self, seat: Seat, record: ModelCallRecorded) -> None:
        """Say a record, and take it in: the answers that it goes on from did arrive.

        Raises:
            Overtaken, StreamFull, OSError: it is not in CALL.
        """
        async with seat.turn:
            arrived = seat.take(await self._said(seat, record), record)
        for call in sorted(arrived):
            self.settle(seat, call)

    def settle(self, seat: Seat, call: str) -> None:
        """Say what became of a recorded answer, where CALL has it otherwise; without waiting for it."""
        if not self._true(seat, call):
            task = asyncio.create_task(self._correct(seat, call))
            seat.telling.add(task)
            task.add_done_callback(seat.telling.discard)

    async def _correct(self, seat: Seat, call: str) -> None:
        """It may have changed again by the time that it is said."""
        async with seat.turn:
            if self._true(seat, call):
                return
            event = DeliveryCorrected(
                execution=seat.session.tree.execution, call=call, delivered=call not in seat.unconfirmed
            )
            try:
                seat.take(await self._said(seat, event), event)
            except Overtaken:
                await self._speaker.record(event, self._world.sequence)
            except (StreamFull, OSError) as error:
                _LOG.error("call %s: what became of its answer cannot be said: %s", call, error)

    def _true(self, seat: Seat, call: str) -> bool:
        """Whether CALL has it as it is; of a call that is no node nobody asks."""
        node = seat.session.tree.nodes.get(call)
        return node is None or node.delivered == (call not in seat.unconfirmed)

    async def _said(self, seat: Seat, event: Called) -> int:
        while True:
            try:
                return await self._speaker.record(event, self._world.sequence, expect=seat.last)
            except Conflict:
                await self._hear(seat, event)

    async def _hear(self, seat: Seat, event: Called) -> None:
        """Take in what another proxy said of answers. Raises Overtaken where it recorded calls."""
        execution = seat.session.tree.execution
        for sequence, said in await read_records(
            self._bus, execution, await last_record(self._bus, execution), seat.last
        ):
            if isinstance(said, ModelCallRecorded):
                raise Overtaken(f"call {event.call}: another proxy answers for execution {execution}; ask again")
            seat.take(sequence, said)
