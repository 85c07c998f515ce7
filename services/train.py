"""The main job: open or reopen a run, keep its processes alive, show its progress, sum it up."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bus import subjects
from bus.archive import export_run
from bus.credentials import server_of
from bus.errors import BusError
from bus.jetstream import Bus
from bus.log import BusPort
from gyre.config import Config
from gyre.core import staleness
from gyre.core.progress import Progress, evolve
from gyre.errors import GyreError
from schemas.roles import CellLost
from schemas.runs import RunStarted
from services.check import expected_staleness
from services.exits import Interrupted, RunFull
from services.place import Note, named, new_instance, started
from services.presence import alive
from services.setup import Opened, asked_bytes, open_run, opening, reopen_run
from services.starting import start
from services.supervisor import Supervisor
from services.views.display import Display

log = logging.getLogger("gyre")
ROOM_SECONDS = 1.0


class RunStopped(GyreError):
    """A run ended before it was finished; it can be resumed, or the message says why not."""


async def train(config: Config) -> dict[str, Any]:
    """Start a run and see it through. Raises `RunStopped`, `Interrupted`, and what opening a run raises."""
    opened = await open_run(config)
    with sole(opened.folder):
        return await follow(opened)


async def resume(folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Go on with a run where its log ends; `overrides` may give its log more room (`bus.max_bytes=...`).

    Raises:
        ConfigError, SetupError, RunFull, RunStopped, Interrupted, RunNotFound, BusError: one line with the way out.
    """
    most = asked_bytes(overrides)
    Note.read(folder)
    with sole(folder):
        with opening(folder):
            if not (folder / "proxy.key").is_file():  # an archive holds neither this nor weights
                raise RunStopped(f"run {folder.name}: was imported from an archive: it replays, it does not resume")
            opened = await reopen_run(folder, most)
        (folder / "proxy.url").unlink(missing_ok=True)  # nobody holds to that address, and its port may be another's
        return await follow(opened)


