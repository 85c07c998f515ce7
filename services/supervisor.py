"""Keep a run's processes alive: start them, restart what dies, end them in order (design §10)."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from bus.errors import BusError
from bus.server import NatsServer
from gyre.config import Config
from gyre.sandboxes.orphans import kill_leftovers
from services.births import Born, NotBorn, Nursery, modules_of
from services.exits import EXIT_FULL, EXIT_HOPELESS, EXIT_REPLACED, code_of, is_full
from services.place import new_instance
from services.presence import alive
from services.starting import start

log = logging.getLogger("gyre")
STOP_SECONDS = 10.0
STOP_ORDER = (("runner", "examiner"), ("proxy",), ("cell",))
"""Who ends first: whoever has agents at work, what serves these, what serves that; then all others, who decide."""
QUICK_SECONDS = 5.0
MOST_QUICK_DEATHS = 5
MOST_QUICK_KILLS = 20
"""Of a process that others kill: starting it again is not hopeless."""
MOST_DOUBLINGS = 6
SERVER_CHECK_SECONDS = 0.5
BESIDE = frozenset({"analytics", "traces"})
"""Services that a run does without: one that cannot go on is left alone."""
LEAST_FREE_BYTES = 16 << 20
"""Of the run's disk: with less the run ends in order, before writes fail in the middle of things."""


def services_of(config: Config) -> tuple[tuple[str, int | None], ...]:
    """(service, cell) of every process that a run needs."""
    singles = ["scheduler", "proxy", "runner", "builder", "evaluator", "admission", "packer"]
    if config.evaluation.episodes:
        singles.append("examiner")
    if config.analytics.sink:
        singles.append("analytics")
    if config.telemetry.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        singles.append("traces")
    engines = config.cells.count + config.cells.standalone
    cells: list[tuple[str, int | None]] = [("cell", index) for index in range(engines)]
    return (*cells, *((name, None) for name in singles))


