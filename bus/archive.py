"""Export a run's log into an archive, and import an archive into a server where the run is not yet.

A round trip is exact: the same bytes under the same subjects at the same sequences, with the blobs that they refer to.
The time at which a server stored a message is not part of it; a commit carries its own. Weights are not in an archive.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson
from pydantic import ValidationError

from bus import codec, reader, streams, users
from bus.archive_file import Footer, read_lines
from bus.archive_log import Archive, ArchiveLog, open_archive
from bus.archive_writer import ArchiveWriter, writing
from bus.blobs import SCHEME, BlobError, Blobs
from bus.errors import Refused
from bus.group import Group, SaidBefore, commit_group
from bus.jetstream import open_link
from bus.link import Link
from schemas.refs import BlobRef
from schemas.speakers import Stream

_GROUP_MOST = 500
_GROUP_BYTES = 4 << 20
PATIENCE_SECONDS = 60.0


class RawLog(Protocol):
    """A stream as stored: what an archive is made from."""

    async def head(self) -> int:
        """The last sequence; 0 for an empty log."""

    def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        """(sequence, subject, stored bytes) of every message, in order; may go on for ever."""


class Imported(NamedTuple):
    """The run that an archive brought, and what it holds."""

    run: str
    footer: Footer


class ServerStream:
    """A stream on a server."""

    def __init__(self, link: Link, stream: str) -> None:
        """Read through this connection."""
        self._link, self._stream = link, stream

    async def head(self) -> int:
        """See `RawLog`."""
        return await self._link.last_sequence(self._stream)

    async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        """See `RawLog`."""
        chunks = reader.chunks(self._link, self._stream, 0, "")
        try:
            async for chunk in chunks:
                for message in chunk:
                    yield message
        finally:
            await chunks.aclose()


async def export_run(url: str, run: str, folder: Path, path: Path) -> Footer:
    """Write what a run's log holds now into an archive.

    Args:
        url: of the server, nats://host:port.
        run: whose log it is.
        folder: the run folder, whose blobs are taken along.
        path: of the archive, `.jsonl.zst`; replaced when all of it is on disk.

    Returns:
        The archive's footer; its `missing` names the blobs that the folder does not have.

    Raises:
        Unavailable: no server answers at the URL.
        NoStream: the run is not there.
    """
    async with _connected(url, folder, users.READER) as link:
        ev, calls = ServerStream(link, streams.ev_stream(run)), ServerStream(link, streams.call_stream(run))
        return await export(path, run, ev, calls, Blobs(folder / "blobs"))


async def export(path: Path, run: str, ev: RawLog, calls: RawLog, blobs: Blobs) -> Footer:
    """Write an archive of two logs up to where they are now, and of the blobs that they refer to."""
    with writing(path, run) as archive:
        references = await _messages(archive, "EV", ev, blobs)
        references |= await _messages(archive, "CALL", calls, blobs)
        missing = [digest for digest in sorted(references) if not _copy(archive, references[digest], blobs)]
        return archive.footer(tuple(missing))


async def import_run(url: str, path: Path, folder: Path) -> Imported:
    """Bring an archive's run to a server: blobs first, then the messages at the sequences they had.

    The whole archive is checked before anything is written. An import that was cut short is continued by repeating it.

    Args:
        url: of the server; the run's streams are made there.
        path: of the archive.
        folder: the run folder, which gets the blobs.

    Raises:
        ArchiveError: the archive is not what it should be; nothing was written.
        Refused: the server already has a run of this name that says something else.
        StreamFull: the server's store is too small.
        Unavailable: no server answers at the URL.
    """
    await asyncio.to_thread(_check, path)
    with open_archive(path) as archive:
        async with _connected(url, folder, users.IMPORTER) as link:
            _copy_blobs(archive.blobs, Blobs(folder / "blobs"))
            await streams.provision(link, archive.run, _room(archive))
            await _fill(link, streams.ev_stream(archive.run), archive.ev)
            await _fill(link, streams.call_stream(archive.run), archive.calls)
        return Imported(archive.run, archive.footer)


def _check(path: Path) -> None:
    for _ in read_lines(path):
        pass


async def _messages(archive: ArchiveWriter, stream: Stream, log: RawLog, blobs: Blobs) -> dict[str, BlobRef]:
    """Write a stream up to where it is now; returns the blobs that it refers to."""
    references: dict[str, BlobRef] = {}
    head = await log.head()
    async with aclosing(log.raw()) as messages:
        while head and (message := await anext(messages)):
            archive.message(stream, *message)
            references |= _references(message[2], blobs)
            if message[0] == head:
                break
    return references


def _references(data: bytes, blobs: Blobs) -> dict[str, BlobRef]:
    """The blobs that stored bytes refer to by their claim checks, also from inside a body that is one."""
    found = _claim_checks(data)
    if codec.is_stub(data):
        for stub in tuple(found.values()):
            found |= _claim_checks(_body(stub, blobs) or b"")
    return found


def _claim_checks(data: bytes) -> dict[str, BlobRef]:
    """Every object in a JSON text that is a claim check of our own store; text inside strings is none."""
    if SCHEME.encode() not in data:
        return {}
    try:
        waiting = [orjson.loads(data)]
    except ValueError:
        return {}
    found = {}
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and (reference := _as_reference(part)) is not None:
            found[reference.digest] = reference
        elif isinstance(part, dict | list):
            waiting += part.values() if isinstance(part, dict) else part
    return found


def _as_reference(part: dict[str, Any]) -> BlobRef | None:
    if not str(part.get("address")).startswith(SCHEME):
        return None
    try:
        return BlobRef.model_validate(part)
    except ValidationError:
        return None


def _body(reference: BlobRef, blobs: Blobs) -> bytes | None:
    try:
        return blobs.get(reference)
    except BlobError:
        return None


def _copy(archive: ArchiveWriter, reference: BlobRef, blobs: Blobs) -> bool:
    body = _body(reference, blobs)
    if body is not None:
        archive.blob(reference.digest, body)
    return body is not None


def _copy_blobs(source: Blobs, target: Blobs) -> None:
    for digest in source.digests():
        target.put(source.path(digest).read_bytes())


def _room(archive: Archive) -> streams.Limits:
    """Twice what the logs hold, so that the run can go on."""
    usual = streams.Limits()
    return replace(
        usual,
        ev_bytes=max(usual.ev_bytes, 2 * archive.ev.size),
        call_bytes=max(usual.call_bytes, 2 * archive.calls.size),
    )


async def _fill(link: Link, stream: str, log: ArchiveLog) -> None:
    """Append what the stream does not have yet, having made sure that it has nothing else."""
    there = await link.last_sequence(stream)
    await _check_same(link, stream, log, there)
    loop = asyncio.get_running_loop()
    async for first, members in _groups(log, there):
        group = Group(members, loop.time() + PATIENCE_SECONDS)
        try:
            stored = await commit_group(link, group)
        except SaidBefore:  # by a try whose answer was lost
            await _check_same(link, stream, log, await link.last_sequence(stream))
            continue
        if stored != first:
            raise Refused(f"stream {stream}: sequence {first} was stored as {stored}; somebody else writes to this run")


async def _check_same(link: Link, stream: str, log: ArchiveLog, there: int) -> None:
    if there == 0:
        return
    async with aclosing(ServerStream(link, stream).raw()) as stored, aclosing(log.raw()) as archived:
        for sequence in range(1, there + 1):
            if await anext(stored) != await anext(archived, None):
                raise Refused(
                    f"stream {stream}: sequence {sequence} is not the archive's; import into a server without this run"
                )


async def _groups(log: ArchiveLog, after: int) -> AsyncIterator[tuple[int, list[tuple[str, bytes, str]]]]:
    """(first sequence, messages) of what follows a sequence, as much as one batch may hold; the first has an id."""
    members: list[tuple[str, bytes, str]] = []
    size = 0
    async for sequence, subject, data in log.raw():
        if sequence <= after:
            continue
        if members and (len(members) == _GROUP_MOST or size + len(data) > _GROUP_BYTES):
            yield sequence - len(members), members
            members, size = [], 0
        identity = "" if members else f"import-{sequence}"
        members.append((subject, data, identity))
        size += len(data)
    if members:
        yield await log.head() - len(members) + 1, members


@asynccontextmanager
async def _connected(url: str, folder: Path, user: str) -> AsyncIterator[Link]:
    link = await open_link(url, folder, user, user, PATIENCE_SECONDS)
    try:
        yield link
    finally:
        await link.close()
