"""Control of a run whose processes somebody else keeps: follow it, say how it goes, archive it once it is finished.

What `gyre train` does for the processes that it supervises, less the supervision. `gyre launch` opens the run before.
"""

import asyncio
import logging
import shutil
from pathlib import Path

from bus.archive import export_run
from bus.errors import NoStream
from bus.jetstream import Bus
from bus.log import BusPort
from gyre.config import Config
from gyre.core.progress import Progress
from gyre.errors import ConfigError, Problem
from services.alongside import until_one_fails
from services.demo import report
from services.place import NOTE, Note, Place, RunNotFound, named, new_instance, started
from services.preflight import preflight
from services.setup import OPEN_SECONDS, Opened, PerhapsBegun, is_vacant, open_alone, opening, reopen_run, run_folder
from services.train import Watch, show_progress, sole, summary

log = logging.getLogger("gyre")


async def serve(place: Place, bus: BusPort) -> None:
    """Follow the run until cancelled, also when it is over: somebody may want to look at it."""
    watch = Watch(Progress())
    with sole(place.folder):
        await until_one_fails(watch.read(bus), _see_through(place, bus, watch))


async def _see_through(place: Place, bus: BusPort, watch: Watch) -> None:
    """Show the run's progress until its end, and say what came of it."""
    showing = asyncio.create_task(show_progress(watch))
    try:
        await watch.until_over()
    finally:
        showing.cancel()
        await asyncio.wait((showing,))
    if watch.progress.aborted:
        log.error("run %s: %s; `gyre log tail %s` shows how", place.run, watch.progress.aborted, named(place.folder))
        return
    archive = place.folder / f"{place.run}.jsonl.zst"
    if not archive.exists():
        await export_run(place.url, place.run, place.folder, archive)
    report(summary(place.run, await started(bus.ev), watch.progress, archive))


async def launch(config: Config) -> Path:
    """Open the configured run on the configured server, or go on with it; its folder.

    Opening can be cut short at any point and repeated. A run that was begun keeps its configuration, but for
    `bus.max_bytes`.

    Raises:
        ConfigError: the run has no name or no server.
        SetupError, TaskError, ModelError, BusError: one line with the way out.
    """
    _check(config)
    folder = run_folder(config, config.run.name)
    with opening(folder):
        return (await _launched(config, folder)).folder


async def _launched(config: Config, folder: Path) -> Opened:
    mark = folder.with_name(f".{folder.name}.opening")
    if mark.exists() and not await _begun(folder):
        shutil.rmtree(folder, ignore_errors=True)  # nothing was ever said about this run
    if (folder / NOTE).exists():
        return await _reopened(config, folder, mark)
    preflight(config)
    if is_vacant(folder):
        mark.touch()
    try:
        opened = await open_alone(config, config.run.name, folder)
    except PerhapsBegun:
        raise
    except BaseException:
        mark.unlink(missing_ok=True)  # what is there now is not to be removed by the next one
        raise
    mark.unlink(missing_ok=True)
    return opened


async def _reopened(config: Config, folder: Path, mark: Path) -> Opened:
    opened = await reopen_run(folder, config.bus.max_bytes)
    mark.unlink(missing_ok=True)
    bus = await Bus.connect(opened.url, opened.run, "control", new_instance("control"), folder)
    try:
        begun = Config.recorded((await started(bus.ev)).config)
    finally:
        await bus.close()
    same = begun.model_copy(update={"bus": config.bus})
    if same.digest() != config.digest():
        log.warning(
            "run %s was begun with another configuration and keeps it; another name begins a new run", opened.run
        )
    return opened


async def _begun(folder: Path) -> bool:
    """Whether the log of this folder's run has its first word."""
    try:
        note = Note.read(folder)
        instance = new_instance("control")
        bus = await Bus.connect(note.url, note.run, "control", instance, folder, patience_seconds=OPEN_SECONDS)
    except (RunNotFound, NoStream):
        return False
    try:
        await started(bus.ev)
    except RunNotFound:
        return False
    finally:
        await bus.close()
    return True


def _check(config: Config) -> None:
    rule = "needed, for others join the run by it: give --set {}=..."
    wanted = (("run.name", config.run.name), ("bus.url", config.bus.url))
    missing = [Problem(key, "empty", rule.format(key)) for key, found in wanted if not found]
    if missing:
        raise ConfigError("", tuple(missing))
