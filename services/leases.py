"""A worker's end of a queue: so many entries in hand at a time, each in a task of its own, their leases kept alive."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from bus.log import Delivery, Queue

_EXTEND_SECONDS = 3.0  # leases last ten (services.setup)
_WAIT_SECONDS = 5.0


async def serve_queue(queue: Queue, most: int, handle: Callable[[Delivery], Awaitable[None]]) -> None:
    """Pull entries in order for ever; `handle` acknowledges each, or gives it back. Its errors end everything."""
    held: dict[asyncio.Task[None], Delivery] = {}
    with one_error():
        await _serve(queue, most, handle, held)


@contextlib.contextmanager
def one_error() -> Iterator[None]:
    """A group of tasks fails as its first task did: services report one error, in one line."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group


async def _serve(
    queue: Queue,
    most: int,
    handle: Callable[[Delivery], Awaitable[None]],
    held: dict[asyncio.Task[None], Delivery],
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_keep(held))
        while True:
            if len(held) >= most:
                await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
                continue
            for delivery in await queue.pull(most - len(held), _WAIT_SECONDS):
                task = group.create_task(_handled(handle, delivery))
                held[task] = delivery
                task.add_done_callback(held.pop)


async def _handled(handle: Callable[[Delivery], Awaitable[None]], delivery: Delivery) -> None:
    try:
        await handle(delivery)
    except asyncio.CancelledError:
        await delivery.nak()  # a clean stop: somebody else may have it at once
        raise


async def _keep(held: dict[asyncio.Task[None], Delivery]) -> None:
    while True:
        await asyncio.sleep(_EXTEND_SECONDS)
        for delivery in tuple(held.values()):
            await delivery.extend()
