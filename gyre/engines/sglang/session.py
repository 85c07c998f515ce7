"""One change of weights in pieces: SGLang's session of them, and what is left when it breaks off (0.5.23).

What the server does otherwise than one would wish, and what is done about it:

- It changes weights bucket by bucket: whatever fails after the first leaves half of them, which nobody may be served.
- A session that its owner left open refuses the next one: it is closed first.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from gyre.engines.port import EngineError, EngineFailed, WeightsRefused
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.files import Shapes
from gyre.errors import GyreError
from schemas.base import Model

STEP_SECONDS = 120.0
"""For joining a group, and for each bucket; a sender gives up before."""
log = logging.getLogger("gyre")

Send = Callable[[Client, Shapes, int], Awaitable[None]]
"""Have a server of a model with these shapes hold a version's weights.

Raises:
    EngineUnavailable, WeightsRefused: it did not come to it; the weights are the old ones.
    HalfLoaded, ServerStuck: they are not.
"""


class Bucket(Model):
    """Tensors that go together, end to end as bytes."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    """As torch calls them: float32, bfloat16, ..."""
    shapes: tuple[tuple[int, ...], ...]


class HalfLoaded(EngineFailed):
    """Some weights may be new, others old: nothing may be served before all were loaded."""


class ServerStuck(HalfLoaded):
    """The server waits for a sender that is gone, and hears nothing: it has to be started anew."""


@contextlib.asynccontextmanager
async def session(client: Client, what: str) -> AsyncIterator[None]:
    """Buckets go in between its begin and its end.

    Args:
        client: of the server.
        what: whence they come, for the errors.
    Raises:
        HalfLoaded: it broke off; the server is rid of the session if it still hears.
        ServerStuck: a bucket took longer than any sender.
    """
    try:
        await _begin(client)
        yield
        await client.end_update()
    except TimeoutError:
        raise ServerStuck(f"SGLang at {client.url}: nothing came by {what}") from None
    except (EngineError, GyreError, OSError) as error:
        await quietly(client.end_update())
        raise HalfLoaded(f"{what}: {error}") from error


async def within(step: Awaitable[None]) -> None:
    """One step, as long as a sender may take. Raises TimeoutError."""
    async with asyncio.timeout(STEP_SECONDS):
        await step


async def quietly(step: Awaitable[None]) -> None:
    """What a server that still hears should be rid of; whatever holds it is of no more use."""
    with contextlib.suppress(EngineError, TimeoutError):
        await within(step)


def marks(version: int, *, last: bool) -> dict[str, object]:
    """The last bucket makes it the new version, and forgets what was computed under the old one."""
    return {"flush_cache": True, "weight_version": str(version)} if last else {"flush_cache": False}


async def _begin(client: Client) -> None:
    try:
        await client.begin_update()
    except WeightsRefused as error:
        log.warning("%s; it is ended, and begun anew", error)
        await client.end_update()
        await client.begin_update()
