"""The carrier over Mooncake: the real engine by TCP where it is installed, and one that reads this process's memory."""

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.config import Config
from gyre.errors import ConfigError
from gyre.weights.files import Carried
from gyre.weights.mooncake import Engine, Mooncake, transfer_engine, transfer_engine_class
from gyre.weights.port import WeightsUnavailable, WeightsUnusable
from services.weights import check_transport
from tests.weights.test_transports import Reading, Run

try:
    transfer_engine_class()
    WHY = ""
except WeightsUnavailable as error:
    WHY = str(error)


class Memory:
    """As the real engine, between carriers of one process."""

    lent: dict[int, int] = {}  # noqa: RUF012 - all engines' together: address -> bytes

    def initialize(self, host: str, metadata: str, protocol: str, device: str, /) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return 1

    def register_memory(self, address: int, length: int, /) -> int:
        self.lent[address] = length
        return 0

    def unregister_memory(self, address: int, /) -> int:
        return 0 if self.lent.pop(address, None) else -1

    def transfer_sync_read(self, peer: str, buffer: int, peer_buffer: int, length: int, /) -> int:
        if self.lent.get(peer_buffer, 0) < length or self.lent.get(buffer, 0) < length:
            return -1
        ctypes.memmove(buffer, peer_buffer, length)
        return 0


real = pytest.param("real", marks=pytest.mark.skipif(bool(WHY), reason=f"Mooncake: {WHY}"))


@pytest.fixture(params=["memory", real])
def make(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    Memory.lent.clear()
    return Memory if request.param == "memory" else lambda: transfer_engine("127.0.0.1", "tcp", "")


@pytest.fixture(params=[False, True], ids=["whole", "delta"])
def run(request: pytest.FixtureRequest, tmp_path: Path, make: Callable[[], Engine]) -> Run:
    folder, own = tmp_path / "run", tmp_path / "own"
    folder.mkdir()

    async def nobody(_: bytes) -> bytes:
        raise AssertionError

    core = Carried(Mooncake(make, "127.0.0.1", nobody), folder, own, delta=request.param, core=True)
    carrier = Mooncake(make, "127.0.0.1", core.answer)
    return Run(
        folder, core, Carried(carrier, tmp_path / "unseen", own, delta=request.param, core=False), own, Reading()
    )


async def test_a_cell_reads_each_version_out_of_the_cores_memory(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    before = None
    with caplog.at_level(logging.WARNING, "gyre"):
        for version in range(4):
            weights, _ = await run.publish(version, before)
            await run.brought(weights, version)
            before = weights
    assert caplog.text == ""
    await run.core.close()
    await run.cell.close()


async def test_what_is_not_offered_any_more_comes_from_the_run_folder(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    weights, _ = await run.publish(0)
    await run.core.close()
    assert isinstance(run.cell, Carried)
    seeing = Carried(run.cell._carrier, run.folder, run.own, delta=False, core=False)
    with caplog.at_level(logging.WARNING, "gyre"):
        await seeing.bring(run.engine, weights, 0, resume=True)
    assert "is not offered" in caplog.text
    assert run.engine.given[-1][2] == (run.folder / weights.address).read_bytes()


async def test_a_core_of_another_transport_is_told_apart(run: Run) -> None:
    with pytest.raises(WeightsUnusable, match="transport another"):
        await run.core.answer(b'{"weights": 1}')


async def test_a_read_that_fails_says_so(tmp_path: Path, make: Callable[[], Engine]) -> None:
    async def elsewhere(_: bytes) -> bytes:
        return b'{"peer": "127.0.0.1:9", "address": 4096, "size": 10}'

    carrier = Mooncake(make, "127.0.0.1", elsewhere)
    with pytest.raises(WeightsUnavailable, match=r"reading 10 bytes from 127.0.0.1:9 failed"):
        await carrier.fetch("name", tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_an_engine_that_cannot_use_its_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Memory):
        def initialize(self, *words: str) -> int:
            return -1

    monkeypatch.setattr("gyre.weights.mooncake.transfer_engine_class", lambda: Refusing)
    with pytest.raises(WeightsUnavailable, match="'rdma': Mooncake cannot use it at 127"):
        transfer_engine("127.0.0.1", "rdma", "mlx5_0")


@pytest.mark.skipif(not WHY, reason="Mooncake is installed here")
def test_a_run_that_needs_what_is_not_installed_is_refused_before_it_begins() -> None:
    with pytest.raises(ConfigError, match=r"weights.transport = mooncake: .*pip install mooncake-transfer-engine"):
        check_transport(Config.load(None, ["weights.transport=mooncake"]))
