"""Start a run's server so that whoever is told to end meanwhile leaves none behind."""

import asyncio

from bus.server import NatsServer


async def start(server: NatsServer) -> NatsServer:
    """It serves. A start goes on in its thread where nobody waits for it any more: it is given up, and waited for.

    Raises: `BusError`, as `NatsServer.start`.
    """
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        server.give_up()
        await asyncio.wait({starting})
        if starting.exception() is None and not server.adopted:
            await asyncio.to_thread(server.stop)
        raise
