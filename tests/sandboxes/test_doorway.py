"""The doorway: what is connected inside reaches one address outside, and nothing is left of it afterwards."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gyre.sandboxes.doorway import PORT, doorway, inside

MOST = 64


@asynccontextmanager
async def serving(answer: object) -> AsyncIterator[str]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)  # type: ignore[arg-type]
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def enter(door: Path) -> int:
    """What enter.py does, in this process: listen, hand it out, keep nothing. Returns the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        with socket.socket(socket.AF_UNIX) as way_out:
            way_out.connect(str(door))
            socket.send_fds(way_out, [b"."], [listener.fileno()])
        return int(listener.getsockname()[1])


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read())
    writer.close()


def test_a_url_is_called_by_the_loopback_inside() -> None:
    assert inside("http://10.1.2.3:8000/x/token/v1?a=b") == f"http://127.0.0.1:{PORT}/x/token/v1?a=b"


async def test_bytes_go_both_ways_to_their_end(tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    async with serving(echo) as reach, doorway(reach, tmp_path) as door:
        port = await asyncio.to_thread(enter, door)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(body)
        writer.write_eof()
        assert await reader.read() == body
        writer.close()
        await writer.wait_closed()
        assert not door.exists()  # one listening socket, and nobody else comes through


async def test_where_nothing_answers_the_connection_ends_and_the_next_one_is_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    async with doorway(f"http://127.0.0.1:{port}", tmp_path) as door:
        place = await asyncio.to_thread(enter, door)
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", place)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()


async def test_a_doorway_outlives_a_lack_of_descriptors(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(echo) as reach, doorway(reach, tmp_path) as door:
        port = await asyncio.to_thread(enter, door)
        assert await said_back(port, b"there?") == b"there?"
        with socket.socket() as caller:
            caller.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            try:
                with contextlib.suppress(ConnectionError):  # some kernels drop what cannot be accepted
                    await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", port))
                await asyncio.sleep(0.05)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert await said_back(port, b"still there?") == b"still there?"


async def said_back(port: int, said: bytes) -> bytes:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        writer.write_eof()
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
    return found


@pytest.mark.parametrize(
    "said", [b"", b"\0" * 70_000, b"GET / HT", b"CONNECT host:22 HTTP/1.1\r\n\r\n", b"\x16\x03\x01"]
)
async def test_whatever_is_said_is_passed_on_and_leaves_the_doorway_open(tmp_path: Path, said: bytes) -> None:
    async with serving(echo) as reach, doorway(reach, tmp_path) as door:
        port = await asyncio.to_thread(enter, door)
        for _ in range(3):  # left in the middle, with what was written unread: the connection is reset
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            writer.transport.abort()
        assert await said_back(port, said) == said


async def test_connections_beyond_the_most_wait_for_others_to_end(tmp_path: Path) -> None:
    at_once, most, release = 0, 0, asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == MOST:
            release.set()
        await release.wait()
        writer.write(await reader.readline())
        at_once -= 1
        writer.close()

    async def call(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"in\n")
        said = await reader.read()
        writer.close()
        await writer.wait_closed()
        return said

    async with serving(hold) as reach, doorway(reach, tmp_path) as door:
        port = await asyncio.to_thread(enter, door)
        assert set(await asyncio.gather(*(call(port) for _ in range(MOST + 20)))) == {b"in\n"}
    assert most == MOST


async def test_when_it_closes_connections_break_and_the_port_is_free(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100) / ("e" * 100)  # longer than the address of a Unix socket may be
    long.mkdir(parents=True)
    async with serving(echo) as reach:
        async with doorway(reach, long):
            pass
        async with doorway(reach, tmp_path) as door:
            port = await asyncio.to_thread(enter, door)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"half")
            await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()
    assert not (long / "door").exists()
    assert not door.exists()
