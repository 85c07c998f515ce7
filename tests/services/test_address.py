"""Where sockets listen and how others are told, over both families of the internet protocol."""

import socket
from pathlib import Path

import pytest

from bus.ports import any_port, is_free, lasting_port
from bus.streams import Limits
from gyre.addresses import at, listener
from gyre.engines.remote import RemoteEngine
from gyre.trainers.meeting import Meeting
from gyre.trainers.nodes import LISTEN as NODES_LISTEN
from gyre.trainers.nodes import NODES
from schemas.roles import CellRegistered
from services.address import ADDRESS, LISTEN, reached, url
from tests.proxy.rig import RUN, SECRET, SYSTEM, TASK, Cell
from tests.services.agents import Crew
from tests.trainers.far import has_ipv6

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LISTEN, raising=False)
    monkeypatch.delenv(ADDRESS, raising=False)


def test_an_address_with_colons_stands_in_brackets_in_urls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert url(80) == "http://127.0.0.1:80"
    monkeypatch.setenv(LISTEN, "fd00::1")
    assert (reached(), url(80)) == ("fd00::1", "http://[fd00::1]:80")
    for told, known in (("fd00::2", "fd00::2"), ("[fd00::2]", "fd00::2")):
        monkeypatch.setenv(ADDRESS, told)
        assert (reached(), url(80)) == (known, "http://[fd00::2]:80")
    monkeypatch.setenv(ADDRESS, "proxy.gyre.svc")
    assert url(80) == "http://proxy.gyre.svc:80"


def test_what_listens_everywhere_is_reached_under_this_hosts_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {socket.gethostname(): "192.0.2.7"}
    monkeypatch.setattr(socket, "gethostbyname", known.__getitem__)
    for everywhere in ("0.0.0.0", "::"):
        monkeypatch.setenv(LISTEN, everywhere)
        assert reached() == "192.0.2.7"


@needs_ipv6
def test_everywhere_is_both_families() -> None:
    with listener("::") as held:
        port = held.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()


@needs_ipv6
@pytest.mark.parametrize("listen", ["::1", "::"])
async def test_cells_and_proxy_are_reached_where_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    monkeypatch.setenv(LISTEN, listen)
    crew = Crew(tmp_path, host="::1")
    crew.broker.provision(RUN, Limits())
    (tmp_path / "proxy.key").write_bytes(SECRET)
    await crew.begin()
    async with crew.agent(0, Cell(["one"]).engine), crew.proxy() as client:
        async with RemoteEngine((await crew.heard(CellRegistered)).url) as engine:
            assert (await engine.health()).admitting
        assert client.url.startswith("http://[::1]:")
        assert (await client.reply(await crew.launch(), [SYSTEM, TASK]))["content"] == "one"


@needs_ipv6
def test_free_ports_are_looked_for_in_the_family_of_the_host() -> None:
    with listener("::1") as held:
        assert not is_free("::1", held.getsockname()[1])
    assert is_free("::1", lasting_port("::1"))
    assert any_port("::1") > 0


@needs_ipv6
def test_ranks_meet_at_an_address_of_either_family() -> None:
    held = Meeting({NODES: at("::2", 7400), NODES_LISTEN: "::1"})
    socket.create_connection(("::1", held.port)).close()
