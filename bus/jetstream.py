"""The bus on a NATS server: the run's two logs, its work queues and its blobs over one connection."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import nats.errors
from nats.aio.msg import Msg

from bus import attached, codec, credentials, reader, streams, subjects, users
from bus.blobs import Blobs
from bus.errors import Conflict
from bus.link import Link
from bus.log import Expect, QueueName, Raw, Stored
from bus.publisher import Publisher, WrongSequence
from bus.room import Room, rooms
from bus.workqueue import Poison, WorkQueue, decode, parked
from schemas.envelope import COMMIT, Commit
from schemas.speakers import Stream

PATIENCE_SECONDS = 60.0
_LISTEN_MOST = 4096
_BEHIND_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # a server that is further behind than that is lost
_LAST = "Nats-Expected-Last-Subject-Sequence"
_LAST_OF = "Nats-Expected-Last-Subject-Sequence-Subject"


class JetStreamLog:
    """One stream; implements `bus.log.Log`."""

    def __init__(self, link: Link, blobs: Blobs, stream: str, prefix: str, grouped: bool) -> None:
        """`prefix` is what every subject of the stream begins with."""
        self._link, self._blobs, self._stream, self._prefix = link, blobs, stream, prefix
        self._publisher = Publisher(link, grouped)
        self._direct = f"$JS.API.DIRECT.GET.{stream}"

    async def start(self) -> None:
        """Begin to publish."""
        await self._publisher.start()

    async def close(self) -> None:
        """Stop publishing."""
        await self._publisher.close()

    async def append(self, subject: str, commit: Commit, expect: Expect | None = None) -> int:
        """See `Log`."""
        if not subject.startswith(self._prefix):
            raise ValueError(f"subject {subject}: stream {self._stream} takes {self._prefix}>")
        body = COMMIT.serializer.to_json(commit)
        if len(body) > codec.CLAIM_CHECK_BYTES:
            body = await asyncio.to_thread(codec.stub, commit.commit, body, self._blobs)
        if expect is None:
            return await self._publisher.publish(subject, body, {"Nats-Msg-Id": commit.commit}, alone=False)
        condition = {_LAST: str(expect.sequence), _LAST_OF: expect.filter}
        try:
            return await self._publisher.publish(subject, body, condition, alone=True)
        except WrongSequence as refusal:
            return await self._own_or_conflict(commit.commit, expect, refusal.found)

    async def _own_or_conflict(self, commit_id: str, expect: Expect, found: int) -> int:
        """The first commit under the filter after the expected sequence won: perhaps an earlier try of this one.

        The leader knows of one; where several servers hold the stream, one that answers may be a little behind it.
        """
        wanted: dict[str, str | int] = {"seq": expect.sequence + 1, "next_by_subj": expect.filter}
        winner = await self._fetch(wanted)
        for pause in () if 0 <= found <= expect.sequence else _BEHIND_PAUSES:
            if winner is not None:
                break
            await asyncio.sleep(pause)
            winner = await self._fetch(wanted)
        if winner is not None and codec.commit_id(winner[2]) == commit_id:
            return winner[0]
        raise Conflict(expect.filter, expect.sequence, max(found, 0)) from None

    async def read(self, after: int = 0, *filters: str) -> AsyncGenerator[Stored, None]:
        """See `Log`."""
        wanted = subjects.wanted(filters)
        one = wanted[0] if len(wanted) == 1 else ""  # several at once cost a server more than sending everything
        blobs, messages = self._blobs, reader.chunks(self._link, self._stream, after, one)
        async with contextlib.aclosing(messages):
            async for chunk in messages:
                for raw in chunk if one or not wanted else [raw for raw in chunk if subjects.under(wanted, raw[1])]:
                    yield await decode(*raw, blobs) if codec.is_stub(raw[2]) else codec.decode(*raw, blobs)

    def chunks(self, after: int = 0) -> AsyncGenerator[list[Raw], None]:
        """See `Log`."""
        return reader.chunks(self._link, self._stream, after, "")

    async def last(self, filter: str) -> Stored | None:  # noqa: A002
        """See `Log`."""
        return await self._stored({"last_by_subj": filter or self._prefix + ">"})

    async def get(self, sequence: int) -> Stored | None:
        """See `Log`."""
        return await self._stored({"seq": sequence}) if sequence > 0 else None

    async def head(self) -> int:
        """See `Log`."""
        return await self._link.last_sequence(self._stream)

    async def _stored(self, request: dict[str, str | int]) -> Stored | None:
        found = await self._fetch(request)
        return await decode(*found, self._blobs) if found else None

    async def _fetch(self, request: dict[str, str | int]) -> tuple[int, str, bytes] | None:
        """(sequence, subject, bytes) by direct get."""
        message = await self._link.ask(self._direct, dict(request))
        headers = message.headers or {}
        if "Nats-Sequence" not in headers:
            return None
        return int(headers["Nats-Sequence"]), headers["Nats-Subject"], message.data


async def open_link(url: str, folder: Path, service: str, name: str, patience_seconds: float) -> Link:
    """A connection as this service to the server of the run in this folder. Raises `Unavailable`, `Denied`."""
    login = credentials.login(url, folder, service)

    def who() -> tuple[str, str]:
        found = credentials.login(url, folder, service)
        return found.user, found.password

    return await Link(login.url, patience_seconds, who).open(name, login.inbox(service))


async def _provision(link: Link, url: str, folder: Path, run: str, limits: streams.Limits) -> None:
    """Make the run's streams as the one who may; where that is nobody else, over the same connection."""
    if credentials.login(url, folder, users.PROVISIONER).user in ("", link.user):
        await streams.provision(link, run, limits)
        return
    other = await open_link(url, folder, users.PROVISIONER, users.PROVISIONER, link.patience_seconds)
    try:
        await streams.provision(other, run, limits)
    finally:
        await other.close()


