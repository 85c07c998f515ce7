"""A replica whose ranks are started by other machines."""

import os
import queue
import re
import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import unused_port

from gyre.rl.algorithms.port import Settings
from gyre.sandboxes.family import children
from gyre.trainers import nodes
from gyre.trainers.fsdp.trainer import FsdpTrainer, Ranks
from gyre.trainers.meeting import Meeting
from gyre.trainers.nodes import KEY, LISTEN, NODES, NodeFailed, begin
from gyre.trainers.ranks import RankLost
from services import address
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE, distance, micro_step
from tests.trainers.far import SECRET, has_ipv6, node
from tests.trainers.test_gradient import CLOSE, everything, wanted
from tests.trainers.test_torch_trainer import FAST

pytestmark = pytest.mark.timeout(300)
ASLEEP = "import time; time.sleep(300)"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    batch.tiny_model().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def one_stranger() -> threading.BoundedSemaphore:
    """As whoever has let one caller in."""
    found = threading.BoundedSemaphore()
    found.acquire()
    return found


def await_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 60)[0]
    os.close(descriptor)


@pytest.mark.parametrize(
    ("listen", "there"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.1"),
        pytest.param("::1", "::1", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")),
    ],
)
def test_ranks_of_two_machines_give_the_gradient_of_one_and_end_with_their_trainer(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: str, there: str
) -> None:
    with node(tmp_path, address=there) as (first, one), node(tmp_path, address=there) as (second, two):
        monkeypatch.setenv(NODES, f"{first},{second}")
        monkeypatch.setenv(KEY, SECRET)
        monkeypatch.setenv(LISTEN, listen)
        how: dict[str, Any] = {"share_prefixes": True, "activation_bytes": 1 << 30}
        trainer = FsdpTrainer(model, TEMPERATURE, Settings(), FAST, Ranks(2, "gloo"), **how)
        ranks = [children(each.pid) for each in (one, two)]
        assert [len(each) for each in ranks] == [1, 1]
        trainer.load(model / "model.safetensors")
        trainer.micro_step(micro_step([[each] for each in everything()]))
        assert distance(trainer.gradient, wanted().gradient) < CLOSE
        trainer.close()
        for pid in (*ranks[0], *ranks[1]):
            await_end(pid)


def test_a_trainer_is_met_where_its_sockets_listen_and_nowhere_else() -> None:
    where = {NODES: "there:7400", LISTEN: "127.0.0.2"}
    held = Meeting(where)
    socket.create_connection(("127.0.0.2", held.port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.port))
    assert LISTEN == address.LISTEN


def test_many_who_say_nothing_take_no_more_than_their_places(tmp_path: Path) -> None:
    with node(tmp_path) as (where, process), ExitStack() as held:
        at = ("127.0.0.1", int(where.rpartition(":")[2]))
        silent = [held.enter_context(socket.create_connection(at)) for _ in range(nodes._STRANGERS)]
        assert all(each.recv(1) for each in silent)  # each is asked
        assert held.enter_context(socket.create_connection(at)).recv(1) == b""
        silent[0].close()
        while True:  # until the node has noticed
            with suppress(NodeFailed):
                os.close(begin("gyre.trainers.fsdp.rank", 0, 1, 1, {NODES: where, KEY: SECRET})[1])
                break
        await_end(await_child(process.pid))


def test_a_rank_that_is_lost_elsewhere_is_noticed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with node(tmp_path) as (first, one):
        monkeypatch.setenv(NODES, first)
        monkeypatch.setenv(KEY, SECRET)
        how: dict[str, Any] = {"share_prefixes": True, "activation_bytes": 1 << 30}
        trainer = FsdpTrainer(model, TEMPERATURE, Settings(), FAST, Ranks(1, "gloo"), **how)
        (rank,) = children(one.pid)
        os.kill(rank, 9)
        with pytest.raises(RankLost, match=f"rank 0 ended with something that {first} has printed"):
            trainer.load(model / "model.safetensors")
        trainer.close()


def test_who_does_not_know_the_secret_gets_no_rank(tmp_path: Path) -> None:
    with node(tmp_path) as (where, process):
        with pytest.raises(NodeFailed, match="starts no ranks for us"):
            begin("gyre.trainers.fsdp.rank", 0, 1, 1, {NODES: where, KEY: "another"})
        assert children(process.pid) == []


def test_only_ranks_are_started(tmp_path: Path) -> None:
    with node(tmp_path) as (where, process):
        with pytest.raises(NodeFailed, match=f"{where}: antigravity is no rank"):
            begin("antigravity", 0, 1, 1, {NODES: where, KEY: SECRET})
        assert children(process.pid) == []


def test_a_node_of_another_version_starts_nothing_and_both_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path) as (where, process):
        here = nodes.version()
        monkeypatch.setattr(nodes, "version", lambda: "gyre 0.0.1, torch 1.0")
        said = f"the cell has gyre 0.0.1, torch 1.0, this node {re.escape(here)}; install the same on both"
        with pytest.raises(NodeFailed, match=f"^{where}: {said}$"):
            begin("gyre.trainers.fsdp.rank", 0, 1, 1, {NODES: where, KEY: SECRET})
        assert children(process.pid) == []
        assert process.stderr is not None
        assert re.search(said, process.stderr.readline())


