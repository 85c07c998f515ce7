"""Archives: a round trip is exact, reading needs no server, and any damage is found."""

import hashlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus import codec, subjects
from bus.archive import ServerStream, export, export_run, import_run
from bus.archive_file import ArchiveError, read_lines
from bus.archive_log import open_archive
from bus.blobs import Blobs
from bus.errors import Refused
from bus.jetstream import Bus
from bus.link import Link
from bus.log import Stored
from bus.server import NatsServer
from bus.streams import call_stream, ev_stream
from schemas.dispatch import ExecutionTerminated
from schemas.envelope import COMMIT, Commit, Event, Producer
from schemas.refs import BlobRef, StateRef, WeightsRef
from schemas.rewards import TreeBuilt
from schemas.runs import RunStarted, TimerFired

JUNK = b"\xff\x00 no commit"


@dataclass
class Kept:
    """A stream held in memory."""

    messages: list[tuple[str, bytes]] = field(default_factory=list)

    async def head(self) -> int:
        return len(self.messages)

    async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        for sequence, (subject, data) in enumerate(self.messages, start=1):
            yield sequence, subject, data


def said(event: Event, number: int) -> Commit:
    producer = Producer(service="tester", instance="one")
    return Commit(
        run="r",
        producer=producer,
        commit=f"c{number}",
        causation=0,
        as_of=0,
        correlation="r",
        time=number + 1,
        events=(event,),
    )


def ended(state: StateRef | None) -> Event:
    return ExecutionTerminated(
        execution="x", group="g", task="t", reason="completed", stage="agent", exit_code=0, seconds=1.0, state=state
    )


def a_run(blobs: Blobs) -> tuple[Kept, Kept, dict[str, bytes]]:
    """A run with every kind of message, and the blobs that an archive of it must hold."""
    tree, workspace = blobs.put(b'{"tree": []}'), blobs.put(b"a tar file")
    blobs.put(b"of another run")
    state = StateRef(digest=workspace.digest, size=workspace.size, address=workspace.address)
    long = ended(state).model_copy(update={"detail": "d" * 300_000})
    ev = Kept()
    events: list[Event] = [
        TimerFired(timer="a"),
        TreeBuilt(execution="x", digest="0" * 64, nodes=1, leaves=(), body=tree),
        long,
    ]
    for number, event in enumerate(events):
        ev.messages.append((subjects.ev("r", "tester", "here", number), codec.encode(said(event, number), blobs)))
    ev.messages += [(subjects.ev("r", "tester", "junk"), JUNK), (subjects.ev("r", "tester", "junk"), b"")]
    calls = Kept([(subjects.call("r", f"x{n % 3}"), f'{{"é": {n}}}'.encode()) for n in range(1200)])
    bodies = [b'{"tree": []}', b"a tar file", COMMIT.dump_json(said(long, 2))]
    return ev, calls, {hashlib.sha256(body).hexdigest(): body for body in bodies}


async def everything(log: Any) -> list[Stored]:
    return [stored async for stored in log.read()]


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "run" / "blobs")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archives" / "r.jsonl.zst"


async def test_an_archive_reads_as_the_log_that_it_was_made_from(path: Path, blobs: Blobs) -> None:
    ev, calls, bodies = a_run(blobs)
    footer = await export(path, "r", ev, calls, blobs)
    assert (footer.ev, footer.call, footer.blobs, footer.missing) == (5, 1200, 3, ())
    with open_archive(path) as archive:
        assert archive.run == "r"
        assert [message async for message in archive.ev.raw()] == [message async for message in ev.raw()]
        assert [message async for message in archive.calls.raw()] == [message async for message in calls.raw()]
        assert {digest: archive.blobs.path(digest).read_bytes() for digest in archive.blobs.digests()} == bodies
        expected = [codec.decode(*message, blobs) async for message in ev.raw()]
        assert await everything(archive.ev) == expected
        assert [stored.commit is None for stored in expected] == [False, False, False, True, True]


async def test_the_read_side_answers_as_a_log_does(path: Path, blobs: Blobs) -> None:
    ev, calls, _ = a_run(blobs)
    await export(path, "r", ev, calls, blobs)
    with open_archive(path) as archive:
        assert (await archive.ev.head(), await archive.calls.head()) == (5, 1200)
        assert [stored.sequence async for stored in archive.ev.read(3)] == [4, 5]
        filtered = archive.calls.read(1190, subjects.call("r", "x1"))
        assert [stored.sequence async for stored in filtered] == [1193, 1196, 1199]
        found = await archive.calls.last(subjects.call("r", "x0"))
        assert found is not None
        assert found.sequence == 1198
        assert await archive.ev.last("ev.r.nobody.>") is None
        first = await archive.ev.get(1)
        assert first is not None
        assert first.subject == "ev.r.tester.here.0"
        assert [await archive.ev.get(sequence) for sequence in (0, 6)] == [None, None]


