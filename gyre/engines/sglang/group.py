"""New weights by SGLang's distributed group: the server joins whoever sends, and receives its broadcasts (0.5.23).

Rank 0 sends; the server's ranks follow. The server has no limit of its own below half an hour for joining: whoever
waits longer than a sender takes starts it anew.
"""

from collections.abc import Awaitable, Callable

from pydantic import Field

from gyre.engines.port import EngineError
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.files import Shapes, check_shapes
from gyre.engines.sglang.session import Bucket, ServerStuck, marks, quietly, session, within
from schemas.base import Model


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


async def receive(meet: Meet, client: Client, model: Shapes, version: int) -> None:
    """Have the server join, receive everything, and leave: a `Send` once it knows whom to meet."""
    ranks = await client.ranks()
    group = await meet(ranks)
    check_shapes(group.shapes, model)  # before the server joins: it checks late or not at all
    where = {"master_address": group.address, "master_port": group.port, "group_name": group.name}
    join = {**where, "rank_offset": 1, "world_size": 1 + ranks, "backend": group.backend}
    try:
        await within(client.join_group(join))
    except TimeoutError:
        raise ServerStuck(f"SGLang at {client.url}: group {group.name} did not come about in time") from None
    try:
        async with session(client, f"group {group.name}"):
            for bucket in group.buckets:
                await within(client.load_from_group(_body(group, bucket, version)))
    except ServerStuck:
        raise  # it hears nothing
    except EngineError:
        await quietly(client.leave_group(group.name))
        raise
    await quietly(client.leave_group(group.name))


def _body(group: Group, bucket: Bucket, version: int) -> dict[str, object]:
    return {
        "names": list(bucket.names),
        "dtypes": list(bucket.dtypes),
        "shapes": [list(each) for each in bucket.shapes],
        "group_name": group.name,
        "load_format": "flattened_bucket",
        **marks(version, last=bucket is group.buckets[-1]),
    }
