"""The tree builder: once an execution's records are sealed, its tree from CALL alone, into a blob, and TreeBuilt."""

import contextlib
import logging

from bus.errors import Conflict
from bus.log import BusPort
from gyre.core import tree as trees
from gyre.core.leaves import summaries
from schemas.calls import RecordsSealed
from schemas.rewards import TreeBuilt
from services.place import Place
from services.records import read_records
from services.speaker import Speaker

_LOG = logging.getLogger(__name__)


async def serve(place: Place, bus: BusPort) -> None:  # noqa: ARG001 (every service is started alike)
    """Serve until cancelled."""
    await serve_builder(bus)


async def serve_builder(bus: BusPort) -> None:
    """Build each sealed execution's tree that the log does not say is built; serves until cancelled."""
    speaker = Speaker(bus)
    waiting: dict[str, tuple[int, RecordsSealed]] = {}
    head = await bus.ev.head()
    async with contextlib.aclosing(bus.ev.read(0)) as stream:
        async for stored in stream:
            for event in stored.commit.events if stored.commit else ():
                if isinstance(event, TreeBuilt):
                    waiting.pop(event.execution, None)
                elif isinstance(event, RecordsSealed):
                    waiting[event.execution] = (stored.sequence, event)
            if stored.sequence >= head:
                for sequence, sealed in [*waiting.values()]:
                    await build(bus, speaker, sealed, sequence)
                waiting.clear()


async def build(bus: BusPort, speaker: Speaker, sealed: RecordsSealed, causation: int) -> TreeBuilt:
    """Build one tree and say it, unless it is said; what was built is the same however often it is done."""
    numbered = await read_records(bus, sealed.execution, sealed.last_sequence)
    found = trees.records_digest(trees.record_digest(record) for _, record in numbered)
    if found != sealed.digest:
        _LOG.error("execution %s: CALL holds other records than were sealed; see its quarantine", sealed.execution)
    tree = trees.fold(sealed.execution, (record for _, record in numbered))
    event = TreeBuilt(
        execution=sealed.execution,
        digest=trees.digest(tree),
        nodes=len(tree.nodes),
        leaves=summaries(tree),
        body=bus.blobs.put(trees.to_bytes(tree)) if tree.nodes else None,
    )
    with contextlib.suppress(Conflict):  # another builder said it first
        await speaker.say(sealed.execution, event, causation, causation, expect=0)
    return event
