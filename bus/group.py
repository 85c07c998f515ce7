"""Atomic group commit: many callers' commits stored as one batch, synced once.

Members become visible together when the last one commits. Only the first carries a message id: since a batch is stored
whole or not at all, "duplicate" on a repeat means that all of it is there, and asking for the first member's sequence
tells where.
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
    """(subject, body) of each member in order; `message_id` is the first one's; `deadline` is on the loop's clock."""

    message_id: str
    members: list[tuple[str, bytes]]
    deadline: float


async def commit_group(link: Link, group: Group) -> int:
    """Store all members and return the first one's sequence; the others follow it without a gap.

    Raises:
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
    said = {subject for subject, _ in group.members}
    answer = answers.read((await link.exchange(lambda token: _send(link, group, token), _ANSWER_SECONDS, said)).data)
    if answer.code == answers.DUPLICATE_IN_BATCH:
        answer = answers.read((await link.exchange(lambda token: _ask_again(link, group, token), _ANSWER_SECONDS)).data)
        if answer.sequence:
            return answer.sequence
    if answer.passing:
        raise LostError(answer.text)
    if not answer.sequence:
        raise answers.failure(group.members[0][0], answer)
    return answer.sequence - len(group.members) + 1


async def _send(link: Link, group: Group, token: int) -> None:
    last = len(group.members)
    batch = link.nc.new_inbox().rpartition(".")[2]
    for place, (subject, body) in enumerate(group.members, 1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place)}
        if place == 1:
            headers["Nats-Msg-Id"] = group.message_id
        if place < last:
            await link.nc.publish(subject, body, headers=headers)
        else:
            await link.pipeline.send(token, subject, body, {**headers, "Nats-Batch-Commit": "1"})


async def _ask_again(link: Link, group: Group, token: int) -> None:
    subject, body = group.members[0]
    await link.pipeline.send(token, subject, body, {"Nats-Msg-Id": group.message_id})
