"""Ordered reading that never ends: sessions are renewed, nothing is given twice, nothing is passed over.

Whatever looks wrong ends a session, and the next one starts after the last message given.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

import nats.errors

from bus.errors import Unavailable
from bus.link import Link
from bus.session import Raw, Session

_RENEW_SECONDS = (0.02, 0.1, 0.5, 1.0)


async def chunks(
    link: Link,
    stream: str,
    after: int,
    filter: str,  # noqa: A002
    session_of: Callable[[Link, str, int, str], Session] = Session,
) -> AsyncGenerator[list[Raw], None]:
    """Everything stored after a sequence, a few messages at a time; see `bus.log.Log.read`.

    A gap inside a session means that the session lost a message. A gap that a new session begins with means that the
    stream lost a sequence: then the log itself is damaged (`LogDamaged`), and reading on would make a wrong state.
    """
    failures = 0
    while True:
        session = session_of(link, stream, after, filter)
        try:
            await session.open()
            while chunk := await session.next():
                failures, after = 0, chunk[-1][0]
                yield chunk
        except (Unavailable, nats.errors.Error, OSError):
            failures += 1
        finally:
            await session.close()
        await asyncio.sleep(_RENEW_SECONDS[min(failures, len(_RENEW_SECONDS) - 1)])
