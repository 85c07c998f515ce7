"""The core's side of a group, against a rank that joins as SGLang's do; each is a process of its own."""

import asyncio
import hashlib
import json
import logging
import sys
from asyncio.subprocess import Process
from pathlib import Path

import numpy as np
import pytest

from gyre.weights import group_sender
from gyre.weights.group_sender import Sender, send
from gyre.weights.layout import read_layout
from gyre.weights.port import WeightsUnusable
from tests.trainers.far import has_ipv6
from tests.weights.files import write

HOSTS = ("127.0.0.1", *(["::1"] if has_ipv6() else []))
PEER = Path(__file__).parent / "peer.py"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two kinds of values, one tensor empty, the second of F32 larger than what fits a broadcast here."""
    chance = np.random.default_rng(0)
    tensors = {
        "a": ("F32", (50, 20), chance.bytes(4000)),
        "b": ("F32", (1500,), chance.bytes(6000)),
        "c": ("BF16", (0,), b""),
        "d": ("BF16", (3, 5), chance.bytes(30)),
    }
    write(tensors, tmp_path / "weights")
    return tmp_path / "weights"


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sender, "BUCKET_BYTES", 5000)


async def peer(sender: Sender, rank: int = 1, leave: int = -1) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(PEER),
        sender.group.model_dump_json(),
        str(rank),
        str(leave),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def said(process: Process) -> str:
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()[-2000:]
    return out.decode().strip()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()[len(read_layout(file).head) :]).hexdigest()


async def until_ended(sender: Sender) -> None:
    await asyncio.to_thread(sender.thread.join, 60)
    assert not sender.thread.is_alive()


@pytest.mark.parametrize("host", HOSTS)
async def test_what_comes_is_the_file_bit_for_bit_also_under_a_name_that_was_there_before(
    file: Path, host: str
) -> None:
    for _ in range(2):
        sender = send(file, "one", 1, host, "gloo")
        assert [each.names for each in sender.group.buckets] == [("a",), ("b",), ("c", "d")]
        assert [set(each.dtypes) for each in sender.group.buckets] == [{"float32"}, {"float32"}, {"bfloat16"}]
        assert sender.group.shapes == {"a": (50, 20), "b": (1500,), "c": (0,), "d": (3, 5)}
        assert await said(await peer(sender)) == digest(file)
        await until_ended(sender)


async def test_a_peer_that_dies_on_the_way_costs_the_others_nothing(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gyre"):
        dying, well = (send(file, name, 1, "127.0.0.1", "gloo") for name in ("dying", "well"))
        assert dying.group.port != well.group.port
        gone, stays = await peer(dying, leave=1), await peer(well)
        assert await gone.wait() == 3
        assert await said(stays) == digest(file)
        await until_ended(dying)
        await until_ended(well)
    assert "group dying: the weights were not sent" in caplog.text
    assert "group well" not in caplog.text


async def test_nobody_who_comes_late_is_waited_for_longer_than_the_limit(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_sender, "SEND_SECONDS", 0.5)
    with caplog.at_level(logging.WARNING, "gyre"):
        sender = send(file, "alone", 1, "127.0.0.1", "gloo")
        await until_ended(sender)
    assert "group alone: the weights were not sent" in caplog.text


def test_what_no_group_carries_is_refused_before_anybody_waits(tmp_path: Path) -> None:
    write({"a": ("I32", (1,), bytes(4))}, tmp_path / "weights")

    def refused() -> None:
        send(tmp_path / "weights", "no", 1, "127.0.0.1", "gloo")

    with pytest.raises(WeightsUnusable, match="'a' is I32: SGLang receives none so"):
        refused()
    (tmp_path / "weights").write_bytes(json.dumps({}).encode())
    with pytest.raises(WeightsUnusable, match="cannot be read"):
        refused()
