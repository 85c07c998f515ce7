"""The process of an attached consumer: loads it, reads for it in order, hands it typed events, keeps its position.

Started by `gyre attach`, which holds the other end of a socket: from there come the login (of a user that may ask for
its own next message and nothing else), each session's consumer, and where the log ends once nothing more can come.
A handler that is no coroutine runs in a thread, so that a slow one does not cost the connection.
"""

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from bus import attached
from bus.archive_log import open_archive
from bus.blobs import Blobs
from bus.errors import BusError
from bus.link import Link
from bus.log import ReadLog, Stored
from gyre.errors import GyreError
from schemas.speakers import Stream
from services.alongside import until_one_ends
from services.boss import Boss, Hello
from services.consumer import At, Consumer, NotYet, Position, filter_of, load, streams_of, wanted
from services.ending import Ending

LOG = logging.getLogger("gyre")
SAVE_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
_CHUNK = 128

Chunks = AsyncGenerator[list[Stored], None]


class Worker:
    """One consumer at work."""

    def __init__(self, consumer: Consumer, position: Position, ending: Ending) -> None:
        """`position` is where it goes on; `ending` tells where its logs end."""
        self.consumer, self.position = consumer, position
        self._ending, self._wanted = ending, wanted(consumer)
        self._turn, self._stopping = asyncio.Lock(), False
        self._busy = threading.RLock()
        """Held in threads: one goes on for a moment when who waits for it is cancelled."""
        self._saved, self._unsaved = time.monotonic(), False
        self._broken = False
        """A commit was handled in part: what the consumer knows is no commit's state any more."""

    def stop(self) -> None:
        """End in order, after the commit that is being handled."""
        if self._stopping:
            return
        self._stopping = True
        self._ending.news.set()
        if stop := getattr(self.consumer, "stop", None):
            stop()

    async def run(self, logs: Mapping[Stream, Chunks]) -> None:
        """Hand over everything in these logs until their end, or until told to stop."""
        restore = getattr(self.consumer, "load", None)
        if restore and self.position.state is not None:
            restore(self.position.state)
        await until_one_ends(self._follow_all(logs), self._save_in_silence())
        await asyncio.to_thread(self.keep)
        if close := getattr(self.consumer, "close", None):
            close()

    async def _follow_all(self, logs: Mapping[Stream, Chunks]) -> None:
        await asyncio.gather(*(self._follow(stream, chunks) for stream, chunks in logs.items()))

    async def _follow(self, stream: Stream, chunks: Chunks) -> None:
        coming: asyncio.Future[list[Stored] | None] | None = None
        async with aclosing(chunks):
            try:
                while not self._over(stream):
                    coming = coming or asyncio.ensure_future(anext(chunks, None))
                    if not await self._ending.news_or(coming):
                        continue
                    if (chunk := coming.result()) is None:
                        return
                    coming = None
                    await self._take(stream, chunk)
            finally:
                if coming is not None:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)

    def _over(self, stream: Stream) -> bool:
        until = self._ending.until.get(stream)
        return self._stopping or (until is not None and self.position.sequences.get(stream, 0) >= until)

    async def _take(self, stream: Stream, chunk: list[Stored]) -> None:
        """One chunk at a time, whichever log it is of."""
        async with self._turn:
            self._unsaved = True
            if inspect.iscoroutinefunction(self.consumer.handle):
                await self._await_all(stream, chunk)
            else:
                await asyncio.to_thread(self._hand_over, stream, chunk)

    async def _await_all(self, stream: Stream, chunk: list[Stored]) -> None:
        for stored in chunk:
            if not self._stopping:
                with self._whole():
                    for event, at in self._events(stream, stored):
                        await self.consumer.handle(event, at)
                self.position.sequences[stream] = stored.sequence
                if self._is_due():
                    await asyncio.to_thread(self.keep)

    def _hand_over(self, stream: Stream, chunk: list[Stored]) -> None:
        with self._busy:
            for stored in chunk:
                if not self._stopping:
                    with self._whole():
                        for event, at in self._events(stream, stored):
                            self.consumer.handle(event, at)
                    self.position.sequences[stream] = stored.sequence
                    if self._is_due():
                        self.keep()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._broken = True
            raise

    async def _save_in_silence(self) -> None:
        """What came last is kept too, when nothing follows it."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            async with self._turn:
                if self._unsaved:
                    await asyncio.to_thread(self.keep)

    def _is_due(self) -> bool:
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def _events(self, stream: Stream, stored: Stored) -> list[tuple[Any, At]]:
        commit = stored.commit
        if commit is None:
            return []
        return [
            (event, At(commit.run, stream, stored.sequence, index, stored.subject, commit))
            for index, event in enumerate(commit.events)
            if self._wanted is None or type(event) in self._wanted
        ]

    def keep(self) -> None:
        """Save what the consumer keeps, and the position with it, or nothing where they do not go together; blocks."""
        save = getattr(self.consumer, "save", None)
        with self._busy:
            if self._broken:
                return
            try:
                self.position.state = save() if save else None
            except NotYet as error:
                LOG.warning("%s", error)
            else:
                self.position.save()
            self._saved, self._unsaved = time.monotonic(), False


async def serve(descriptor: int) -> None:
    """Be one attached consumer until its log ends or it is told to stop."""
    boss = await Boss.open(descriptor)
    hello = await boss.hello()
    file = Path(hello.position) if hello.position else None
    worker = Worker(load(hello.consumer, hello.options), Position.load(file, hello.consumer), boss)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    hearing = asyncio.ensure_future(boss.listen())
    working = asyncio.ensure_future((_archived if hello.archive else _live)(worker, hello, boss))
    try:
        await asyncio.wait({hearing, working}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            hearing.result()
        await working
        await boss.tell(done=worker.position.sequences)
    finally:
        for task in (hearing, working):
            task.cancel()
        await asyncio.gather(hearing, working, return_exceptions=True)


async def _archived(worker: Worker, hello: Hello, _: Boss) -> None:
    """An archive needs no server and no login."""
    with open_archive(Path(hello.archive)) as archive:
        logs: dict[Stream, ReadLog] = {"EV": archive.ev, "CALL": archive.calls}
        heads: dict[str, int] = {stream: await log.head() for stream, log in logs.items()}
        begin = _beginning(worker, hello.begin, heads)
        await worker.run({stream: _chunked(logs[stream], after) for stream, after in begin.items()})


async def _chunked(log: ReadLog, after: int) -> Chunks:
    chunk: list[Stored] = []
    async for stored in log.read(after):
        chunk.append(stored)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    yield chunk


async def _live(worker: Worker, hello: Hello, boss: Boss) -> None:
    link = Link(hello.url, _PATIENCE_SECONDS, lambda: boss.login)
    await link.open(f"{hello.user}-{os.getpid()}", hello.user)
    blobs = Blobs(Path(hello.blobs))

    def chunks(stream: Stream, after: int) -> Chunks:
        filter_ = filter_of(worker.consumer, hello.run, stream)
        give = _giver(boss, stream, filter_)
        return attached.read(link, blobs, attached.name_of(hello.run, stream), after, filter_, hello.user, give)

    try:
        begin = _beginning(worker, hello.begin, hello.heads)
        await worker.run({stream: chunks(stream, after) for stream, after in begin.items()})
    finally:
        await link.close()


def _giver(boss: Boss, stream: Stream, filter: str) -> attached.Give:  # noqa: A002 - the word of the Log port
    async def give(after: int) -> None:
        await boss.ask(give=stream, after=after, filter=filter)

    return give


def _beginning(worker: Worker, begin: str, heads: Mapping[str, int]) -> dict[Stream, int]:
    """Log -> after which sequence to read: what is kept, or else what was asked for."""
    streams = streams_of(worker.consumer)
    kept = worker.position.sequences
    for stream in streams:
        kept.setdefault(stream, _asked(begin, heads[stream], first=stream == streams[0]))
    return {stream: kept[stream] for stream in streams}


def _asked(begin: str, head: int, *, first: bool) -> int:
    """A sequence speaks of the first log that is read; any other is read from its start then."""
    if begin == "now":
        return head
    return int(begin) - 1 if begin != "start" and first else 0


def main() -> int:
    """Run; what people can mend is one line, what the consumer itself raises is its own traceback."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        asyncio.run(serve(int(sys.argv[1])))
    except (GyreError, BusError) as error:
        LOG.error("%s", error)  # noqa: TRY400 - one line for people
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
