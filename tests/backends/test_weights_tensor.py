"""Weights as tensors in requests to a real server, and whatever may go wrong with it."""

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre.engines.port import EngineError, EngineUnavailable, WeightsRefused
from gyre.engines.sglang import tensors
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.torch import file_state
from gyre.weights.buckets import Span
from gyre.weights.tensors import give_tensors
from tests.backends.conftest import managed
from tests.backends.published import Save, beside, checksum, saved_path, versions
from tests.engines.conftest import make_llama
from tests.engines.test_contract import PROMPT, ask, endless, until_running

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file takes several requests."""
    monkeypatch.setattr(tensors, "BUCKET_BYTES", 8000)


async def test_published_versions_come_as_tensors_under_running_requests(
    engine: SglangEngine,
    server: RunningServer,
    tmp_path: Path,
    saved: Save,
    full_logprobs: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending = [asyncio.ensure_future(engine.generate(endless(f"r{i}"))) for i in range(3)]
    await until_running(engine, 3)
    with caplog.at_level(logging.WARNING, "gyre"):
        for version in (1, 2, 3):
            await give_tensors(engine, saved_path(tmp_path, saved(version)), version, resume=False)
            found = await engine.generate(ask(f"at-{version}", max_tokens=20, temperature=1.0))
            assert versions(found) == [version]
            wanted = full_logprobs(make_llama(version), PROMPT, found).tolist()
            assert max(abs(a - b) for a, b in zip(found.logprobs, wanted, strict=True)) < 1e-4
    assert caplog.text == ""
    by_tensors = await checksum(server)
    await engine.load(saved_path(tmp_path, saved(3)), 4)
    assert await checksum(server) == by_tensors
    await engine.abort_all()
    for each in pending:
        spans = (await each).versions
        assert [one.version for one in spans] == sorted({one.version for one in spans})
        assert spans[-1].version >= 3


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn"])
async def test_every_kind_of_values_comes_as_from_the_file(
    engine: SglangEngine, server: RunningServer, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = {name: each.to(getattr(torch, kind)) for name, each in file_state(make_llama(1))[0].items()}
    file = saved_path(tmp_path, save_tensors(state, tmp_path, "weights"))
    before = await checksum(server)
    with caplog.at_level(logging.WARNING, "gyre"):
        await give_tensors(engine, file, 1, resume=False)
    assert caplog.text == ""
    by_tensors = await checksum(server)
    await engine.load(file, 2)
    assert await checksum(server) == by_tensors != before


async def test_a_released_engine_wakes_with_what_it_is_handed(
    engine: SglangEngine,
    tmp_path: Path,
    saved: Save,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await engine.release()
    with caplog.at_level(logging.WARNING, "gyre"):
        await give_tensors(engine, saved_path(tmp_path, saved(1)), 7, resume=True)
    assert caplog.text == ""
    assert versions(await engine.generate(ask("a"))) == [7]


async def test_a_cell_that_dies_half_way_leaves_a_server_that_the_next_one_makes_whole(
    server: RunningServer,
    model_folder: Path,
    tmp_path: Path,
    saved: Save,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, before = saved_path(tmp_path, saved(9)), await checksum(server)
    words = (server.url, str(model_folder), str(file), "2")
    cell = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.backends.dying_cell", *words, cwd=Path(__file__).parents[2]
    )
    assert await cell.wait() == 1
    half = await checksum(server)
    assert half != before
    heir = SglangEngine(server, model_folder, instance="heir")
    with pytest.raises(EngineUnavailable, match="engine is released"):
        await heir.generate(ask("a"))
    with caplog.at_level(logging.WARNING, "gyre"):
        await give_tensors(heir, file, 2, resume=True)
    assert "begun anew" in caplog.text
    assert "file is loaded" not in caplog.text
    by_tensors = await checksum(server)
    assert versions(await heir.generate(ask("b"))) == [2]
    await heir.load(file, 3)
    assert await checksum(server) == by_tensors != half
    await heir.close()


async def test_what_cannot_be_read_to_its_end_is_followed_by_the_file_before_anything_is_served(
    engine: SglangEngine,
    server: RunningServer,
    tmp_path: Path,
    saved: Save,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, whole, reads = saved_path(tmp_path, saved(1)), Span.read, iter(range(2))

    def read(span: Span, file: Path) -> torch.Tensor:
        if next(reads, None) is None:
            raise OSError("disk")
        return whole(span, file)

    monkeypatch.setattr(Span, "read", read)
    pending = asyncio.ensure_future(engine.generate(endless("r")))
    await until_running(engine, 1)
    await beside(engine)
    with caplog.at_level(logging.WARNING, "gyre"):
        await give_tensors(engine, file, 1, resume=False)
    await beside(engine)
    assert "does not come by tensors: tensors: disk; the file is loaded" in caplog.text
    by_file = await checksum(server)
    monkeypatch.setattr(Span, "read", whole)
    await give_tensors(engine, file, 2, resume=False)
    assert await checksum(server) == by_file
    await engine.abort_all()
    assert versions(await pending) == [0, 1, 2]


async def test_tensors_that_do_not_fit_reach_no_server(
    engine: SglangEngine, server: RunningServer, tmp_path: Path
) -> None:
    before = await checksum(server)
    state = file_state(make_llama(1))[0]
    cut = {name: each[:5].clone() if name == "model.norm.weight" else each for name, each in state.items()}
    file = saved_path(tmp_path, save_tensors(cut, tmp_path, "weights"))
    with pytest.raises(WeightsRefused, match=r"shape \(5,\), the model needs \(32,\)"):
        await give_tensors(engine, file, 1, resume=False)
    assert await checksum(server) == before
    assert versions(await engine.generate(ask("a"))) == [0]


async def test_every_rank_is_handed_its_own_and_a_server_that_dies_serves_nothing(
    model_folder: Path,
    tmp_path: Path,
    saved: Save,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = managed(model_folder, "--tp-size=2", "--mem-fraction-static=0.2", SGLANG_CPU_OMP_THREADS_BIND="0|1")
    engine = SglangEngine(server, model_folder, instance="two")
    try:
        await engine.resume(make_llama(0).state_dict(), 0)
        before = await checksum(RunningServer(server.url))
        await give_tensors(engine, saved_path(tmp_path, saved(1)), 1, resume=False)
        by_tensors = await checksum(RunningServer(server.url))
        assert versions(await engine.generate(ask("a"))) == [1]
        await engine.load(saved_path(tmp_path, saved(1)), 2)
        assert await checksum(RunningServer(server.url)) == by_tensors != before

        whole, loop, reads = Span.read, asyncio.get_running_loop(), iter(range(2))

        def read(span: Span, file: Path) -> torch.Tensor:
            if next(reads, None) is None:
                asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
            return whole(span, file)

        monkeypatch.setattr(Span, "read", read)
        with pytest.raises(EngineError):
            await give_tensors(engine, saved_path(tmp_path, saved(3)), 3, resume=False)
        assert engine.version == 2
    finally:
        await engine.close()