@dataclass(slots=True)
class Child:
    """One supervised process."""

    service: str
    cell: int | None
    process: Born | None = None
    born: float = 0.0
    """Monotonic seconds."""
    instance: str = ""
    """Of a cell: what it is told to be, so that what the log says of it is never taken for another one's."""
    quick_deaths: int = 0
    left_alone: bool = False
    """Whether it is not started again, since the run does without it."""
    restarts: int = 0
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it should come back after somebody else took its place."""

    @property
    def name(self) -> str:
        """As in log files and messages."""
        return self.service if self.cell is None else f"{self.service}-{self.cell}"


@dataclass(slots=True)
class Supervisor:
    """All processes of one run on this machine."""

    folder: Path
    config: Config
    server: NatsServer | None
    children: list[Child] = field(default_factory=list)
    fatal: str = ""
    """Why the run cannot go on, once that is so."""
    full: bool = False
    """Whether it could go on if there were room."""
    _stopping: bool = False
    _nurseries: dict[str, Nursery] = field(default_factory=dict)
    """One for cells, which has torch, and one for everybody else."""

    async def run(self, finished: Callable[[], bool]) -> None:
        """Keep everything alive until `finished` or cancelled, then stop it all."""
        (self.folder / "logs").mkdir(exist_ok=True)
        self.children = [Child(service, cell) for service, cell in services_of(self.config)]
        keepers = [asyncio.create_task(self._keep(child)) for child in self.children]
        keepers += [asyncio.create_task(self._keep_disk()), asyncio.create_task(self._keep_store())]
        for keeper in keepers:
            keeper.add_done_callback(self._keeper_ended)
        try:
            while not finished() and not self.fatal:  # noqa: ASYNC110 - both are plain facts of other tasks
                await asyncio.sleep(0.1)
        finally:
            self._stopping = True
            await self._stop()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await asyncio.gather(*(each.close() for each in self._nurseries.values()))

    def _keeper_ended(self, keeper: "asyncio.Task[None]") -> None:
        """A run that nobody keeps any more would stand still without a word."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            log.error("supervising failed", exc_info=error)
            self.give_up(f"supervising failed: {error}", full=is_full(error))

    def give_up(self, why: str, full: bool) -> None:
        """End the run in order; the first reason counts."""
        if not self.fatal:
            self.fatal, self.full = why, full

    def kill(self) -> None:
        """End every process at once."""
        self._stopping = True
        for child in self.children:
            _signal(child, signal.SIGKILL)

    def replace(self, cell: int, instance: str) -> None:
        """End the process of a lost cell if it lives yet (it hangs), so that another one is started.

        One of another instance is the next one: it may be at work long before the log is read up to this loss.
        """
        for child in self.children:
            if child.cell == cell and child.instance == instance and not self._stopping:
                log.warning("%s hangs; ending it", child.name)
                _signal(child, signal.SIGKILL)

    def revive(self, heard: Collection[str]) -> None:
        """Start again what stopped because somebody else took its place, and is not heard to beat any more.

        `heard`: services and indexes of cells; nothing happens to what did not stop.
        """
        for child in self.children:
            if (child.service if child.cell is None else str(child.cell)) not in heard:
                child.wanted.set()

    async def _keep(self, child: Child) -> None:
        while not self._stopping and not child.left_alone:
            try:
                process = await self._start(child)
                code, why = await process.wait(), ""
            except (NotBorn, OSError) as error:  # the system may be short of memory, processes or files for a while
                code, why = code_of(error), str(error)
                if code == EXIT_FULL:
                    self.give_up(f"{child.name} cannot be started: {error}", full=True)
                    return
            if self._over():
                return
            if code == EXIT_REPLACED:
                log.warning("%s stopped: another one took its place (see %s)", child.name, self._log(child))
                child.wanted.clear()
                await child.wanted.wait()
                log.warning("%s: the one that took its place is silent; starting it again", child.name)
                continue
            if code in (EXIT_FULL, EXIT_HOPELESS):
                self._do_without(child, self._last_line(child), full=code == EXIT_FULL)
                return
            await self._after_death(child, code, why)

    async def _after_death(self, child: Child, code: int, why: str) -> None:
        child.restarts += 1
        quick = time.monotonic() - child.born < QUICK_SECONDS
        child.quick_deaths = child.quick_deaths + 1 if quick else 0
        if child.quick_deaths >= (MOST_QUICK_KILLS if code == -signal.SIGKILL else MOST_QUICK_DEATHS):
            last = why or self._last_line(child)
            why = f"{child.name} ended {child.quick_deaths} times at once (exit {code}): {last}"
            self._do_without(child, why, full=False)
            return
        log.warning("%s ended with exit %s; starting it again", child.name, code)
        await asyncio.sleep(0.05 * 2 ** min(child.quick_deaths, MOST_DOUBLINGS))

    def _do_without(self, child: Child, why: str, full: bool) -> None:
        """A process cannot go on: nor can the run, unless it does without."""
        if child.service in BESIDE:
            child.left_alone = True
            log.warning("%s; the run goes on without it", why)
        else:
            self.give_up(why, full)

    def _over(self) -> bool:
        return self._stopping

    async def _start(self, child: Child) -> Born:
        words = [child.service, str(self.folder)]
        if child.cell is not None:
            child.instance = new_instance("cell")
            words += [str(child.cell), child.instance]
        child.born = time.monotonic()
        with self._log(child).open("ab") as file:
            child.process = await self._nursery(child.service).bear(words, file.fileno())
        if self._over():  # told to stop while it was being started
            _signal(child, signal.SIGKILL)
        return child.process

    def _nursery(self, service: str) -> Nursery:
        name = "cells" if service == "cell" else "others"
        if name not in self._nurseries:
            self._nurseries[name] = Nursery(name, self.folder, modules_of(self.config, service))
        return self._nurseries[name]

    async def _keep_disk(self) -> None:
        """By itself: a server that is started again may read its store for long."""
        while not self._stopping:
            await asyncio.sleep(SERVER_CHECK_SECONDS)
            self._check_disk()

    async def _keep_store(self) -> None:
        """Watch the server, which is no child to wait for: it may have been adopted."""
        while not self._stopping:
            await asyncio.sleep(SERVER_CHECK_SECONDS)
            if self.server is not None and not self.fatal and not self._stopping:
                await self._keep_server(self.server)

    def _check_disk(self) -> None:
        try:
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            self.give_up(f"its folder {self.folder} cannot be looked at: {error.strerror}", full=False)
            return
        if free < LEAST_FREE_BYTES:
            self.give_up(f"its disk has {free >> 20} MiB free, {LEAST_FREE_BYTES >> 20} are needed", full=True)

    async def _keep_server(self, server: NatsServer) -> None:
        if not alive(server.pid):
            log.warning("nats-server ended; starting it again")
            try:
                await start(server)
            except (BusError, OSError) as error:
                if is_full(error):
                    self.give_up(str(error), full=True)
                log.error("nats-server: %s", error)  # noqa: TRY400 - said, and tried again
        elif trouble := await asyncio.to_thread(server.trouble):
            self.give_up(f"nats-server: {trouble}", full=True)

    async def _stop(self) -> None:
        """In order, so that nobody takes an end for a failure; one who is slow keeps the next for a share at most."""
        deadline = time.monotonic() + STOP_SECONDS
        for stage in range(len(STOP_ORDER) + 1):
            told = [child for child in self.children if _stage(child) == stage]
            for child in told:
                _signal(child, signal.SIGTERM)
            await _ended(told, STOP_SECONDS / (len(STOP_ORDER) + 1))
        await _ended(self.children, deadline - time.monotonic())
        self.kill()
        await asyncio.to_thread(self._end_harnesses)

    def _end_harnesses(self) -> None:
        """A runner that was killed left them."""
        work = self.folder / "work"
        for box in work.iterdir() if work.is_dir() else ():
            kill_leftovers(box)

    def _log(self, child: Child) -> Path:
        return self.folder / "logs" / f"{child.name}.log"

    def _last_line(self, child: Child) -> str:
        lines = self._log(child).read_text(errors="replace").strip().splitlines()
        return lines[-1].rpartition(" ERROR ")[2] if lines else "it said nothing"


def _stage(child: Child) -> int:
    """When it is told to end."""
    return next((place for place, some in enumerate(STOP_ORDER) if child.service in some), len(STOP_ORDER))


async def _ended(children: Collection[Child], seconds: float) -> None:
    """Wait for all of them, no longer than this."""
    waits = [child.process.wait() for child in children if child.process is not None]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*waits)


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)
