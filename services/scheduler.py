"""The scheduler: the pure decider of `gyre.core.scheduler` in office, and an ear for the cells' heartbeats."""

import asyncio
import time

from bus import subjects
from bus.log import BusPort
from gyre.core.scheduler_state import Scheduler
from schemas.roles import CellLost
from services.minds import scheduling
from services.office import Office, office_of
from services.place import Place, started


async def serve(place: Place, bus: BusPort) -> None:
    """Schedule the run until cancelled. Raises `Overtaken`."""
    office = office_of(place, bus, scheduling(await started(bus.ev)), keeps_quarantine=True)
    heard: dict[str, float] = {}
    hearing = asyncio.create_task(_hear(bus, heard))
    watching = asyncio.create_task(_watch(place, office, heard))
    try:
        await office.run()
    finally:
        hearing.cancel()
        watching.cancel()


async def _hear(bus: BusPort, heard: dict[str, float]) -> None:
    """Note when each instance was last heard of."""
    async for _, body in bus.listen(subjects.heartbeats(bus.run)):
        heard[body.decode(errors="replace")] = time.monotonic()


async def _watch(place: Place, office: Office[Scheduler], heard: dict[str, float]) -> None:
    """Say CellLost of instances whose heartbeats stopped; silence counts from when this process first knew of one."""
    limits = place.config.cells
    lost: set[str] = set()
    while True:
        await asyncio.sleep(limits.heartbeat_seconds)
        now = time.monotonic()
        for cell in office.state.cells.members:
            silent = now - heard.setdefault(cell.instance, now)
            if cell.alive and silent > limits.lost_after_seconds and cell.instance not in lost:
                lost.add(cell.instance)
                event = CellLost(cell=cell.index, instance=cell.instance, reason=f"no heartbeat for {silent:.1f} s")
                office.observe(("cell", str(cell.index)), event)
