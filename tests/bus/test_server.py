"""The embedded server: started, adopted, refused, stopped."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bus import server as server_module
from bus.errors import ServerFailed
from bus.server import NatsServer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    NatsServer(tmp_path / "store").stop()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_store_that_is_served_already_is_adopted(store: Path) -> None:
    first = NatsServer(store).start()
    second = NatsServer(store).start()
    assert (second.url, second.pid) == (first.url, first.pid)
    assert (first.adopted, second.adopted) == (False, True)
    second.stop()
    assert not _alive(first.pid)


def test_two_that_start_at_once_share_one_server(store: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        servers = list(threads.map(lambda _: NatsServer(store).start(), range(4)))
    assert len({server.pid for server in servers}) == 1


def test_a_killed_server_comes_back_on_its_port(store: Path) -> None:
    server = NatsServer(store).start()
    url, pid = server.url, server.pid
    server.kill()
    assert not _alive(pid)
    again = NatsServer(store).start()
    assert again.url == url
    assert again.pid != pid


def test_a_killed_server_whose_port_was_taken_comes_back_on_another(store: Path) -> None:
    server = NatsServer(store).start()
    server.kill()
    with socket.create_server(("127.0.0.1", int(server.url.rpartition(":")[2]))):
        assert NatsServer(store).start().url != server.url


def test_a_server_that_is_started_again_waits_for_its_port(store: Path) -> None:
    server = NatsServer(store).start()
    url = server.url
    server.kill()
    with (
        socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))),
        pytest.raises(ServerFailed, match="where this server's clients wait"),
    ):
        server.start()
    assert server.start().url == url


def test_no_client_is_given_the_port_of_the_server_that_it_waits_for(store: Path) -> None:
    drawn = range(*(int(each) for each in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    assert int(NatsServer(store).start().url.rpartition(":")[2]) not in drawn


def test_a_recycled_process_id_is_not_taken_for_the_server(store: Path) -> None:
    server = NatsServer(store).start()
    note = server._note
    server.kill()
    (store / "server.json").write_bytes(
        server_module.orjson.dumps(note._replace(pid=os.getpid())._asdict())  # type: ignore[union-attr]
    )
    again = NatsServer(store).start()
    assert again.pid != os.getpid()
    again.stop()


def test_stopping_twice_and_before_a_start_is_harmless(store: Path) -> None:
    server = NatsServer(store)
    server.stop()
    server.start()
    server.stop()
    server.stop()
    with pytest.raises(ServerFailed, match="not started"):
        _ = NatsServer(store).url


def test_a_port_in_use_is_named(store: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ServerFailed, match=f"^port {port}: in use on 127.0.0.1; choose another or leave it out$"):
            NatsServer(store, port=port).start()


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ServerFailed, match=r"cannot be written .*; choose another folder$"):
        NatsServer(tmp_path / "file" / "store").start()


def test_a_store_on_a_full_disk_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(ServerFailed, match=r"MiB are free, .* are needed; make room$"):
        NatsServer(store).start()


def test_a_store_served_with_less_durability_is_not_adopted(store: Path) -> None:
    NatsServer(store, sync="laptop").start()
    with pytest.raises(ServerFailed, match=r"sync always: .* already served with sync laptop"):
        NatsServer(store, sync="always").start()


def test_a_store_served_elsewhere_is_not_moved_to_another_port(store: Path) -> None:
    server = NatsServer(store).start()
    with pytest.raises(ServerFailed, match=f"already served on port {server.url.rpartition(':')[2]}"):
        NatsServer(store, port=1).start()


def test_a_server_that_stops_at_once_says_why_in_one_line(store: Path) -> None:
    store.mkdir()
    (store / "jetstream").write_text("a file where the store should be")
    with pytest.raises(ServerFailed, match="nats-server stopped at once") as failure:
        NatsServer(store).start()
    assert "\n" not in str(failure.value)
    assert "storage directory is not a directory" in str(failure.value)


def test_a_folder_with_quotes_and_spaces_is_served(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / 'a "b" c').start()
    server.stop()
