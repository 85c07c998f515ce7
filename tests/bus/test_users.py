"""Each service may say what the table of speakers says it says, and the server holds it to that (design §4 rule 10)."""

import asyncio
import json
import re
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest

from bus import credentials, subjects, users
from bus.credentials import Login, apart, login
from bus.errors import Denied
from bus.jetstream import Bus
from bus.log import QueueName
from bus.server import NatsServer
from schemas.envelope import COMMIT, Commit
from schemas.speakers import ENTITIES, SERVICES, SINGLETONS
from tests.bus.conftest import dispatched, said, take

ROOT = Path(__file__).parents[2]
RUN = "r"
GOLDEN = ROOT / "tests/schemas/golden"


def listed() -> dict[str, set[str]]:
    """Event type -> who says it, as docs/events tells people."""
    text = (ROOT / "docs/events/README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\].*?\| \d+ \| ([\w, ]+) \|", text, re.MULTILINE)
    return {kind: set(who.split(", ")) for kind, who in rows}


@pytest.mark.parametrize("run", [RUN, users.ANY])
@pytest.mark.parametrize("kind", listed())
def test_who_may_say_an_event_is_who_docs_events_lists(kind: str, run: str) -> None:
    """On each subject of the type, in one's own name; nobody in another's, but the provisioner for `control`."""
    speakers = listed()[kind]
    if kind == "ModelCallRecorded":
        may = {user for user in users.USERS if users.permissions(user, run).may_publish(subjects.call(RUN, "x"))}
        assert may - {users.IMPORTER} == speakers
        return
    for entity in ENTITIES[kind]:
        for service in SERVICES:
            subject = subjects.ev(RUN, service, entity, "x")
            may = {user for user in users.USERS if users.permissions(user, run).may_publish(subject)}
            assert may - {users.IMPORTER, users.PROVISIONER} <= {service}
            assert service in may or service not in speakers
    assert kind in ("OfficeTaken", "TimerSet", "TimerFired") or not speakers & SINGLETONS or len(speakers) == 1


@pytest.mark.parametrize("run", [RUN, users.ANY])
def test_nobody_but_a_provisioner_touches_streams_or_the_queues_consumers(run: str) -> None:
    trusted = {users.PROVISIONER, users.IMPORTER}
    streams = ("STREAM.CREATE.EV_r", "STREAM.DELETE.EV_r", "STREAM.PURGE.EV_r", "STREAM.UPDATE.CALL_r")
    queues = ("CONSUMER.CREATE.QSTEP_r.w", "CONSUMER.DELETE.QSTEP_r.w", "CONSUMER.CREATE.QSTEP_r.w.q.>")
    for call in (*streams, *queues):
        may = {user for user in users.USERS if users.permissions(user, run).may_publish(f"$JS.API.{call}")}
        assert may == trusted, call


def test_an_attached_consumer_may_ask_for_its_own_next_message_and_nothing_else() -> None:
    one = users.ATTACHED[3]
    assert users.permissions(one, RUN) == users.Permissions(
        (f"$JS.API.CONSUMER.MSG.NEXT.EV_r.{one}", f"$JS.API.CONSUMER.MSG.NEXT.CALL_r.{one}"), (f"_INBOX.{one}.>",)
    )


def test_no_two_users_hear_each_others_answers() -> None:
    inboxes = [each for user in users.USERS for each in users.permissions(user, RUN).subscribe if "_INBOX" in each]
    assert len(set(inboxes)) == len(inboxes) == len(users.USERS)


def test_a_user_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="user 'stranger': no such user; one of control, "):
        users.permissions("stranger", RUN)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, NatsServer]]:
    folder = tmp_path_factory.mktemp("run")
    server = credentials.server_of(folder, RUN, "laptop").start()
    yield folder, server
    server.stop()


