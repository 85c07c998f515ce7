"""Look for what is wrong with a run: its log from the start, its clock, its server's room, its cells' heartbeats."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bus import subjects
from bus.errors import BusError
from bus.jetstream import Bus
from bus.log import ReadLog
from gyre.config import Config
from gyre.core.batch_state import Params
from gyre.core.diagnosis.doctor import Doctor
from gyre.core.diagnosis.finding import Finding, Outlook, Room
from gyre.core.diagnosis.limits import HALF, Limits
from services.serving import connected, is_supervised
from services.source import Source, messages
from services.telling import telling

Heartbeats = tuple[float, frozenset[str]]
"""For how many seconds was listened, and who was heard."""
_NOBODY: Heartbeats = (0.0, frozenset())
_TELL_EVERY = 1024


@dataclass(frozen=True, slots=True)
class Report:
    """What a run's doctor found."""

    run: str
    live: bool
    events: int
    findings: tuple[Finding, ...]


async def diagnose(source: Source, only: Sequence[str] = (), told: Callable[[int], None] = lambda _: None) -> Report:
    """Read a run's log once and say what is wrong; `told` is called with the messages read so far, now and then.

    Raises `RunNotFound`, `BusError`.
    """
    config = Config.recorded((await source.started()).config)
    doctor = Doctor(limits(config))
    async with _ear(source, config) as listen:
        read = await _hear(doctor, "EV", source.ev, told)
        await _hear(doctor, "CALL", source.calls, lambda count: told(read + count))
        live = not doctor.over and is_live(source.folder)
        listened, heard = await listen(doctor.beating) if live else _NOBODY
        outlook = Outlook(
            now=time.time_ns() if live else doctor.last,
            live=live,
            rooms=() if doctor.over else await _rooms(source),
            listened=listened,
            heard=heard,
        )
    return Report(source.run, live, doctor.events, tuple(doctor.findings(outlook, only)))


def limits(config: Config) -> Limits:
    """What is normal under a configuration."""
    schedule, reward = config.schedule, config.reward
    pauses = reward.backoff_seconds * (2 ** (reward.attempts - 1) - 1)
    return Limits(
        groups=schedule.groups,
        executions=schedule.executions,
        phi=schedule.phi,
        mu=schedule.mu,
        steps=config.run.steps,
        cells=config.cells.count + config.cells.standalone,
        beat=config.cells.heartbeat_seconds,
        silence=config.cells.lost_after_seconds,
        grace=config.harness.kill_grace,
        attempts=reward.attempts,
        scoring=reward.budget_seconds + pauses,
        ratio_low=config.objective.ratio_low,
        ratio_high=config.objective.ratio_high,
        weight_cap=config.objective.weight_cap,
        max_tokens=config.rollout.max_tokens,
        parses_tools=config.rollout.tool_parser != "none",
        redeliveries=Params(schedule.groups, config.run.steps, schedule.mu).redeliveries,
    )


def is_live(folder: Path | None) -> bool:
    """Whether somebody keeps the run in this folder going: its supervisor, or a server that is not the run's own."""
    if folder is None:
        return False
    return is_supervised(folder) or not (folder / "nats").is_dir()


async def _hear(doctor: Doctor, stream: str, log: ReadLog, told: Callable[[int], None]) -> int:
    """All of a stream; how many messages that were."""
    count = 0
    async for stored in messages(log):
        count += 1
        if stored.commit is None:
            doctor.unreadable(stream, stored.sequence, stored.reason)
        else:
            doctor.hear(stream, stored.sequence, stored.commit)
        if count % _TELL_EVERY == 0:
            told(count)
    told(count)
    return count


@contextlib.asynccontextmanager
async def _ear(source: Source, config: Config) -> AsyncIterator[Callable[[frozenset[str]], Awaitable[Heartbeats]]]:
    """Listen for heartbeats meanwhile; what it gives waits for those that are asked for, half a silence at most.

    Who hears nobody, not even the scheduler, may be deaf: nothing is concluded from that.
    """
    if source.folder is None or not is_live(source.folder):
        yield _deaf
        return
    async with connected("reader", source.folder) as bus:
        began, heard, news = time.monotonic(), set[str](), asyncio.Event()
        listening = asyncio.create_task(_listen(bus, heard, news))

        async def listen(instances: frozenset[str]) -> Heartbeats:
            left = began + HALF * config.cells.lost_after_seconds - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left)):
                    while instances - heard:
                        news.clear()
                        await news.wait()
            return (time.monotonic() - began, frozenset(heard)) if heard else _NOBODY

        try:
            yield listen
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _deaf(_: frozenset[str]) -> Heartbeats:
    return _NOBODY


async def _listen(bus: Bus, heard: set[str], news: asyncio.Event) -> None:
    async for _, body in bus.listen(subjects.heartbeats(bus.run)):
        heard.add(body.decode(errors="replace").partition(" ")[0])  # offices number their beats
        news.set()


async def _rooms(source: Source) -> tuple[Room, ...]:
    """Of the run's streams, where whoever asks may know."""
    if source.folder is None:
        return ()
    try:
        async with connected("reader", source.folder) as bus:
            return tuple(Room(room.stream, room.used, room.limit) for room in await bus.room())
    except BusError:
        return ()


async def diagnose_with_progress(source: Source, only: Sequence[str] = ()) -> Report:
    """Diagnose, and say on stderr how far it is."""
    with telling("reading the log", await source.ev.head() + await source.calls.head()) as shown:
        return await diagnose(source, only, shown)
