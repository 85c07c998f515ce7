"""Reading an execution's request records back from CALL."""

import contextlib

from bus import subjects
from bus.log import BusPort
from schemas.calls import ModelCallRecorded

Numbered = tuple[int, ModelCallRecorded]
"""A record and its sequence in CALL."""


async def read_records(bus: BusPort, execution: str, last_sequence: int) -> list[Numbered]:
    """All records of an execution up to this sequence (0: none), in order; what is no record is passed over."""
    found: list[Numbered] = []
    if last_sequence == 0:
        return found
    async with contextlib.aclosing(bus.calls.read(0, subjects.call(bus.run, execution))) as stream:
        async for stored in stream:
            if stored.sequence > last_sequence:
                break
            events = stored.commit.events if stored.commit else ()
            found += [(stored.sequence, event) for event in events if isinstance(event, ModelCallRecorded)]
            if stored.sequence == last_sequence:
                break
    return found


async def last_record(bus: BusPort, execution: str) -> int:
    """Sequence in CALL of what was said last for an execution; 0 for nothing."""
    last = await bus.calls.last(subjects.call(bus.run, execution))
    return last.sequence if last else 0
