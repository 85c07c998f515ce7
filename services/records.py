"""Reading back from CALL what it holds of an execution: request records, and what corrects them."""

import contextlib

from bus import subjects
from bus.log import BusPort
from gyre.core.tree import Called

Numbered = tuple[int, Called]
"""An event of CALL and its sequence there."""


async def read_records(bus: BusPort, execution: str, last_sequence: int, after: int = 0) -> list[Numbered]:
    """What was said of an execution's calls after one sequence and up to another, in order; nothing else is."""
    found: list[Numbered] = []
    if last_sequence <= after:
        return found
    async with contextlib.aclosing(bus.calls.read(after, subjects.call(bus.run, execution))) as stream:
        async for stored in stream:
            if stored.sequence > last_sequence:
                break
            events = stored.commit.events if stored.commit else ()
            found += [(stored.sequence, event) for event in events if isinstance(event, Called)]
            if stored.sequence == last_sequence:
                break
    return found


async def last_record(bus: BusPort, execution: str) -> int:
    """Sequence in CALL of what was said last for an execution; 0 for nothing."""
    last = await bus.calls.last(subjects.call(bus.run, execution))
    return last.sequence if last else 0


async def kept_until(bus: BusPort, execution: str, last_sequence: int) -> bool:
    """Whether CALL has an execution's record that was said with this sequence, or will have it.

    Under "laptop" durability a power cut may take it and spare the seal in EV. One server of several may be behind the
    others: what stands in its place, or an end of the log before it, is what tells.
    """
    found = await bus.calls.get(last_sequence)
    if found is not None:
        return found.subject == subjects.call(bus.run, execution)
    return await bus.calls.head() >= last_sequence