async def test_two_readers_of_one_log_do_not_disturb_each_other(path: Path, blobs: Blobs) -> None:
    _, calls, _ = a_run(blobs)
    await export(path, "r", Kept(), calls, blobs)
    with open_archive(path) as archive:
        one, two = archive.calls.read(), archive.calls.read(600)
        pairs = [((await anext(one)).sequence, (await anext(two)).sequence) for _ in range(600)]
        assert pairs == [(n, 600 + n) for n in range(1, 601)]


async def test_exporting_twice_gives_the_same_file(path: Path, blobs: Blobs) -> None:
    ev, calls, _ = a_run(blobs)
    await export(path, "r", ev, calls, blobs)
    before = path.read_bytes()
    await export(path, "r", ev, calls, blobs)
    assert path.read_bytes() == before


async def test_an_empty_run_has_an_archive(path: Path, blobs: Blobs) -> None:
    await export(path, "r", Kept(), Kept(), blobs)
    with open_archive(path) as archive:
        assert await everything(archive.ev) == []


async def test_blobs_that_are_gone_or_damaged_are_named_and_the_log_is_kept(path: Path, blobs: Blobs) -> None:
    ev, calls, bodies = a_run(blobs)
    gone, damaged = sorted(bodies)[:2]
    blobs.path(gone).unlink()
    blobs.path(damaged).write_bytes(b"x")
    footer = await export(path, "r", ev, calls, blobs)
    assert set(footer.missing) >= {gone, damaged}
    with open_archive(path) as archive:
        assert [message async for message in archive.ev.raw()] == [message async for message in ev.raw()]


async def test_what_an_agent_writes_is_no_claim_check(path: Path, blobs: Blobs) -> None:
    ref = BlobRef(digest="0" * 64, size=1, address="blob:" + "0" * 64).model_dump_json()
    event = ended(None).model_copy(update={"detail": ref})
    ev = Kept([(subjects.ev("r", "tester", "x"), COMMIT.dump_json(said(event, 0)))])
    assert (await export(path, "r", ev, Kept(), blobs)).missing == ()


async def test_an_export_that_fails_leaves_the_former_archive(path: Path, blobs: Blobs) -> None:
    ev, calls, _ = a_run(blobs)
    await export(path, "r", ev, calls, blobs)
    before = path.read_bytes()

    class Broken(Kept):
        async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
            yield 1, "call.r.x", b""
            raise Refused("stream CALL_r: gone")

    with pytest.raises(Refused, match="gone"):
        await export(path, "r", ev, Broken(calls.messages), blobs)
    assert path.read_bytes() == before
    assert [child.name for child in path.parent.iterdir()] == [path.name]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(bodies=st.lists(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode()), max_size=20))
async def test_any_bytes_come_back(bodies: list[bytes], tmp_path: Path) -> None:
    ev = Kept([("ev.r.tester.any", body) for body in bodies])
    await export(tmp_path / "a", "r", ev, Kept(), Blobs(tmp_path / "blobs"))
    with open_archive(tmp_path / "a") as archive:
        assert [data async for _, _, data in archive.ev.raw()] == bodies


