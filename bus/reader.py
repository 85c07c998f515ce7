"""Ordered reading that never ends: sessions are renewed, gaps are noticed, nothing is given twice.

Without a filter the stream's sequences must be consecutive; with one, the consumer's own must be. Whatever does not fit
ends the session, and the next one starts after the last message given. A gap that a new session shows again is not a
lost message but a lost sequence: then the log itself is damaged, and reading on would make a wrong state.
"""

import asyncio
from collections.abc import AsyncIterator

import nats.errors
from nats.aio.msg import Msg

from bus.errors import LogDamaged, Unavailable
from bus.link import Link
from bus.session import Session

_RENEW_SECONDS = (0.02, 0.1, 0.5, 1.0)
_V1_TOKENS = 9


async def read(link: Link, stream: str, after: int, filter: str) -> AsyncIterator[tuple[int, str, bytes]]:  # noqa: A002
    """(sequence, subject, stored bytes) of everything after a sequence; see `bus.log.Log.read`."""
    position, failures = after, 0
    while True:
        session = Session(link, stream, position, filter)
        try:
            await session.open()
            expected = 1
            while await session.more():
                failures = 0
                messages, session.waiting = session.waiting, type(session.waiting)()
                for place, message in enumerate(messages, 1):
                    sequence, delivered = _sequences(message)
                    if delivered != expected or (not filter and sequence != position + 1):
                        _check_gap(stream, position, sequence, fresh=expected == 1 and delivered == 1)
                        session.over = True
                        break
                    position, expected = sequence, expected + 1
                    yield sequence, message.subject, message.data
                    if place % 64 == 0 or place == len(messages):
                        await session.taken(64 if place % 64 == 0 else place % 64)
                if session.over:
                    break
        except (Unavailable, nats.errors.Error, OSError):
            failures += 1
        finally:
            await session.close()
        await asyncio.sleep(_RENEW_SECONDS[min(failures, len(_RENEW_SECONDS) - 1)])


def _check_gap(stream: str, position: int, found: int, *, fresh: bool) -> None:
    if fresh and found > position + 1:
        raise LogDamaged(
            f"stream {stream}: sequence {position + 1} is missing, the next one stored is {found}; restore the store"
        )


def _sequences(message: Msg) -> tuple[int, int]:
    """(stream, consumer) sequence from the reply subject; long forms are left to nats-py."""
    tokens = message.reply.split(".")
    if len(tokens) == _V1_TOKENS:
        return int(tokens[5]), int(tokens[6])
    pair = message.metadata.sequence
    return pair.stream, pair.consumer
