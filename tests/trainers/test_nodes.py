"""A replica whose ranks are started by other machines: here two processes on this one."""

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gyre.rl.algorithms.port import Settings
from gyre.sandboxes.family import children
from gyre.trainers.fsdp.trainer import FsdpTrainer, Ranks
from gyre.trainers.nodes import KEY, NODES, NodeFailed, begin
from gyre.trainers.ranks import RankLost
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE, distance, micro_step
from tests.trainers.test_gradient import CLOSE, everything, wanted
from tests.trainers.test_torch_trainer import FAST

pytestmark = pytest.mark.timeout(300)
ASLEEP = "import time; time.sleep(300)"


@contextmanager
def node(key: str = "a secret", *command: str) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """host:port of a node, and its process."""
    words = [sys.executable, "-m", "services.cli", "node", "--port", "0", *(["--", *command] if command else [])]
    process = subprocess.Popen(words, env={**os.environ, KEY: key}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"at port (\d+)", line)
        assert found, line
        yield f"127.0.0.1:{found[1]}", process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    batch.tiny_model().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def await_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 60)[0]
    os.close(descriptor)


def test_ranks_of_two_machines_give_the_gradient_of_one_and_end_with_their_trainer(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node() as (first, one), node() as (second, two):
        monkeypatch.setenv(NODES, f"{first},{second}")
        monkeypatch.setenv(KEY, "a secret")
        how = {"share_prefixes": True, "activation_bytes": 1 << 30}
        trainer = FsdpTrainer(model, TEMPERATURE, Settings(), FAST, Ranks(2, "gloo"), **how)
        ranks = [children(each.pid) for each in (one, two)]
        assert [len(each) for each in ranks] == [1, 1]
        trainer.load(model / "model.safetensors")
        trainer.micro_step(micro_step([[each] for each in everything()]))
        assert distance(trainer.gradient, wanted().gradient) < CLOSE
        trainer.close()
        for pid in (*ranks[0], *ranks[1]):
            await_end(pid)


def test_a_rank_that_is_lost_elsewhere_is_noticed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with node() as (first, one):
        monkeypatch.setenv(NODES, first)
        monkeypatch.setenv(KEY, "a secret")
        how = {"share_prefixes": True, "activation_bytes": 1 << 30}
        trainer = FsdpTrainer(model, TEMPERATURE, Settings(), FAST, Ranks(1, "gloo"), **how)
        (rank,) = children(one.pid)
        os.kill(rank, 9)
        with pytest.raises(RankLost, match=f"rank 0 ended with something that {first} has printed"):
            trainer.load(model / "model.safetensors")
        trainer.close()


def test_who_does_not_know_the_secret_gets_no_rank() -> None:
    with node() as (where, process):
        with pytest.raises(NodeFailed, match="starts no ranks for us"):
            begin("gyre.trainers.fsdp.rank", 0, 1, 1, {NODES: where, KEY: "another"})
        assert children(process.pid) == []


def test_only_ranks_are_started() -> None:
    with node() as (where, process):
        _, descriptor = begin("antigravity", 0, 1, 1, {NODES: where, KEY: "a secret"})
        assert os.read(descriptor, 1) == b""
        os.close(descriptor)
        assert children(process.pid) == []


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


def test_what_runs_beside_is_started_again_and_ends_with_its_node() -> None:
    with node("a secret", sys.executable, "-c", ASLEEP) as (_, process):
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
