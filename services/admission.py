"""The admission sampler: which groups are ready and what they train, decided by `gyre.core.groups`."""

from bus.log import BusPort
from services.beats import beating
from services.minds import admitting
from services.office import office_of
from services.place import Place, started


async def serve(place: Place, bus: BusPort) -> None:
    """Decide until cancelled. Raises `Overtaken`."""
    await beating(place, bus, office_of(place, bus, admitting(await started(bus.ev), bus.blobs)).run())
