"""How far a run's sink is behind its log, as `gyre status` says it: asked of the sink itself."""

import asyncio
from pathlib import Path

from gyre.warehouse.engine import WarehouseAway
from gyre.warehouse.live import DESK, Live
from services.analytics.service import FOLDER
from services.source import Source


async def sink_lag(source: Source) -> dict[str, int] | None:
    """Messages of each stream that the log has and the warehouse does not; None: no embedded sink serves this run."""
    folder = source.folder / FOLDER if source.folder else None
    if folder is None or not (folder / DESK).is_file():
        return None
    heads = {"EV": await source.ev.head(), "CALL": await source.calls.head()}
    try:
        there = await asyncio.to_thread(_reached, folder)
    except WarehouseAway:
        return None
    return {stream: max(0, head - there.get(stream, 0)) for stream, head in heads.items()}


def _reached(folder: Path) -> dict[str, int]:
    live = Live(folder)
    try:
        return live.reach({})
    finally:
        live.close()
