"""The scheduler: the pure decider of `gyre.core.scheduler` in office, and an ear for the cells' heartbeats.

Silence is counted in beats of its own heart that came back through the server: while the server is away, or this
process was not given time, nobody's silence says anything.
"""

import asyncio
import itertools

from bus import subjects
from bus.log import BusPort
from gyre.core.scheduler_state import Scheduler
from schemas.roles import CellLost
from services.minds import scheduling
from services.office import SAVE_SECONDS, Office, office_of
from services.place import Place, started
from services.quarantine import Quarantine


async def serve(place: Place, bus: BusPort) -> None:
    """Schedule the run until cancelled. Raises `Overtaken`."""
    quarantine = Quarantine(place, bus, SAVE_SECONDS)
    office = office_of(place, bus, scheduling(await started(bus.ev)), quarantine)
    watch = asyncio.create_task(Watch(place, bus, office).run())
    serving = asyncio.create_task(office.run())
    try:
        done, _ = await asyncio.wait((watch, serving), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        watch.cancel()
        serving.cancel()
        await asyncio.gather(watch, serving, return_exceptions=True)


class Watch:
    """Says CellLost of instances whose heartbeats stopped."""

    def __init__(self, place: Place, bus: BusPort, office: Office[Scheduler]) -> None:
        """Nothing heard yet."""
        self._place, self._bus, self._office = place, bus, office
        self._own = subjects.hint(place.run, "heartbeat", "scheduler")
        self._beat = 0
        self._silent: dict[str, int] = {}
        """Instance -> own beats since its last; -1: first known since the last beat."""
        self._lost: set[str] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        beating = asyncio.create_task(self._keep_beating())
        try:
            async for subject, body in self._bus.listen(subjects.heartbeats(self._place.run)):
                said = body.decode(errors="replace")
                if subject != self._own:
                    self._silent[said] = 0
                elif said == f"{self._place.instance} {self._beat}":  # an older one was held up on its way
                    self._count()
        finally:
            beating.cancel()

    async def _keep_beating(self) -> None:
        for self._beat in itertools.count(1):
            await self._bus.tell(self._own, f"{self._place.instance} {self._beat}".encode())
            await asyncio.sleep(self._place.config.cells.heartbeat_seconds)

    def _count(self) -> None:
        if self._office.state.phase != "running":  # cells that end with their run are not lost
            return
        limits = self._place.config.cells
        alive = {cell.instance: cell.index for cell in self._office.state.cells.members if cell.alive}
        self._silent = {instance: self._silent.get(instance, -1) + 1 for instance in alive}
        for instance, beats in self._silent.items():
            silent = beats * limits.heartbeat_seconds
            if silent > limits.lost_after_seconds and instance not in self._lost:
                self._lost.add(instance)
                event = CellLost(cell=alive[instance], instance=instance, reason=f"no heartbeat for {silent:.1f} s")
                self._office.observe(("cell", str(alive[instance])), event)
