"""The tree builder: once an execution's records are sealed, its tree from CALL alone, into a blob, and TreeBuilt."""

import contextlib
import logging

from pydantic import TypeAdapter

from bus.consumers import Projection, SnapshotFile
from bus.errors import Conflict
from bus.log import BusPort
from gyre.core import tree as trees
from gyre.core.leaves import summaries
from schemas.calls import RecordsSealed
from schemas.envelope import Event
from schemas.rewards import TreeBuilt
from services.hearing import SAVE_SECONDS, filters_of, last_of, snapshot_file
from services.place import Place
from services.records import Numbered, kept_until, read_records
from services.speaker import Speaker

_LOG = logging.getLogger(__name__)
Waiting = dict[str, tuple[int, RecordsSealed]]
"""Sealed executions whose tree is not said: sequence of the seal, and the seal."""
ADAPTER = TypeAdapter(Waiting)


async def serve(place: Place, bus: BusPort) -> None:
    """Serve until cancelled."""
    await serve_builder(bus, snapshot_file(place, "builder", ADAPTER, 1))


async def serve_builder(bus: BusPort, file: SnapshotFile[Waiting] | None = None) -> None:
    """Build each sealed execution's tree that the log does not say is built; serves until cancelled."""
    speaker, filters = Speaker(bus), filters_of(bus.run, (RecordsSealed, TreeBuilt))
    waiting = Projection({}, _evolve, file, seconds=SAVE_SECONDS, whole=False)
    built: set[str] = set()
    last = await last_of(bus.ev, filters)
    try:
        async with contextlib.aclosing(bus.ev.read(waiting.sequence, *filters)) as stream:
            if waiting.sequence >= last:
                await _build_all(bus, speaker, waiting.state, built)
            async for stored in stream:
                waiting.feed(stored)
                if stored.sequence >= last:
                    await _build_all(bus, speaker, waiting.state, built)
    finally:
        waiting.save()


async def _build_all(bus: BusPort, speaker: Speaker, waiting: Waiting, built: set[str]) -> None:
    """Those that were not built here already, though the log does not say so yet."""
    built.intersection_update(waiting)
    for execution in [name for name in waiting if name not in built]:
        sequence, sealed = waiting[execution]
        await build(bus, speaker, sealed, sequence)
        built.add(execution)


def _evolve(waiting: Waiting, sequence: int, event: Event) -> Waiting:
    if isinstance(event, RecordsSealed):
        return {**waiting, event.execution: (sequence, event)}
    if isinstance(event, TreeBuilt):
        return {name: sealed for name, sealed in waiting.items() if name != event.execution}
    return waiting


async def build(bus: BusPort, speaker: Speaker, sealed: RecordsSealed, causation: int) -> TreeBuilt:
    """Build one tree and say it, unless it is said; what was built is the same however often it is done.

    Records that are not those sealed, as a power cut or a malformed message left them, give a tree without nodes:
    nobody trains on a part of what happened.
    """
    numbered = await _sealed_records(bus, sealed)
    found = trees.records_digest(trees.record_digest(event) for _, event in numbered)
    if found != sealed.digest:
        _LOG.error(
            "execution %s: CALL holds other records than the %d sealed ones; its tree is empty, it trains nothing",
            sealed.execution,
            sealed.count,
        )
        numbered = []
    tree = trees.fold(sealed.execution, (event for _, event in numbered))
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


async def _sealed_records(bus: BusPort, sealed: RecordsSealed) -> list[Numbered]:
    """All of them, or none where the last one is gone: nobody would ever say it again."""
    if sealed.last_sequence and not await kept_until(bus, sealed.execution, sealed.last_sequence):
        return []
    return await read_records(bus, sealed.execution, sealed.last_sequence)