def test_a_node_that_is_named_twice_is_refused() -> None:
    with pytest.raises(NodeFailed, match="GYRE_CELL_NODES: there:7400 is named twice; name each machine"):
        begin("gyre.trainers.fsdp.rank", 0, 2, 1, {NODES: "there:7400,here:7400,there:7400", KEY: SECRET})


def test_a_second_node_at_the_same_port_says_so_in_one_line(tmp_path: Path) -> None:
    with node(tmp_path) as (where, _):
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", "node", "--port", where.rpartition(":")[2]],
            env={**os.environ, KEY: SECRET},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert "in use" in done.stderr


def test_a_node_that_comes_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(nodes.LOG, "warning", lambda text, *more: told.put(text % more))
    port = unused_port()
    where = {NODES: f"127.0.0.1:{port}", KEY: SECRET}
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(begin, "gyre.trainers.fsdp.rank", 0, 1, 1, where)
        assert re.match(
            rf"127\.0\.0\.1:{port}: .*; it is waited for 600 s: `gyre node` starts it", told.get(timeout=60)
        )
        with node(tmp_path, port=port) as (_, process):
            _, line = begun.result(60)
            rank = await_child(process.pid)
            os.close(line)
            await_end(rank)


def test_a_node_that_says_nothing_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hung:  # its system accepts, and nobody else does
        where = f"127.0.0.1:{hung.getsockname()[1]}"
        with pytest.raises(NodeFailed, match=rf"{where}: has said nothing for 0\.2 s; start `gyre node` there anew"):
            begin("gyre.trainers.fsdp.rank", 0, 1, 1, {NODES: where, KEY: SECRET})


@pytest.mark.timeout(30)
def test_a_caller_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as caller:
        nodes._serve(listener.accept()[0], "there", SECRET.encode(), one_stranger())
        while caller.recv(4096):
            pass  # what it was asked


def test_between_a_trainer_and_its_rank_silence_is_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = []

    def started(_: str, descriptor: int, __: int) -> subprocess.Popen[bytes]:
        bounds.append(bounds_of(descriptor))
        return subprocess.Popen(["true"])

    monkeypatch.setattr(nodes, "_started", started)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        where = {NODES: f"127.0.0.1:{listener.getsockname()[1]}", KEY: SECRET}
        begun = pool.submit(begin, "gyre.trainers.fsdp.rank", 0, 1, 1, where)
        nodes._serve(listener.accept()[0], "here", SECRET.encode(), one_stranger())
        _, line = begun.result(30)
    bounds.append(bounds_of(line))
    os.close(line)
    assert bounds == [[bytes(16)] * 2] * 2


def bounds_of(descriptor: int) -> list[bytes]:
    """How long a word is waited for, receiving and sending; 0: for ever."""
    with socket.socket(fileno=os.dup(descriptor)) as line:
        return [line.getsockopt(socket.SOL_SOCKET, way, 16) for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)]


def test_a_node_without_a_secret_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "node", "--port", "0"],
        env={name: value for name, value in os.environ.items() if name != KEY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "GYRE_NODE_KEY: empty" in done.stderr


def test_what_runs_beside_is_started_again_and_ends_with_its_node(tmp_path: Path) -> None:
    with node(tmp_path, sys.executable, "-c", ASLEEP) as (_, process):
        first = await_child(process.pid)
        os.kill(await_child(first), 9)
        second = await_child(process.pid, first)
        server = await_child(second)
        process.terminate()
        assert process.wait(60) == 0
        await_end(server)


def await_child(pid: int, but: int = 0) -> int:
    """A child of a process, other than `but`, once it has one."""
    while not (found := [each for each in children(pid) if each != but]):
        time.sleep(0.01)
    return found[0]
