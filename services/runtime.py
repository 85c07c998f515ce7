"""One process of one service: join the run, serve until told to stop, say on stderr why it ended.

As a program it is a supervised process: its standard input is its leash (`services.leash`).
"""

import asyncio
import importlib
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

from bus.errors import BusError
from bus.log import BusPort
from gyre.errors import GyreError
from gyre.process import collect_rarely
from services.exits import EXIT_REPLACED, code_of, is_full
from services.leash import hold_leash
from services.place import Place, connect
from services.watchdog import watched

log = logging.getLogger("gyre")
SERVICES = (
    "scheduler", "runner", "proxy", "builder", "evaluator", "admission", "packer", "examiner", "cell", "analytics",
    "traces", "control",
)  # fmt: skip
_FOLDERS = ("proxy", "cell", "analytics")


def module_of(service: str) -> str:
    """Where a kind of process serves: a module, or that of a folder which holds its parts too."""
    return f"services.{service}.service" if service in _FOLDERS else f"services.{service}"


async def serve(service: str, folder: Path, cell: int | None, edge: bool = False, instance: str = "") -> int:
    """Serve until SIGTERM or SIGINT, with an edge beside if wanted; the exit code tells how it ended."""
    from services.cell.desk import CellReplaced
    from services.office import Overtaken

    module = importlib.import_module(module_of(service))
    if service != "cell":  # tensors should not wait for a rare collection
        collect_rarely()
    place, bus = await connect(service, folder, instance)
    task = asyncio.ensure_future(_work(module, place, bus, cell, edge))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    log.info("%s serves run %s", place.instance, place.run)
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


async def _work(module: ModuleType, place: Place, bus: BusPort, cell: int | None, edge: bool) -> None:
    async with AsyncExitStack() as stack:
        if edge:
            from services.edge import beside  # a second of imports that few processes need

            bus = await stack.enter_async_context(beside(place, bus, cell))
            await stack.enter_async_context(watched())
        await (module.serve(place, bus) if cell is None else module.serve(place, bus, cell))


def main(service: str, folder: Path, cell: int | None = None, edge: bool = False, instance: str = "") -> int:
    """Run the event loop; errors that people can mend are one line."""
    import uvloop

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s {service} %(levelname)s %(message)s"
    )
    try:
        return uvloop.run(serve(service, folder, cell, edge, instance))
    except Exception as error:
        if not is_full(error) and not isinstance(error, GyreError | BusError):
            raise
        log.error("%s", error)  # noqa: TRY400 - one line for people
        return code_of(error)


def supervised(words: Sequence[str]) -> int:
    """Be a supervised process; the exit code tells how it ended.

    `words`: service and run folder; of a cell also its index, and the instance that it is to be if that is given.
    """
    hold_leash(sys.stdin.fileno())
    service, folder, *more = words
    return main(service, Path(folder), int(more[0]) if more else None, instance=more[1] if more[1:] else "")


if __name__ == "__main__":
    sys.exit(supervised(sys.argv[1:]))
