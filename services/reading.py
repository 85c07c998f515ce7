"""Reading a log under several filters up to where it is now, and no further."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from bus import subjects
from bus.log import ReadLog, Stored


async def heard(
    log: ReadLog, filters: tuple[str, ...] = (), after: int = 0, until: int | None = None
) -> AsyncGenerator[Stored, None]:
    """What the log holds now (or up to `until`) under any of several filters that do not overlap (() for all)."""
    head = await log.head()
    last = head if until is None else min(until, head)
    end = await log.get(last) if after < last else None
    if end is None:
        return
    # The last message is asked for too, whatever it is about: a log that goes on does not say that it was passed.
    wanted = filters if subjects.under(filters, end.subject) else (*filters, end.subject)
    async with aclosing(log.read(after, *wanted)) as stream:
        async for stored in stream:
            if stored.sequence <= last and subjects.under(filters, stored.subject):
                yield stored
            if stored.sequence >= last:
                return
