"""Saying things on a run's log as one process of one service."""

import asyncio
import logging
import secrets
import time

from bus import subjects
from bus.errors import Unavailable
from bus.log import BusPort, Expect, Log
from gyre.core.tree import Called
from schemas.envelope import Commit, Event, Producer

_PAUSE_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


class Speaker:
    """Makes commits and says them; while the server is away it waits, since a repeated commit is stored once."""

    def __init__(self, bus: BusPort) -> None:
        """Speak as this bus's service and instance."""
        self._bus = bus
        self._own = 0

    def subject(self, execution: str) -> str:
        """Where this service speaks about an execution."""
        return subjects.ev(self._bus.run, self._bus.service, "execution", execution)

    async def say(self, execution: str, event: Event, as_of: int, causation: int = 0, expect: int | None = None) -> int:
        """Say an event about an execution in EV, if nothing came after `expect` on its subject; returns its sequence.

        Raises `Conflict` and `StreamFull`.
        """
        subject = self.subject(execution)
        condition = None if expect is None else Expect(subject, expect)
        commit = self._commit(execution, event, max(as_of, self._own), causation)
        sequence = await self._append(self._bus.ev, subject, commit, condition)
        self._own = max(self._own, sequence)
        return sequence

    async def record(self, event: Called, as_of: int, expect: int | None = None) -> int:
        """Say something in CALL, if nothing came after `expect` on its subject; returns its sequence there.

        Raises `Conflict` and `StreamFull`.
        """
        subject = subjects.call(self._bus.run, event.execution)
        condition = None if expect is None else Expect(subject, expect)
        return await self._append(self._bus.calls, subject, self._commit(event.execution, event, as_of, 0), condition)

    def _commit(self, execution: str, event: Event, as_of: int, causation: int) -> Commit:
        return Commit(
            run=self._bus.run,
            producer=Producer(service=self._bus.service, instance=self._bus.instance),
            commit=secrets.token_hex(8),
            causation=causation,
            as_of=as_of,
            correlation=execution,
            time=time.time_ns(),
            events=(event,),
        )

    async def _append(self, log: Log, subject: str, commit: Commit, expect: Expect | None) -> int:
        while True:
            try:
                return await log.append(subject, commit, expect)
            except Unavailable as error:
                _LOG.warning("%s: waiting for the log: %s", subject, error)
                await asyncio.sleep(_PAUSE_SECONDS)
