"""Moments of a run as people write them (500, 2026-11-30T05:00:00Z, +90s, step:7), as sequences of EV."""

import re
from datetime import UTC, datetime

from bus import subjects
from bus.log import ReadLog
from gyre.errors import GyreError
from schemas.training import OptimizerStepped
from services.source import Source, messages

FORMS = "a sequence (500), an ISO 8601 time (2026-11-30T05:00:00Z), time since the start (+90s), or an update (step:7)"
_SINCE = re.compile(r"\+(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_STEP = "step:"


class MomentUnknown(GyreError):
    """The run has no such moment, or it is written in no way that is known."""


async def sequence_at(source: Source, text: str) -> int:
    """The last sequence that belongs to a moment. Raises `MomentUnknown`.

    Of a time: the last commit before the log passes it. Clocks of several machines differ, so the order of the log
    stands where its times do not rise.
    """
    if text.isdecimal():
        return await _sequence(source.ev, int(text))
    if text.startswith(_STEP):
        return await _step(source, text)
    if (since := _SINCE.fullmatch(text)) is not None:
        first = await _time(source.ev, 1)
        return await _at(source.ev, first + round(float(since[1]) * _UNITS[since[2]]), text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise MomentUnknown(f"moment {text}: give {FORMS}") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return await _at(source.ev, round(aware.timestamp() * 1e6) * 1000, text)


async def _sequence(ev: ReadLog, number: int) -> int:
    head = await ev.head()
    if not 1 <= number <= head:
        raise MomentUnknown(f"sequence {number}: the log holds 1 to {head}")
    return number


async def _step(source: Source, text: str) -> int:
    wanted, done = text.removeprefix(_STEP), 0
    async for stored in messages(source.ev, filter=subjects.ev(source.run, "cell", "core")):
        for event in stored.commit.events if stored.commit else ():
            if isinstance(event, OptimizerStepped):
                done = event.step
                if str(done) == wanted:
                    return stored.sequence
    known = f"step:1 to step:{done}" if done else "no update is done yet"
    raise MomentUnknown(f"{text}: the log has {known}")


async def _at(ev: ReadLog, time: int, text: str) -> int:
    """The last sequence whose commit is not later, by halving."""
    low, high = 0, await ev.head()
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if await _time(ev, middle) <= time else (low, middle - 1)
    if low == 0:
        raise MomentUnknown(f"moment {text}: the run began later, at {written(await _time(ev, 1))}")
    return low


async def _time(ev: ReadLog, sequence: int) -> int:
    """UTC, ns, of the commit at a sequence, or of the nearest before it that is one."""
    for place in range(sequence, 0, -1):
        stored = await ev.get(place)
        if stored is not None and stored.commit is not None:
            return stored.commit.time
    raise MomentUnknown("the log holds no commit that can be read")


def written(time: int) -> str:
    """UTC nanoseconds as ISO 8601, to the millisecond."""
    seconds, rest = divmod(time, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 10**6:03d}Z"
