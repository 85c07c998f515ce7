"""A disk or a stream fills up in the middle of a run: one line and exit code 4, nothing acknowledged is lost, and with
more room the run goes on."""

import asyncio
import contextlib
import shlex
import socket
import subprocess
from collections.abc import Awaitable, Iterator
from pathlib import Path

import nats
import pytest
from nats.js.errors import ServiceUnavailableError

from bus import subjects
from bus.credentials import login
from bus.errors import Unavailable
from bus.jetstream import Bus
from bus.log import Stored
from bus.server import NatsServer
from schemas.dispatch import ExecutionLaunched
from schemas.envelope import Commit, Producer
from schemas.runs import TimerFired
from services.exits import EXIT_FULL
from services.place import named
from services.replay import verify
from services.setup import Opened
from services.source import messages, open_source
from tests.e2e.living import Command, heard, listening, opened_run, processes
from tests.e2e.rules import check_log

pytestmark = pytest.mark.timeout(300)
Ended = tuple[int, str]
HERE = subjects.ev("r", "tester", "here")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, empty."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=160m", "none", str(place)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all that is left of a disk; returns the file to delete."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return ballast


async def full_until(disk: Path, ended: Awaitable[Ended]) -> Ended:
    """What a command ends with on a disk that is full and stays it, also where a file of its own is deleted."""
    ending = asyncio.ensure_future(ended)
    while not ending.done():
        await asyncio.to_thread(fill, disk)
        await asyncio.wait({ending}, timeout=0.05)
    return ending.result()


@contextlib.contextmanager
def held(url: str) -> Iterator[None]:
    """Somebody else has taken a port meanwhile."""
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))):
        yield


async def test_a_disk_that_fills_up_ends_the_run_which_goes_on_once_there_is_room(disk: Path) -> None:
    async with opened_run(disk, steps=2) as (opened, bus), listening(bus) as log:
        resume = ("resume", opened.run, "--runs", opened.folder.parent, "--json")
        first = await Command.start(*resume)
        last, _ = await heard(log, lambda event: isinstance(event, ExecutionLaunched))
        async with asyncio.timeout(30):
            assert await full_until(disk, first.end()) == (EXIT_FULL, "")
        said = first.lines[-1]  # by the watch over the disk, or by the service or the server that met it first
        assert "MiB free" in said or "no space left on device" in said.lower()
        assert said.endswith(f"make room, then `gyre resume {named(opened.folder)}` goes on from its log")
        assert not [line for line in first.lines if "Traceback" in line]
        assert not processes(opened.folder)

        second = await Command.start(*resume)
        assert await second.end() == (EXIT_FULL, "")
        assert second.lines[-1].endswith("MiB are free, 64 are needed; make room")

        (disk / "ballast").unlink()
        with held((opened.folder / "proxy.url").read_text()):
            result = await (await Command.start(*resume)).result()
        assert result["dispatched"] == result["launched"] == result["terminated"] == 16
    async with open_source(result["archive"], disk) as source:
        assert (await verify(source)).differences == []
        await check_log(source, steps=2)
        assert last in [stored async for stored in messages(source.ev)]


async def test_a_stream_that_fills_up_ends_the_run_and_its_last_line_says_how_it_goes_on(tmp_path: Path) -> None:
    async with opened_run(tmp_path, 2, overrides=(f"bus.max_bytes={1 << 20}",)) as (opened, bus), listening(bus) as log:
        first = await Command.start("resume", opened.run, "--runs", opened.folder.parent)
        await heard(log, lambda event: isinstance(event, ExecutionLaunched))
        await _fill_calls(opened)
        async with asyncio.timeout(30):
            assert await first.end() == (EXIT_FULL, "")
        said = first.lines[-1]
        assert f"stream CALL_{opened.run} is nearly full" in said

        advice = shlex.split(said.split("`")[1])
        assert advice == ["gyre", "resume", *shlex.split(named(opened.folder)), "--set", f"bus.max_bytes={2 << 20}"]
        less = await Command.start(*advice[1:-1], f"bus.max_bytes={(1 << 20) - 1}")
        assert await less.end() == (1, "")
        assert "bus.max_bytes = 1048575: " in less.lines[-1]
        second = await Command.start(*advice[1:], "--json")
        assert (await second.result())["terminated"] == 16


async def _fill_calls(opened: Opened) -> None:
    """Something that nobody asked for takes nearly all of CALL, in the proxy's name."""
    _, user, password = login(opened.url, opened.folder, "proxy")
    client = await nats.connect(opened.url, user=user, password=password, inbox_prefix=b"_INBOX.proxy")
    stray, stream = subjects.call(opened.run, "stray"), client.jetstream()
    for _ in range(3):
        await stream.publish(stray, b"x" * 250_000)
    try:
        await stream.publish(stray, b"x" * 250_000)
    except ServiceUnavailableError:  # a quick run has said more already
        await stream.publish(stray, b"x" * 200_000)
    await client.close()


async def test_a_server_that_cannot_write_any_more_is_replaced_not_adopted(disk: Path) -> None:
    first = await asyncio.to_thread(NatsServer(disk / "store").start)
    bus = await Bus.connect(first.url, "r", "tester", "one", disk, create=True, patience_seconds=1.0)
    kept = [await bus.ev.append(HERE, _said(number)) for number in range(1, 20)]
    ballast = await asyncio.to_thread(fill, disk)
    with contextlib.suppress(Unavailable):
        for number in range(20, 1000):
            kept += [await bus.ev.append(HERE, _said(number))]
    assert "no space left" in first.trouble()
    ballast.unlink()
    with pytest.raises(Unavailable):
        await bus.ev.append(HERE, _said(1000))
    await bus.close()

    second = await asyncio.to_thread(NatsServer(disk / "store").start)
    try:
        assert (second.adopted, second.trouble()) == (False, "")
        assert second.pid != first.pid
        bus = await Bus.connect(second.url, "r", "tester", "one", disk)
        found: list[Stored] = [stored async for stored in messages(bus.ev)]
        assert [stored.sequence for stored in found][: len(kept)] == kept
        assert await bus.ev.append(HERE, _said(1001)) == len(found) + 1
        await bus.close()
    finally:
        await asyncio.to_thread(second.stop)


def _said(number: int) -> Commit:
    return Commit(
        run="r",
        producer=Producer(service="tester", instance="one"),
        commit=f"commit-{number}",
        causation=0,
        as_of=0,
        correlation="r",
        time=number,
        events=(TimerFired(timer=f"t{number}"),),
    )
