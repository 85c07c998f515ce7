"""Reading by somebody else's program: one user, one consumer of its name in each log, made for it by one who may.

The user may ask for its next message and nothing else, so that each session's consumer is made by the side that holds
the `reader`'s login (`grant`), at the request of the side that reads (`read`). What the reader holds in memory is
bounded by what it asked for; a server keeps nothing for one that is slow.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from bus import codec, reader, streams
from bus.blobs import Blobs
from bus.errors import Unavailable
from bus.link import Link
from bus.log import Stored
from bus.session import Session
from bus.workqueue import decode
from schemas.speakers import Stream

Give = Callable[[int], Awaitable[None]]
"""Has this reader's consumer made anew, to begin after a sequence."""

_IDLE_SECONDS = 60.0
_KEPT_SECONDS = 3600.0
_NOT_FOUND = 10014


async def grant(
    link: Link,
    stream: str,
    user: str,
    after: int,
    filter: str = "",  # noqa: A002
    *,
    kept: bool = False,
) -> None:
    """Make the consumer of an attached user anew; `kept`: it outlives a server that ends, and an hour of silence.

    Raises `Unavailable`, `Denied`.
    """
    await revoke(link, stream, user)
    config: dict[str, object] = {
        "name": user,
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "replay_policy": "instant",
        "inactive_threshold": int((_KEPT_SECONDS if kept else _IDLE_SECONDS) * 1e9),
    }
    config |= {"durable_name": user} if kept else {"mem_storage": True}
    config |= {"filter_subject": filter} if filter else {}
    call = f"CONSUMER.CREATE.{stream}.{user}" + (f".{filter}" if filter else "")
    answer = await link.api(call, {"stream_name": stream, "config": config})
    if "error" in answer:
        raise Unavailable(f"stream {stream}: no consumer for {user} ({answer['error']['description']})")


async def revoke(link: Link, stream: str, user: str) -> None:
    """Drop the consumer of an attached user, if there is one. Raises `Unavailable`, `Denied`."""
    error = (await link.api(f"CONSUMER.DELETE.{stream}.{user}")).get("error")
    if error and error.get("err_code") != _NOT_FOUND:
        raise Unavailable(f"stream {stream}: the consumer of {user} cannot be dropped ({error['description']})")


async def read(
    link: Link,
    blobs: Blobs,
    stream: str,
    after: int,
    filter: str,  # noqa: A002
    user: str,
    give: Give,
) -> AsyncGenerator[list[Stored], None]:
    """Everything stored after a sequence, in order and each once, a few messages at a time, then the live tail.

    Raises `NoStream`, `LogDamaged`, `Denied`.
    """
    session_of = partial(_GivenSession, user, give)
    async with contextlib.aclosing(reader.chunks(link, stream, after, filter, session_of)) as chunks:
        async for chunk in chunks:
            yield [await decode(*raw, blobs) if codec.is_stub(raw[2]) else codec.decode(*raw, blobs) for raw in chunk]


def name_of(run: str, stream: Stream) -> str:
    """Name of one of a run's logs on the server."""
    return streams.ev_stream(run) if stream == "EV" else streams.call_stream(run)


class _GivenSession(Session):
    """A session on a consumer that somebody else makes and drops."""

    def __init__(self, user: str, give: Give, link: Link, stream: str, after: int, filter: str) -> None:  # noqa: A002
        super().__init__(link, stream, after, filter, user)
        self._give = give

    async def _make_consumer(self) -> None:
        await self._give(self._after)

    async def _drop_consumer(self) -> None:
        """Its maker does."""