async def test_a_file_cut_anywhere_is_refused(path: Path, blobs: Blobs) -> None:
    ev, calls, _ = a_run(blobs)
    await export(path, "r", ev, Kept(calls.messages[:20]), blobs)
    whole = path.read_bytes()
    for length in [*range(0, len(whole) - 4, max(1, len(whole) // 60)), len(whole) - 5]:
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveError, match=path.name):
            list(read_lines(path))


async def test_a_changed_byte_anywhere_is_refused(path: Path, blobs: Blobs) -> None:
    ev, calls, _ = a_run(blobs)
    await export(path, "r", ev, Kept(calls.messages[:20]), blobs)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(ArchiveError, match=path.name):
            list(read_lines(path))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[NatsServer, NatsServer]]:
    pair = (NatsServer(tmp_path / "one").start(), NatsServer(tmp_path / "two").start())
    yield pair
    for server in pair:
        server.stop()


async def stored_on(server: NatsServer, stream: str) -> list[tuple[int, str, bytes]]:
    link = await Link(server.url, 10).open("test", "test")
    log = ServerStream(link, stream)
    messages = log.raw()
    found = [await anext(messages) for _ in range(await log.head())]
    await messages.aclose()
    await link.close()
    return found


async def fill(server: NatsServer, folder: Path, count: int) -> None:
    bus = await Bus.connect(server.url, "r", "tester", "one", folder, create=True)
    workspace = bus.blobs.put(b"a tar file")
    state = StateRef(digest=workspace.digest, size=workspace.size, address=workspace.address)
    weights = WeightsRef(digest="0" * 64, size=1, address="weights/0")
    start = RunStarted(
        config={}, config_digest="0" * 64, seed=0, code_version="", weights=weights, tasks=("t",), heldout=()
    )
    long = ended(state).model_copy(update={"detail": "d" * 300_000})
    for number, event in enumerate([start, long, *(TimerFired(timer=f"t{n}") for n in range(count))]):
        await bus.ev.append(subjects.ev("r", "tester", "here"), said(event, number))
    await bus.calls.append(subjects.call("r", "x"), said(TimerFired(timer="call"), 10_000))
    await bus.close()


async def test_a_run_moves_to_another_server_byte_for_byte(
    servers: tuple[NatsServer, NatsServer], path: Path, tmp_path: Path
) -> None:
    one, two = servers
    await fill(one, tmp_path / "run", 600)
    await export_run(one.url, "r", tmp_path / "run", path)
    imported = await import_run(two.url, path, tmp_path / "elsewhere")
    assert (imported.run, imported.footer.ev, imported.footer.call) == ("r", 602, 1)
    for stream in (ev_stream("r"), call_stream("r")):
        assert await stored_on(two, stream) == await stored_on(one, stream)
    assert list(Blobs(tmp_path / "elsewhere" / "blobs").digests()) == list(Blobs(tmp_path / "run" / "blobs").digests())
    again = path.with_name("again.jsonl.zst")
    await export_run(two.url, "r", tmp_path / "elsewhere", again)
    assert again.read_bytes() == path.read_bytes()


async def test_a_moved_run_goes_on(servers: tuple[NatsServer, NatsServer], path: Path, tmp_path: Path) -> None:
    one, two = servers
    await fill(one, tmp_path / "run", 3)
    await export_run(one.url, "r", tmp_path / "run", path)
    await import_run(two.url, path, tmp_path / "elsewhere")
    bus = await Bus.connect(two.url, "r", "tester", "two", tmp_path / "elsewhere")
    assert await bus.ev.append(subjects.ev("r", "tester", "here"), said(TimerFired(timer="on"), 77)) == 6
    second = await bus.ev.get(2)
    assert second is not None
    assert second.commit is not None
    await bus.close()


async def test_an_import_that_was_cut_short_is_continued(
    servers: tuple[NatsServer, NatsServer], path: Path, tmp_path: Path
) -> None:
    one, two = servers
    await fill(one, tmp_path / "run", 3)
    await export_run(one.url, "r", tmp_path / "run", path)
    await import_run(two.url, path, tmp_path / "elsewhere")
    await fill_more(one, tmp_path / "run")
    await export_run(one.url, "r", tmp_path / "run", path)
    await import_run(two.url, path, tmp_path / "elsewhere")
    await import_run(two.url, path, tmp_path / "elsewhere")
    assert await stored_on(two, ev_stream("r")) == await stored_on(one, ev_stream("r"))


async def fill_more(server: NatsServer, folder: Path) -> None:
    bus = await Bus.connect(server.url, "r", "tester", "one", folder)
    await bus.ev.append(subjects.ev("r", "tester", "later"), said(TimerFired(timer="later"), 500))
    await bus.close()


async def test_a_run_that_says_something_else_is_not_imported_over(
    servers: tuple[NatsServer, NatsServer], path: Path, tmp_path: Path
) -> None:
    one, two = servers
    await fill(one, tmp_path / "run", 3)
    await export_run(one.url, "r", tmp_path / "run", path)
    bus = await Bus.connect(two.url, "r", "tester", "two", tmp_path / "elsewhere", create=True)
    await bus.ev.append(subjects.ev("r", "tester", "here"), said(TimerFired(timer="mine"), 0))
    await bus.close()
    with pytest.raises(Refused, match="sequence 1 is not the archive's"):
        await import_run(two.url, path, tmp_path / "elsewhere")
    assert len(await stored_on(two, ev_stream("r"))) == 1