class Bus:
    """A service's view of one run on a server; implements `bus.log.BusPort`."""

    def __init__(self, link: Link, run: str, service: str, instance: str, folder: Path, grouped: bool) -> None:
        """Use `Bus.connect`."""
        self.run, self.service, self.instance = run, service, instance
        self.blobs = Blobs(folder / "blobs")
        self._link = link
        self.ev = self._log(streams.ev_stream(run), f"ev.{run}.", grouped)
        self.calls = self._log(streams.call_stream(run), f"call.{run}.", grouped)

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        service: str,
        instance: str,
        folder: Path,
        create: bool = False,
        *,
        sync: Literal["always", "laptop"] = "always",
        limits: streams.Limits | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> "Bus":
        """Connect to a server and, with `create`, provision the run there.

        Args:
            url: of the server, nats://host:port.
            run: whose logs these are.
            service: kind of the process; also the prefix of its inboxes.
            instance: this process of that kind.
            folder: the run folder; blobs lie in its `blobs`, passwords in its `users` (`bus.credentials`).
            create: make the run's streams, or bring them to `limits`. Only a provisioner does.
            sync: how the server syncs (`NatsServer.sync`): under "always" concurrent commits share a sync.
            limits: sizes and leases; read with `create` only.
            patience_seconds: how long an append or request waits for a server that is away.

        Raises:
            Unavailable: no server answers at the URL.
            Denied: the server does not take the service's user.
            NoStream: the run was never provisioned there.
        """
        subjects.everything(run)
        link = await open_link(url, folder, service, f"{service}-{instance}", patience_seconds)
        try:
            if create:
                await _provision(link, url, folder, run, limits or streams.Limits())
            await link.last_sequence(streams.ev_stream(run))
            bus = cls(link, run, service, instance, folder, sync == "always")
            await bus.ev.start()
            await bus.calls.start()
        except BaseException:
            await link.close()
            raise
        return bus

    def queue(self, name: QueueName) -> WorkQueue:
        """See `BusPort`; each call is one more worker's end."""
        return WorkQueue(self._link, self.blobs, self.run, name)

    @property
    def url(self) -> str:
        """Of the server, without a login."""
        return self._link.url

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._link.up.is_set()

    async def grant(self, stream: Stream, user: str, after: int, filter: str = "", *, kept: bool = False) -> None:  # noqa: A002
        """Make the one consumer of an attached user; see `bus.attached`."""
        await attached.grant(self._link, attached.name_of(self.run, stream), user, after, filter, kept=kept)

    async def revoke(self, stream: Stream, user: str) -> None:
        """Drop the consumer of an attached user."""
        await attached.revoke(self._link, attached.name_of(self.run, stream), user)

    async def room(self) -> tuple[Room, Room]:
        """How much EV and CALL may still take. Raises `NoStream`, `Unavailable`."""
        return await rooms(self._link, self.run)

    def parked(self) -> AsyncGenerator[Poison, None]:
        """See `BusPort`."""
        return parked(self._link, self.blobs, self.run)

    async def tell(self, subject: str, body: bytes) -> None:
        """See `BusPort`."""
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._link.nc.publish(subject, body)

    async def listen(self, subject: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """See `BusPort`."""
        heard: asyncio.Queue[Msg] = asyncio.Queue(_LISTEN_MOST)

        async def hear(message: Msg) -> None:
            if not heard.full():
                heard.put_nowait(message)

        subscription = await self._link.subscribe(subject, hear)
        try:
            while True:
                message = await heard.get()
                yield message.subject, message.data
        finally:
            await self._link.unsubscribe(subscription)

    async def close(self) -> None:
        """See `BusPort`."""
        await self.ev.close()
        await self.calls.close()
        await self._link.close()

    def _log(self, stream: str, prefix: str, grouped: bool) -> JetStreamLog:
        return JetStreamLog(self._link, self.blobs, stream, prefix, grouped)
