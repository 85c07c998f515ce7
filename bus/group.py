"""Atomic group commit: many callers' commits stored as one batch, synced once.

Members become visible together when the last one commits. Each carries its message id, so that none is stored twice
whichever way it is said again: a batch with one that is there already is refused whole, and then each goes by itself.
"""

import asyncio
from dataclasses import dataclass

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from bus import answers
from bus.errors import Unavailable
from bus.link import Link, LostError

_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Group:
    """(subject, body, message id or "") of each member in order; `deadline` is on the loop's clock."""

    members: list[tuple[str, bytes, str]]
    deadline: float


class SaidBefore(Exception):
    """A member, or all, are in the stream already; of this batch nothing was stored."""


async def commit_group(link: Link, group: Group) -> int:
    """Store all members and return the first one's sequence; the others follow it without a gap.

    Raises:
        SaidBefore: send each by itself, whose answer tells where it is.
        Unavailable: no answer until the deadline; whether it was stored is unknown.
        StreamFull, NoStream, Refused: nothing was stored.
    """
    loop = asyncio.get_running_loop()
    pacing = AsyncRetrying(
        retry=retry_if_exception_type(LostError),
        wait=wait_exponential(multiplier=0.05, max=2.0),
        stop=stop_after_delay(max(0.0, group.deadline - loop.time())),
        reraise=True,
    )
    try:
        async for attempt in pacing:
            with attempt:
                return await _once(link, group)
    except LostError as error:
        raise Unavailable(
            f"subject {group.members[0][0]}: no answer from {link.url} to a batch of {len(group.members)}; {error}"
        ) from error
    raise AssertionError("tenacity ended without an outcome")


async def _once(link: Link, group: Group) -> int:
    said = {subject for subject, _, _ in group.members}
    answer = answers.read((await link.exchange(lambda token: _send(link, group, token), _ANSWER_SECONDS, said)).data)
    if answer.code == answers.DUPLICATE_IN_BATCH:
        raise SaidBefore
    if answer.passing:
        raise LostError(answer.text)
    if not answer.sequence:
        raise answers.failure(group.members[0][0], answer)
    return answer.sequence - len(group.members) + 1


async def _send(link: Link, group: Group, token: int) -> None:
    last = len(group.members)
    batch = link.nc.new_inbox().rpartition(".")[2]
    for place, (subject, body, message_id) in enumerate(group.members, 1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place)}
        if message_id:
            headers["Nats-Msg-Id"] = message_id
        if place < last:
            await link.nc.publish(subject, body, headers=headers)
        else:
            await link.pipeline.send(token, subject, body, {**headers, "Nats-Batch-Commit": "1"})
