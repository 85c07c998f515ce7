"""The scheduler: the pure decider of `gyre.core.scheduler` in office, and an ear for the cells' heartbeats."""

from contextlib import aclosing
from functools import partial

from bus.log import BusPort
from gyre.core.scheduler_state import Scheduler
from schemas.roles import CellLost
from services.alongside import until_one_ends
from services.beats import Silence
from services.minds import scheduling
from services.office import SAVE_SECONDS, Office, office_of
from services.place import Place, started
from services.quarantine import Quarantine


async def serve(place: Place, bus: BusPort) -> None:
    """Schedule the run until cancelled. Raises `Overtaken`."""
    quarantine = Quarantine(place, bus, SAVE_SECONDS)
    office = office_of(place, bus, scheduling(await started(bus.ev)), quarantine)
    await until_one_ends(watch(place, bus, office), office.run())


async def watch(place: Place, bus: BusPort, office: Office[Scheduler]) -> None:
    """Say CellLost of instances that end or whose heartbeats stopped; cells that end with their run are not lost.

    An office that is still on its way through the log knows instances that were replaced since: whose loss it is, is
    asked once more before it is said.
    """

    def alive() -> dict[str, int]:
        if office.state.phase != "running":
            return {}
        return {cell.instance: cell.index for cell in office.state.cells.members if cell.alive}

    def lives(instance: str) -> bool:
        return instance in alive()

    async with aclosing(Silence(place, bus).lost(alive)) as silent:
        async for instance, reason in silent:
            index = alive()[instance]
            event = CellLost(cell=index, instance=instance, reason=reason)
            office.observe(("cell", str(index)), event, partial(lives, instance))
