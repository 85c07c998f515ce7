"""The keys of `gyre replay RUN --step`: one line of input is one command, from a person or from a file."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from gyre.core.causes import EventId
from gyre.core.difference import Row
from gyre.errors import GyreError
from schemas.envelope import EVENT, Event
from services.lines import Lines
from services.moments import sequence_at
from services.source import Source
from services.states import STATES
from services.views.saying import saying, seconds
from services.views.stepping import Walker
from services.views.terminal import one_line, show
from services.why import lines, why

CHANGES = 3
"""Changes of the state that are shown beside an event; key c shows them all."""
WIDTH = 100
Read = Callable[[], Awaitable[str]]
"""The next line of input, with its end; "" when there is no more."""
KEYS = """\
n [COUNT]   next event (so does an empty line)     b [COUNT]   back
j SEQ[.I]   to this event                          t MOMENT    to a time or update: +90s, step:7, ISO 8601
e TYPE      next event of a type                   x ID        next event about an execution, group or cell N
s [NAME]    print the state, or take another       c           all that the event changed in it
v           the event whole                        w           why it was said, and what it led to
?           these keys                             q           quit"""


class NoSuchPlace(GyreError):
    """There is nothing to go to."""


class Steps:
    """One person's walk."""

    def __init__(self, walker: Walker, console: Console, read: Read) -> None:
        """Nothing is shown before `run`."""
        self._walker, self._console, self._read = walker, console, read
        self._zero = 0
        self._keys: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "": self._next,
            "n": self._next,
            "b": self._back,
            "j": self._jump,
            "t": self._time,
            "e": self._type,
            "x": self._about,
            "s": self._state,
            "c": self._changes,
            "v": self._view,
            "w": self._why,
            "?": self._help,
        }

    async def run(self) -> None:
        """Obey lines until q or the end of the input; what cannot be done is one line, and the walk goes on."""
        source = self._walker.source
        first = await source.ev.get(1)
        self._zero = first.commit.time if first and first.commit else 0
        self._say(f"{source.run}: {await source.ev.head()} commits; state {self._walker.name}")
        self._say(KEYS)
        while line := await self._asked():
            word, _, rest = line.strip().partition(" ")
            if word == "q":
                return
            try:
                await self._keys.get(word, self._unknown)(rest.strip())
            except GyreError as error:
                self._say(str(error))

    async def _asked(self) -> str:
        if self._console.is_terminal:
            self._console.print(f"{self._walker.place} > ", end="", style="bold", highlight=False)
        return await self._read()

    async def _unknown(self, _: str) -> None:
        raise NoSuchPlace("no such key; ? shows them")

    async def _help(self, _: str) -> None:
        self._say(KEYS)

    async def _next(self, rest: str) -> None:
        await self._many(rest, self._walker.next, "the log ends here")

    async def _back(self, rest: str) -> None:
        await self._many(rest, self._walker.back, "the log begins here")

    async def _many(self, rest: str, go: Callable[[], Awaitable[bool]], end: str) -> None:
        if rest and not rest.isdecimal():
            raise NoSuchPlace(f"{rest}: give how many events, such as 10")
        for _ in range(int(rest or 1)):
            if not await go():
                self._say(end)
                break
        self._show()

    async def _jump(self, rest: str) -> None:
        try:
            wanted = EventId.parse(rest)
        except ValueError as error:
            raise NoSuchPlace(str(error)) from error
        stored = await self._walker.source.ev.get(wanted.sequence)
        if stored is None or stored.commit is None or wanted.part >= len(stored.commit.events):
            raise NoSuchPlace(f"{rest}: the log has no such event; it ends at {await self._walker.source.ev.head()}")
        await self._walker.to(wanted)
        self._show()

    async def _time(self, rest: str) -> None:
        await self._jump(str(await sequence_at(self._walker.source, rest)))

    async def _type(self, rest: str) -> None:
        wanted = rest.lower()
        await self._find(lambda _, event: bool(wanted) and wanted in event.type.lower(), f"event of type {rest}")

    async def _about(self, rest: str) -> None:
        await self._find(lambda _, event: bool(rest) and rest in _names(event), f"event about {rest}")

    async def _find(self, holds: Callable[[EventId, Event], bool], what: str) -> None:
        found = await self._walker.following(holds)
        if found is None:
            raise NoSuchPlace(f"no {what} after {self._walker.place}")
        await self._walker.to(found)
        self._show()

    async def _state(self, rest: str) -> None:
        if rest and rest not in STATES:
            raise NoSuchPlace(f"state {rest}: one of {', '.join(STATES)}")
        if rest:
            await self._walker.look_at(rest)
        self._say(json.dumps(self._walker.state, default=sorted, indent=1))

    async def _changes(self, _: str) -> None:
        rows = self._walker.changed()
        for row in rows:
            self._say(_change(row))
        if not rows:
            self._say(f"nothing changed in {self._walker.name}")

    async def _view(self, _: str) -> None:
        event = self._here()
        self._say(json.dumps(EVENT.dump_python(event, mode="json"), indent=1))

    async def _why(self, _: str) -> None:
        self._here()
        show(self._console, lines(await why(self._walker.source, str(self._walker.place))))

    def _here(self) -> Event:
        event = self._walker.event
        if event is None:
            raise NoSuchPlace("before the first event; n goes on")
        return event

    def _show(self) -> None:
        """The event at the place, and what it changed."""
        walker = self._walker
        if walker.event is None or walker.stored is None or walker.stored.commit is None:
            self._say("before the first event; n goes on")
            return
        commit, rows = walker.stored.commit, walker.changed()
        line = Text(f"{walker.place!s:>9}  {seconds(commit.time - self._zero):>14}  {commit.producer.service:9} ")
        show(self._console, [line.append(walker.event.type, "bold").append(f"  {saying(walker.event)}")])
        for row in rows[:CHANGES]:
            self._say(f"{'':11}{_change(row)}")
        if len(rows) > CHANGES:
            self._say(f"{'':11}and {len(rows) - CHANGES} more changes in {walker.name}: c shows them")

    def _say(self, text: str) -> None:
        show(self._console, [text])


def _change(row: Row) -> str:
    return one_line(f"{row.what}: {_short(row.here)} -> {_short(row.there)}", WIDTH)


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _names(event: Event) -> set[str]:
    """What an event is about."""
    fields = ("execution", "group", "call", "cell", "step")
    found = {name: str(getattr(event, name)) for name in fields if hasattr(event, name)}
    return {*found.values(), *(f"{name} {value}" for name, value in found.items())}


async def walk(source: Source, name: str, to: str | None) -> None:
    """Walk a log by the lines of stdin, beginning at a moment (None: before the first event)."""
    walker = await Walker.begin(source, name)
    if to is not None:
        stored = await source.ev.get(await sequence_at(source, to))
        if stored is not None and stored.commit is not None:
            await walker.to(EventId(stored.sequence, len(stored.commit.events) - 1))
    await Steps(walker, Console(), Lines()).run()
