"""One server a store, however the start of the one before ended."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from bus import server as server_module
from bus.errors import ServerFailed
from bus.server import NatsServer
from tests.slow_server import SlowServer

KILLED = """
import os, signal, sys
from pathlib import Path
from bus import server

holder, _, name = sys.argv[2].rpartition(".")
holder = os if holder == "os" else server
real = getattr(holder, name)

def last(*given, **more):
    real(*given, **more)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(holder, name, last)
server.NatsServer(Path(sys.argv[1])).start()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    NatsServer(tmp_path / "store").stop()


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowServer:
    return SlowServer(tmp_path, monkeypatch)


def noted(store: Path) -> int:
    """The process that the store's note tells of."""
    return int(orjson.loads((store / "server.json").read_bytes())["pid"])


def serves(store: Path, pid: int) -> bool:
    return server_module._runs(pid, store / "nats.conf")


@pytest.mark.parametrize("last", ["os.posix_spawn", "server._greets"])
def test_a_server_whose_starter_was_killed_before_it_answered_is_adopted(store: Path, last: str) -> None:
    starter = subprocess.run([sys.executable, "-c", KILLED, str(store), last], check=False)
    assert starter.returncode == -signal.SIGKILL
    server = NatsServer(store).start()
    assert server.adopted
    assert server.pid == noted(store) == int((store / "nats.pid").read_text())
    server.stop()
    assert not serves(store, server.pid)


def test_a_store_that_takes_long_to_read_is_waited_for_by_all_who_start_it(store: Path, slow: SlowServer) -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(NatsServer(store).start)
        slow.until_waited_for()
        second = threads.submit(NatsServer(store).start)
        slow.read()
        assert first.result().pid == second.result().pid == noted(store)


def test_a_wait_that_is_long_is_told_of_once(store: Path, slow: SlowServer, caplog: pytest.LogCaptureFixture) -> None:
    server = NatsServer(store)
    with ThreadPoolExecutor(1) as threads:
        started = threads.submit(server.start)
        slow.until_waited_for()
        slow.read()
        started.result()
    why = f"nats-server (process {server.pid}) does not answer yet, as when it reads a long log"
    assert [record.getMessage() for record in caplog.records] == [f"store {store}: {why}; waiting"]


def test_a_start_that_is_given_up_leaves_no_server(store: Path, slow: SlowServer) -> None:
    server = NatsServer(store)
    with ThreadPoolExecutor(1) as threads:
        started = threads.submit(server.start)
        slow.until_waited_for()
        pid = noted(store)
        os.kill(pid, 0)  # it is there
        server.give_up()
        with pytest.raises(ServerFailed, match="the start of its server was given up"):
            started.result()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_nothing_tells_of_keeps_its_store_until_it_ends(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = NatsServer(store).start()
    (store / "server.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "_STOP_SECONDS", 0.0)
        with pytest.raises(ServerFailed, match=r"to be found here \(process \d+, as noted; the folder may"):
            NatsServer(store).start()
    server.kill()
    assert not NatsServer(store).start().adopted


def test_a_server_whose_folder_was_moved_meanwhile_is_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves under the name that the folder had, which nothing there tells any more."""
    server = NatsServer(store).start()
    moved = store.rename(tmp_path / "moved")
    monkeypatch.setattr(server_module, "_STOP_SECONDS", 0.0)
    try:
        with pytest.raises(
            ServerFailed, match=rf"\(process {server.pid}, as noted; the folder may have been moved, or"
        ):
            NatsServer(moved).start()
    finally:
        server.kill()
    assert not NatsServer(moved).start().adopted
    NatsServer(moved).stop()


def test_a_store_without_locks_is_served_and_adopted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    first, second = NatsServer(store).start(), NatsServer(store).start()
    assert (second.pid, second.adopted) == (first.pid, True)


def test_what_another_server_says_on_the_port_is_not_taken_for_an_answer(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = NatsServer(tmp_path / "other").start()
    monkeypatch.setattr(server_module, "is_free", lambda *_: True)  # as it was when it was looked at
    try:
        with pytest.raises(ServerFailed, match=r"nats-server stopped at once .*address already in use"):
            NatsServer(store, port=int(other.url.rpartition(":")[2])).start()
    finally:
        other.stop()
