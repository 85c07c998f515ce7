"""A doorway: what a command without a network connects to at its own loopback is served from one address outside.

Inside, `enter.py` listens and hands its listening socket out through a Unix socket (`SCM_RIGHTS`); from then on this
process accepts what is connected inside, and forwards bytes to `reach` and nowhere else. It needs a kernel that both
sides share.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

PORT = 47180
"""Where it is found inside."""
ENTER = Path(__file__).with_name("enter.py")
"""The script that opens it from inside."""
_NAME = "door"
_MOST_CONNECTIONS = 64
_PIECE = 1 << 16
_AGAIN_SECONDS = 0.1
_BREATH_SECONDS = 0.001  # after each full piece on its way out, of all connections: a flood leaves time to others


def inside(url: str) -> str:
    """A URL at `reach`, as it is called inside."""
    return urlunsplit(urlsplit(url)._replace(netloc=f"127.0.0.1:{PORT}"))


@contextlib.asynccontextmanager
async def doorway(reach: str, folder: Path) -> AsyncIterator[Path]:
    """Serve one command's connections to `reach` ("http://host:port") while this is open.

    Yields the Unix socket, in `folder`, that `enter.py` is to be given: one listening socket is taken through it, and
    then it is gone.
    """
    parts = urlsplit(reach)
    target = (parts.hostname or "", parts.port or 80)
    door = folder / _NAME
    with _listening(folder) as waiting:
        serving = asyncio.create_task(_serve(waiting, door, target))
        try:
            yield door
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            _forget(door)


@contextlib.contextmanager
def _listening(folder: Path) -> "Iterator[socket.socket]":
    """A Unix socket in a folder of any length: its address takes 107 bytes, a folder's descriptor has few."""
    (folder / _NAME).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as waiting:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            waiting.bind(f"/proc/self/fd/{descriptor}/{_NAME}")
        finally:
            os.close(descriptor)
        waiting.listen(1)
        yield waiting


def _forget(door: Path) -> None:
    """Who is served may write where the door lies, and have put something else there."""
    with contextlib.suppress(OSError):
        door.unlink()


async def _serve(waiting: socket.socket, door: Path, target: tuple[str, int]) -> None:
    loop = asyncio.get_running_loop()
    with await _handed_out(waiting) as listener:
        waiting.close()
        _forget(door)
        room, breath = asyncio.Semaphore(_MOST_CONNECTIONS), asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            while True:
                await room.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:  # no descriptor is left just now: who calls waits for one, or calls again
                    room.release()
                    await asyncio.sleep(_AGAIN_SECONDS)
                    continue
                task = group.create_task(_forward(connection, target, breath))
                task.add_done_callback(lambda _: room.release())


async def _handed_out(waiting: socket.socket) -> socket.socket:
    """The listening socket that comes through the door."""
    loop = asyncio.get_running_loop()
    while True:
        caller, _ = await loop.sock_accept(waiting)
        with caller:
            readable = asyncio.Event()
            loop.add_reader(caller, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(caller)
            _, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
        for descriptor in descriptors:
            listener = socket.socket(fileno=descriptor)
            listener.setblocking(False)
            return listener


async def _forward(connection: socket.socket, target: tuple[str, int], breath: asyncio.Lock) -> None:
    """One connection, both ways, until both sides have ended or one broke."""
    near, back = await asyncio.open_connection(sock=connection)
    try:
        async with _closed(back):
            answer, out = await asyncio.open_connection(*target)
            async with _closed(out), asyncio.TaskGroup() as group:
                group.create_task(_pump(near, out, breath))
                group.create_task(_pump(answer, back, None))
    except* OSError:
        pass


@contextlib.asynccontextmanager
async def _closed(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Closed once all that was written is on its way; at once where something went wrong or is called off."""
    try:
        yield
        writer.close()
    except BaseException:
        writer.transport.abort()
        raise
    finally:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, breath: asyncio.Lock | None) -> None:
    """Bytes from one side to the other, to their end."""
    while piece := await source.read(_PIECE):
        sink.write(piece)
        await sink.drain()
        if breath and len(piece) == _PIECE:
            async with breath:
                await asyncio.sleep(_BREATH_SECONDS)
    sink.write_eof()