class Crew:
    """Buses of one guarded run, each as the service that it is asked for."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self._open = folder, url, list[Bus]()

    async def __call__(self, service: str, **more: bool) -> Bus:
        self._open.append(await Bus.connect(self.url, RUN, service, "one", self.folder, patience_seconds=20, **more))
        return self._open[-1]

    async def close(self) -> None:
        for bus in self._open:
            await bus.close()


@pytest.fixture
async def crew(guarded: tuple[Path, NatsServer]) -> AsyncIterator[Crew]:
    crew = Crew(guarded[0], guarded[1].url)
    await crew("control", create=True)
    yield crew
    await crew.close()


def golden(kind: str) -> Commit:
    return COMMIT.validate_json((GOLDEN / f"{kind}.v1.json").read_bytes())


async def test_every_service_says_its_own_events_and_reads_them_back(crew: Crew) -> None:
    for service in SERVICES:
        bus = await crew(service)
        mine = sorted({entity for kind, who in listed().items() if service in who for entity in ENTITIES[kind]})
        last = [await bus.ev.append(subjects.ev(RUN, service, entity, "x"), said()) for entity in mine][-1]
        assert (await take(bus.ev, 1, last - 1))[0].sequence == last
        assert (await take(bus.ev, 1, 0, subjects.producer(RUN, service)))[0].subject.startswith(f"ev.r.{service}.")
        assert await bus.ev.head() >= last
        assert (await bus.ev.last("")) is not None
        assert await bus.calls.head() >= 0


async def test_a_proxy_that_says_what_the_core_says_is_denied_at_once(crew: Crew) -> None:
    proxy = await crew("proxy")
    before = await proxy.ev.head()
    async with asyncio.timeout(10):
        with pytest.raises(Denied, match=r"^subject ev\.r\.cell\.core: user proxy may not publish there on nats://"):
            await proxy.ev.append(subjects.ev(RUN, "cell", "core"), golden("OptimizerStepped"))
        with pytest.raises(Denied):  # nor under its own name
            await proxy.ev.append(subjects.ev(RUN, "proxy", "core"), golden("OptimizerStepped"))
        many = (proxy.ev.append(subjects.ev(RUN, "cell", "core"), said()) for _ in range(40))
        assert {type(each) for each in await asyncio.gather(*many, return_exceptions=True)} == {Denied}
    assert await proxy.ev.head() == before


async def test_those_who_look_say_nothing(crew: Crew) -> None:
    for user in users.LOOKERS:
        bus = await crew(user)
        assert (await take(bus.ev, 1))[0].sequence == 1
        for subject in (subjects.ev(RUN, user, "here"), subjects.ev(RUN, "control", "run")):
            with pytest.raises(Denied):
                await bus.ev.append(subject, said())
        with pytest.raises(Denied):
            await bus.calls.append(subjects.call(RUN, "x"), said())


@pytest.mark.parametrize(("worker", "mine", "other"), [("runner", "rollout", "eval"), ("evaluator", "eval", "step")])
async def test_a_worker_pulls_from_its_own_queue_only(
    crew: Crew, worker: str, mine: QueueName, other: QueueName
) -> None:
    speaker = await crew("scheduler" if mine == "rollout" else "runner")
    end = ("dispatched",) if mine == "rollout" else ("terminated",)
    subject = subjects.ev(RUN, speaker.service, "execution", "x1", *end)
    await speaker.ev.append(subject, dispatched("x1"))
    bus = await crew(worker)
    (item,) = await bus.queue(mine).pull(1, 10)
    assert item.stored.subject == subject
    await item.ack()
    assert await bus.queue(mine).pull(1, 0) == []
    with pytest.raises(Denied, match=f"CONSUMER.MSG.NEXT.Q{other.upper()}_r.w"):
        await bus.queue(other).pull(1, 5)


async def test_only_cells_and_the_scheduler_beat_and_each_in_its_own_name(crew: Crew) -> None:
    scheduler, cell = await crew("scheduler"), await crew("cell")
    heard = scheduler.listen(subjects.heartbeats(RUN))
    first = asyncio.ensure_future(anext(heard))
    while not first.done():  # what is told before anybody listens is lost
        await cell.tell(subjects.hint(RUN, "heartbeat", "scheduler"), b"forged")
        await cell.tell(subjects.hint(RUN, "heartbeat", 0), b"alive")
        await asyncio.wait({first}, timeout=0.05)
    assert first.result() == ("hint.r.heartbeat.0", b"alive")
    await heard.aclose()


async def test_without_a_user_or_with_a_wrong_password_there_is_no_way_in(crew: Crew, tmp_path: Path) -> None:
    with pytest.raises(Denied, match=r"^url nats://.*: the server does not take user without a name with this passw"):
        await Bus.connect(crew.url, RUN, "reader", "one", tmp_path)
    credentials.keep(tmp_path, Login("", "scheduler", "guess"))
    with pytest.raises(Denied, match="user scheduler"):
        await Bus.connect(crew.url, RUN, "scheduler", "one", tmp_path)


async def test_a_login_in_the_url_serves_any_service_and_is_named_as_its_user(crew: Crew, tmp_path: Path) -> None:
    secret = credentials.password(crew.folder, "reader")
    url = crew.url.replace("//", f"//reader:{secret}@")
    bus = await Bus.connect(url, RUN, "dashboard", "one", tmp_path)
    assert await bus.ev.head() >= 0
    with pytest.raises(Denied, match="user reader may not publish"):
        await bus.ev.append(subjects.ev(RUN, "control", "run"), said())
    await bus.close()


async def test_a_server_without_users_takes_all_and_later_one_with_users_takes_them_back(tmp_path: Path) -> None:
    """What an upgrade meets: a server of an earlier version that runs, is adopted, and then is started anew."""
    old = NatsServer(tmp_path / "nats", "laptop").start()
    server = credentials.server_of(tmp_path, RUN, "laptop").start()
    try:
        assert server.adopted
        bus = await Bus.connect(server.url, RUN, "control", "one", tmp_path, create=True)
        first = await bus.ev.append(subjects.ev(RUN, "control", "run"), said())
        old.stop()
        server.start()
        assert not server.adopted
        assert await bus.ev.append(subjects.ev(RUN, "control", "run"), said()) == first + 1
        with pytest.raises(Denied):
            await bus.ev.append(subjects.ev(RUN, "scheduler", "office"), said())
        await bus.close()
    finally:
        server.stop()


def test_passwords_are_files_for_their_owner_alone(guarded: tuple[Path, NatsServer]) -> None:
    folder, server = guarded
    files = sorted((folder / credentials.FOLDER).iterdir())
    assert [each.stem for each in files] == sorted(users.USERS)
    assert {stat.S_IMODE(each.stat().st_mode) for each in (*files, server.folder / "nats.conf")} == {0o600}
    assert stat.S_IMODE((folder / credentials.FOLDER).stat().st_mode) == 0o700
    assert len({json.loads(each.read_text())["password"] for each in files}) == len(files)


def test_a_login_comes_from_the_url_the_folder_the_environment_or_what_was_kept(tmp_path: Path) -> None:
    given = {credentials.USER: "cell", credentials.PASSWORD: "p"}
    url = "nats://host:4222"
    assert login(url, tmp_path, "cell", {}) == (url, "", "")
    credentials.keep(tmp_path, Login(url, "admin", "kept"))
    assert login(url, tmp_path, "cell", {}) == (url, "admin", "kept")
    assert login(url, tmp_path, "cell", given) == (url, "cell", "p")
    given[credentials.ELSEWHERE] = str(tmp_path / "shared/users")
    there = credentials.password(tmp_path / "shared", "cell")
    assert login(url, tmp_path, "cell", given) == (url, "cell", there)
    own = credentials.password(tmp_path, "cell")
    assert login(url, tmp_path, "cell", given) == (url, "cell", own)
    assert login("nats://me:s%40cret@host:4222", tmp_path, "cell", given) == (url, "me", "s@cret")
    assert apart(url) == Login(url)


async def test_one_configuration_serves_runs_that_do_not_exist_yet(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", "laptop", authorization=lambda: credentials.ensure(tmp_path, users.ANY))
    server.start()
    try:
        for run in ("one", "two"):
            control = await Bus.connect(server.url, run, "control", "one", tmp_path, create=True)
            assert await control.ev.append(subjects.ev(run, "control", "run"), said(run=run)) == 1
            await control.close()
        proxy = await Bus.connect(server.url, "two", "proxy", "one", tmp_path)
        assert await proxy.calls.append(subjects.call("two", "x"), said(run="two")) == 1
        with pytest.raises(Denied):
            await proxy.ev.append(subjects.ev("two", "cell", "core"), said(run="two"))
        await proxy.close()
    finally:
        server.stop()


async def test_a_reader_can_neither_delete_a_stream_nor_take_what_a_worker_is_owed(crew: Crew) -> None:
    """Through any client: the rights are the server's, not ours."""
    secret = credentials.password(crew.folder, users.READER)
    denied: list[str] = []

    async def note(error: Exception) -> None:
        denied.append(str(error))

    client = await nats.connect(
        crew.url, user=users.READER, password=secret, inbox_prefix=b"_INBOX.reader", error_cb=note
    )
    for subject in ("$JS.API.STREAM.DELETE.EV_r", "$JS.API.CONSUMER.MSG.NEXT.QROLLOUT_r.w", "$JS.ACK.QROLLOUT_r.w.1"):
        await client.publish(subject, b"")
    await client.subscribe("_INBOX.scheduler.>")
    await client.flush()
    while len(denied) < 4:
        await client.flush()
    await client.close()
    assert all("permissions violation" in each for each in denied)
