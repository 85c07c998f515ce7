"""The packer: batches, micro-steps and the ledger, decided by `gyre.core.batches`."""

from bus.log import BusPort
from services.beats import beating
from services.minds import packing_mind
from services.office import office_of
from services.place import Place, started


async def serve(place: Place, bus: BusPort) -> None:
    """Decide until cancelled. Raises `Overtaken`."""
    await beating(place, bus, office_of(place, bus, packing_mind(await started(bus.ev), bus.ev)).run())
