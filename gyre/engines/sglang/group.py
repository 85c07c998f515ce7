"""New weights by SGLang's distributed group: the server joins whoever sends, and receives its broadcasts (0.5.23).

Rank 0 sends; the server's ranks follow. What the server does otherwise than one would wish, and what is done about it:

- It has no limit of its own below half an hour for joining: whoever waits longer than a sender takes starts it anew.
- It changes weights bucket by bucket: whatever fails after the first leaves half of them, which nobody may be served.
- A session that its owner left open refuses the next one: it is closed first.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from pydantic import Field

from gyre.engines.port import EngineError, EngineFailed, EngineUnavailable, WeightsRefused
from gyre.engines.sglang.client import Client
from schemas.base import Model

GROUP_SECONDS = 120.0
"""For joining, and for each bucket; a sender gives up before."""
log = logging.getLogger("gyre")


class Bucket(Model):
    """Tensors that one broadcast carries, end to end as bytes."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    """As torch calls them: float32, bfloat16, ..."""
    shapes: tuple[tuple[int, ...], ...]


class Group(Model):
    """Where a server joins, and what it receives there."""

    name: str
    """No other group of this server has it."""
    address: str
    port: int
    """Of the TCPStore at rank 0."""
    backend: str
    buckets: tuple[Bucket, ...] = Field(min_length=1)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of all that is received."""
        pairs = (pair for each in self.buckets for pair in zip(each.names, each.shapes, strict=True))
        return dict(pairs)


Meet = Callable[[int], Awaitable[Group]]
"""Have a sender wait for so many ranks. Raises EngineUnavailable where there is none."""


class HalfLoaded(EngineFailed):
    """Some weights may be new, others old: nothing may be served before all were loaded."""


class ServerStuck(HalfLoaded):
    """The server waits for a sender that is gone, and hears nothing: it has to be started anew."""


async def receive(client: Client, meet: Meet, version: int) -> None:
    """Have the server join, receive everything, and leave.

    Raises:
        EngineUnavailable, WeightsRefused: the group did not come about; the weights are the old ones.
        HalfLoaded, ServerStuck: they are not.
    """
    ranks = await client.ranks()
    group = await meet(ranks)
    where = {"master_address": group.address, "master_port": group.port, "group_name": group.name}
    join = {**where, "rank_offset": 1, "world_size": 1 + ranks, "backend": group.backend}
    try:
        async with asyncio.timeout(GROUP_SECONDS):
            await client.join_group(join)
    except TimeoutError:
        raise ServerStuck(f"SGLang at {client.url}: group {group.name} did not come about in time") from None
    await _update(client, group, version)
    with contextlib.suppress(EngineError, TimeoutError):  # it is of no more use, whatever holds it
        async with asyncio.timeout(GROUP_SECONDS):
            await client.leave_group(group.name)


async def _update(client: Client, group: Group, version: int) -> None:
    try:
        await _begin(client)
        for bucket in group.buckets:
            async with asyncio.timeout(GROUP_SECONDS):
                await client.load_from_group(_body(group, bucket, version))
        await client.end_update()
    except TimeoutError:
        raise ServerStuck(f"SGLang at {client.url}: nothing came by group {group.name}") from None
    except (WeightsRefused, EngineUnavailable) as error:
        await _leave_half(client, group)
        raise HalfLoaded(f"group {group.name}: {error}") from error


async def _leave_half(client: Client, group: Group) -> None:
    """What a server that still hears should be rid of before the next update."""
    for step in (client.end_update, partial(client.leave_group, group.name)):
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(GROUP_SECONDS):
                await step()


async def _begin(client: Client) -> None:
    try:
        await client.begin_update()
    except WeightsRefused as error:
        log.warning("%s; it is ended, and begun anew", error)
        await client.end_update()
        await client.begin_update()


def _body(group: Group, bucket: Bucket, version: int) -> dict[str, object]:
    """The last bucket makes it the new version, and forgets what was computed under the old one."""
    last = bucket is group.buckets[-1]
    body: dict[str, object] = {
        "names": list(bucket.names),
        "dtypes": list(bucket.dtypes),
        "shapes": [list(each) for each in bucket.shapes],
        "group_name": group.name,
        "load_format": "flattened_bucket",
        "flush_cache": last,
    }
    return body | ({"weight_version": str(version)} if last else {})