@contextmanager
def sole(folder: Path) -> Iterator[None]:
    """Be the one that supervises this run here, until the end of the process at the latest; the lock says who it is.

    Raises:
        RunStopped: another process is.
    """
    with (folder / "control.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunStopped(
                f"run {folder.name}: another gyre supervises it already; `gyre status {named(folder)}` looks at it"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


async def follow(opened: Opened) -> dict[str, Any]:
    """Supervise until the run is finished, stopped or cannot go on; its server ends with that."""
    try:
        return await _followed(opened)
    finally:
        if opened.server:
            await asyncio.to_thread(opened.server.stop)


async def _followed(opened: Opened) -> dict[str, Any]:
    bus = await Bus.connect(opened.url, opened.run, "control", new_instance("control"), opened.folder)
    watch = Watch(Progress())
    try:
        begin = await started(bus.ev)
        config = Config.recorded(begin.config)
        supervisor = Supervisor(opened.folder, config, opened.server)
        watch.lost = supervisor.replace
        await _supervise(supervisor, bus, watch)
        if supervisor.full:
            raise RunFull(f"run {opened.run}: {supervisor.fatal}; {await _way_to_room(bus, opened.folder)}")
        if supervisor.fatal:
            raise RunStopped(f"run {opened.run}: {supervisor.fatal}; logs lie in {opened.folder / 'logs'}")
        if watch.progress.aborted:
            raise RunStopped(
                f"run {opened.run}: {watch.progress.aborted}; `gyre log tail {named(opened.folder)}` shows how"
            )
        if not watch.progress.finished:
            raise Interrupted(
                f"run {opened.run}: stopped before its end; `gyre resume {named(opened.folder)}` goes on from its log"
            )
        archive = opened.folder / f"{opened.run}.jsonl.zst"
        async with _served(opened) as url:
            await export_run(url, opened.run, opened.folder, archive)
        if config.analytics.sink:
            await _add_columns(archive, opened.folder)
        return summary(opened.run, begin, watch.progress, archive)
    finally:
        await bus.close()


@asynccontextmanager
async def _served(opened: Opened) -> AsyncIterator[str]:
    """Where the log of a run that has ended is read. Its server may have ended with it, or its start been given up."""
    server = opened.server
    if server is None:
        yield opened.url
    elif alive(server.pid):
        yield server.url
    else:
        another = server_of(opened.folder, opened.run, server.sync)
        try:
            yield (await start(another)).url
        finally:
            await asyncio.to_thread(another.stop)


async def _add_columns(archive: Path, folder: Path) -> None:
    """Make the archive's columns of what the sink wrote; without them they are made when they are asked."""
    from gyre.warehouse.engine import WarehouseError
    from services.analytics.archive_columns import make_columns  # analytics cost nothing where nobody wants them

    try:
        await make_columns(archive, folder)
    except WarehouseError as error:
        log.warning("%s", error)


class Watch:
    """The run's progress, folded as its log grows."""

    def __init__(self, progress: Progress) -> None:
        """Begin at this progress."""
        self.progress = progress
        self.lost: Callable[[int, str], None] = lambda _cell, _instance: None
        """Called with each cell and instance that was lost, also long ago."""
        self._end = asyncio.Event()

    async def read(self, bus: BusPort) -> None:
        """Fold forever."""
        stream = bus.ev.read(0)
        async with contextlib.aclosing(stream):
            async for stored in stream:
                time = stored.commit.time if stored.commit else 0
                by = stored.commit.producer.instance if stored.commit else ""
                for event in stored.commit.events if stored.commit else ():
                    self.progress = evolve(self.progress, time, event, by)
                    if isinstance(event, CellLost):
                        self.lost(event.cell, event.instance)
                if self.over():
                    self._end.set()

    async def until_over(self) -> None:
        """Wait until nothing more will happen, as far as was read."""
        await self._end.wait()

    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.progress.finished or bool(self.progress.aborted)


async def _supervise(supervisor: Supervisor, bus: Bus, watch: Watch) -> None:
    reading = asyncio.create_task(watch.read(bus))
    supervising = asyncio.create_task(supervisor.run(watch.over))
    others = [
        asyncio.create_task(work)
        for work in (show_progress(watch), _watch_room(supervisor, bus), _watch_offices(supervisor, bus))
    ]
    with _interruptible(supervising, supervisor):
        try:
            done, _ = await asyncio.wait((reading, supervising), return_when=asyncio.FIRST_COMPLETED)
            for task in done - {supervising}:
                task.result()
            with contextlib.suppress(asyncio.CancelledError):
                await supervising
        finally:
            for task in (reading, supervising, *others):
                task.cancel()
            await asyncio.gather(reading, supervising, *others, return_exceptions=True)


async def _watch_room(supervisor: Supervisor, bus: Bus) -> None:
    """End the run in order before its log refuses anything: a refused record would spoil its execution."""
    while True:
        with contextlib.suppress(BusError):  # a server that is away is the supervisor's to mend
            for room in await bus.room():
                if room.is_short:
                    why = f"stream {room.stream} is nearly full, {room.used} of {room.limit} bytes"
                    supervisor.give_up(why, full=True)
        await asyncio.sleep(ROOM_SECONDS)


async def _watch_offices(supervisor: Supervisor, bus: Bus) -> None:
    """Whoever holds an office or is a cell beats: once nobody does, the one that lost it may have it back."""
    heard: set[str] = set()

    async def listen() -> None:
        async for subject, _ in bus.listen(subjects.heartbeats(bus.run)):
            heard.add(subjects.parse(subject).entity[-1])

    listening = asyncio.create_task(listen())
    try:
        while True:
            heard.clear()
            await asyncio.sleep(supervisor.config.cells.lost_after_seconds)
            supervisor.revive(heard)
    finally:
        listening.cancel()


async def _way_to_room(bus: Bus, folder: Path) -> str:
    """What to do about a full run."""
    resume = f"gyre resume {named(folder)}"
    with contextlib.suppress(BusError, TimeoutError):
        async with asyncio.timeout(ROOM_SECONDS):
            rooms = await bus.room()
        if any(room.is_short for room in rooms):
            return f"`{resume} --set bus.max_bytes={2 * max(room.limit for room in rooms)}` goes on from its log"
    return f"make room, then `{resume}` goes on from its log"


async def show_progress(watch: Watch) -> None:
    """Show it on stderr until cancelled."""
    with Display() as display:
        try:
            while True:
                display.show(watch.progress)
                await asyncio.sleep(0.25)
        finally:
            display.show(watch.progress)


@contextmanager
def _interruptible(task: "asyncio.Task[None]", supervisor: Supervisor) -> Iterator[None]:
    """Ctrl-C once: end the processes in order; twice: at once."""
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            log.warning("stopping; once more to stop at once")
            task.cancel()
        else:
            supervisor.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def summary(run: str, begin: RunStarted, progress: Progress, archive: Path | None) -> dict[str, Any]:
    """What a machine reads at the end of a run."""
    config = Config.recorded(begin.config)
    done = progress.done
    evaluations = progress.evaluations
    choices = sum(step.current_choices for step in done)
    return {
        "run": run,
        "steps": len(done),
        "rewards": [step.reward for step in done],
        "eval_before": evaluations[0][1] if evaluations else None,
        "eval_after": evaluations[-1][1] if len(evaluations) > 1 else None,
        "eval_episodes": config.evaluation.episodes,
        "dispatched": progress.dispatched,
        "launched": progress.launched,
        "terminated": progress.terminated,
        "micro_steps": sum(step.enqueued for step in done),
        "micro_steps_committed": sum(step.committed for step in done),
        "staleness_mean": staleness.realised_mean(each for step in done for each in step.staleness),
        "staleness_expected": expected_staleness(config),
        "step_seconds": [round(step.seconds, 3) for step in done],
        "gradient_norms": [step.gradient_norm for step in done],
        "max_delta_log_p": [step.max_delta_log_p for step in done],
        "targets": [step.targets for step in done],
        "targets_at_equal_weights": sum(step.current_targets for step in done),
        "max_delta_log_p_at_equal_weights": max((step.current_max_delta_log_p for step in done), default=0.0),
        "expert_choices_at_equal_weights": choices,
        "expert_overlap_at_equal_weights": sum(step.current_overlap for step in done) / choices if choices else None,
        "expert_top_at_equal_weights": sum(step.current_top for step in done) / choices if choices else None,
        "seconds": round(progress.seconds, 3),
        "archive": str(archive) if archive else None,
    }
