"""One process of one service: join the run, serve until told to stop, say on stderr why it ended."""

import asyncio
import importlib
import logging
import signal
import sys
from pathlib import Path

from bus.errors import BusError
from gyre.errors import GyreError
from services.place import connect

log = logging.getLogger("gyre")
SERVICES = ("scheduler", "runner", "proxy", "builder", "evaluator", "admission", "packer", "examiner", "cell")
EXIT_FAILED = 1
EXIT_REPLACED = 3
"""Somebody else holds this office or this cell: starting it again would only take it back."""


async def serve(service: str, folder: Path, cell: int | None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code tells how it ended."""
    from services.cell import CellReplaced
    from services.office import Overtaken

    module = importlib.import_module(f"services.{service}")
    place, bus = await connect(service, folder)
    log.info("%s serves run %s", place.instance, place.run)
    work = module.serve(place, bus) if cell is None else module.serve(place, bus, cell)
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    except (Overtaken, CellReplaced) as error:
        log.error("%s", error)  # noqa: TRY400 - one line for people
        return EXIT_REPLACED
    finally:
        await bus.close()
    return 0


def main(service: str, folder: Path, cell: int | None = None) -> int:
    """Run the event loop; errors that people can mend are one line."""
    import uvloop

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s {service} %(levelname)s %(message)s"
    )
    try:
        return uvloop.run(serve(service, folder, cell))
    except (GyreError, BusError) as error:
        log.error("%s", error)  # noqa: TRY400 - one line for people
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None))  # noqa: PLR2004
