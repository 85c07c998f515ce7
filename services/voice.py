"""What a worker says: conditional commits about one execution, patient with a server that is away."""

import logging

from bus.errors import Unavailable
from bus.log import BusPort, Expect
from schemas.envelope import Event
from services.place import Place

LOG = logging.getLogger(__name__)


class Voice:
    """Says events for one process and keeps `as_of` true: never below what it heard or said."""

    def __init__(self, place: Place, bus: BusPort) -> None:
        """Nothing heard yet."""
        self._place, self._bus = place, bus
        self._as_of = 0

    def heard(self, sequence: int) -> None:
        """A message of EV was folded."""
        self._as_of = max(self._as_of, sequence)

    async def say(
        self, entity: tuple[str, ...], events: tuple[Event, ...], correlation: str, causation: int, expect: Expect
    ) -> int:
        """Store one commit and return its sequence, however long the server is away. Raises Conflict, StreamFull."""
        commit = self._place.commit(events, as_of=self._as_of, correlation=correlation, causation=causation)
        subject = self._place.subject(*entity)
        while True:
            try:
                sequence = await self._bus.ev.append(subject, commit, expect)
            except Unavailable as error:
                LOG.warning("%s; still trying", error)  # the same commit again: it cannot be stored twice
                continue
            self.heard(sequence)
            return sequence
