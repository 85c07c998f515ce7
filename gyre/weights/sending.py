"""What the transports that send to SGLang's servers have in common: whom they reach, and what follows a failure."""

import logging

from gyre.engines.port import Engine, EngineError
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.session import Send
from gyre.errors import GyreError
from gyre.weights.port import WeightsUnusable

log = logging.getLogger("gyre")


async def received(engine: Engine, send: Send, version: int, way: str) -> Exception | None:
    """None: the engine holds a version now. Else why not: it serves nothing that is half of it, and needs the file.

    Args:
        engine: that of the cell.
        send: how it comes.
        version: of the weights.
        way: the same in words, for the log.
    Raises:
        WeightsUnusable: the engine is not SGLang's.
    """
    if not isinstance(engine, SglangEngine):
        raise WeightsUnusable(
            f"{type(engine).__name__}: receives no weights by {way}; set weights.transport to another"
        )
    try:
        await engine.receive(send, version)
    except (EngineError, GyreError, OSError) as error:
        log.warning("version %d does not come by %s: %s; the file is loaded", version, way, error)
        return error
    return None
