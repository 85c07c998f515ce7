"""Whether an SGLang server that runs still answers.

What is asked is `/model_info`: the front process answers that by itself, whatever its schedulers are at, so that
loading weights, a pause, released memory, a long prefill and kernels being compiled are no silence. `/health` and
`/health_generate` are one thing in 0.5.23: they sample a token, which a server with released memory does not survive,
and look for any sign of the schedulers for 20 s. A scheduler that is stuck in one batch is ended, with its server, by
SGLang's own watchdog (`--watchdog-timeout`); only a front that stands still is left for us to notice.
"""

import asyncio
from collections.abc import Callable

from gyre.engines.port import EngineUnavailable
from gyre.engines.sglang.client import Client

SILENT_SECONDS = 120.0
"""As long as the event loop of a service of ours may stand still."""
_PAUSE_SECONDS = 0.2


async def heard(client: Client, serving: Callable[[], bool], seconds: float) -> None:
    """Return once the server answers, or while it is not `serving` (it is being started or ended).

    Raises:
        EngineUnavailable: it has answered nothing for so many seconds; `serving` may raise it too.
    """
    try:
        async with asyncio.timeout(seconds):
            while serving():
                try:
                    await client.info()
                    break
                except EngineUnavailable:
                    await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise EngineUnavailable(
            f"SGLang at {client.url}: is there and has answered nothing for {seconds:g} s"
        ) from None
