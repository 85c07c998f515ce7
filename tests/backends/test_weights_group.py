"""Weights by SGLang's distributed group into a real server, and whatever may go wrong with it."""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.engines.port import EngineError, EngineUnavailable, WeightsRefused
from gyre.engines.sglang import session
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.torch import file_state
from gyre.weights import group_sender
from gyre.weights.group import Grouped, Wanted
from gyre.weights.port import Ask
from tests.backends.conftest import managed
from tests.backends.published import Save, beside, checksum, saved_path, versions
from tests.engines.conftest import make_llama
from tests.engines.test_contract import PROMPT, ask, endless, until_running

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grouped:
    """A cell's side, which asks the core's in this process; a file takes several broadcasts."""
    monkeypatch.setattr(group_sender, "BUCKET_BYTES", 8000)
    return grouped(tmp_path)


def grouped(folder: Path, question: Ask | None = None) -> Grouped:
    async def nobody(_: bytes) -> bytes:
        raise AssertionError

    core = Grouped(folder, "core", nobody, "127.0.0.1", "gloo")
    return Grouped(folder, f"cell-{folder.name}", question or core.answer, "127.0.0.1", "gloo")


async def test_published_versions_come_by_the_group_under_running_requests(
    engine: SglangEngine,
    server: RunningServer,
    weights: Grouped,
    tmp_path: Path,
    saved: Save,
    full_logprobs: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending = [asyncio.ensure_future(engine.generate(endless(f"r{i}"))) for i in range(3)]
    await until_running(engine, 3)
    with caplog.at_level(logging.WARNING, "gyre"):
        for version in (1, 2, 3):
            await weights.bring(engine, saved(version), version, resume=False)
            found = await engine.generate(ask(f"at-{version}", max_tokens=20, temperature=1.0))
            assert versions(found) == [version]
            wanted = full_logprobs(make_llama(version), PROMPT, found).tolist()
            assert max(abs(a - b) for a, b in zip(found.logprobs, wanted, strict=True)) < 1e-4
    assert "file is loaded" not in caplog.text
    by_group = await checksum(server)
    await engine.load(saved_path(tmp_path, saved(3)), 4)
    assert await checksum(server) == by_group
    await engine.abort_all()
    for each in pending:
        spans = (await each).versions
        assert [one.version for one in spans] == sorted({one.version for one in spans})
        assert spans[-1].version >= 3


async def test_a_released_engine_wakes_with_what_the_group_brings(
    engine: SglangEngine, weights: Grouped, saved: Save
) -> None:
    await engine.release()
    await weights.bring(engine, saved(1), 7, resume=True)
    assert versions(await engine.generate(ask("a"))) == [7]


async def test_a_core_that_dies_while_it_sends_leaves_whole_weights(
    engine: SglangEngine,
    server: RunningServer,
    tmp_path: Path,
    saved: Save,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reference = saved(1)

    async def dying(question: bytes) -> bytes:
        wanted = Wanted.model_validate_json(question)
        words = (str(tmp_path / reference.address), wanted.name, str(wanted.ranks), "1")
        core = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.backends.dying_core", *words, stdout=PIPE, cwd=Path(__file__).parents[2]
        )
        assert core.stdout is not None
        return await core.stdout.readline()

    pending = asyncio.ensure_future(engine.generate(endless("r")))
    await until_running(engine, 1)
    await beside(engine)
    with caplog.at_level(logging.WARNING, "gyre"):
        await grouped(tmp_path, dying).bring(engine, reference, 1, resume=False)
    await beside(engine)
    assert "does not come by a group" in caplog.text
    by_file = await checksum(server)
    await grouped(tmp_path).bring(engine, reference, 2, resume=False)
    assert await checksum(server) == by_file
    await engine.abort_all()
    assert versions(await pending) == [0, 1, 2]


async def test_a_core_that_nobody_reaches_is_done_without(engine: SglangEngine, tmp_path: Path, saved: Save) -> None:
    async def nobody(_: bytes) -> bytes:
        raise EngineUnavailable("nobody")

    await grouped(tmp_path, nobody).bring(engine, saved(1), 1, resume=False)
    assert versions(await engine.generate(ask("a"))) == [1]


async def test_a_session_that_somebody_left_open_is_ended(
    engine: SglangEngine,
    server: RunningServer,
    weights: Grouped,
    saved: Save,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = Client(server.url)
    await client.begin_update()
    await client.close()
    with caplog.at_level(logging.WARNING, "gyre"):
        await weights.bring(engine, saved(1), 1, resume=False)
    assert "begun anew" in caplog.text
    assert "file is loaded" not in caplog.text
    assert versions(await engine.generate(ask("a"))) == [1]


async def test_what_is_cancelled_on_the_way_serves_nothing_before_it_has_whole_weights(
    engine: SglangEngine, tmp_path: Path, saved: Save
) -> None:
    asked = asyncio.Event()

    async def silent(_: bytes) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    bringing = asyncio.ensure_future(grouped(tmp_path, silent).bring(engine, saved(1), 1, resume=False))
    await asked.wait()
    bringing.cancel()
    await asyncio.gather(bringing, return_exceptions=True)
    pending = asyncio.ensure_future(engine.generate(ask("a")))
    done, _ = await asyncio.wait({pending}, timeout=1.0)
    assert not done
    await engine.load(saved_path(tmp_path, saved(2)), 2)
    assert versions(await pending) == [2]


async def test_weights_that_do_not_fit_reach_no_server(
    engine: SglangEngine, weights: Grouped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_sender, "SEND_SECONDS", 1.0)
    state = file_state(make_llama(1))[0]
    cut = {name: each[:5].clone() if name == "model.norm.weight" else each for name, each in state.items()}
    with pytest.raises(WeightsRefused, match=r"shape \(5,\), the model needs \(32,\)"):
        await weights.bring(engine, save_tensors(cut, tmp_path, "weights"), 1, resume=False)
    assert versions(await engine.generate(ask("a"))) == [0]


@pytest.fixture
async def own(model_folder: Path) -> AsyncIterator[SglangEngine]:
    """An engine over a server of this test, which may break it."""
    made = SglangEngine(managed(model_folder, "--mem-fraction-static=0.3"), model_folder, instance="own")
    await made.resume(make_llama(0).state_dict(), 0)
    yield made
    await made.close()


async def test_a_server_that_waits_for_a_lost_core_or_dies_serves_whole_weights_or_nothing(
    own: SglangEngine,
    weights: Grouped,
    tmp_path: Path,
    saved: Save,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(session, "STEP_SECONDS", 5.0)

    async def late(question: bytes) -> bytes:
        """The core is gone by the time that the server joins."""
        wanted = Wanted.model_validate_json(question)
        file = tmp_path / wanted.weights.address
        with monkeypatch.context() as patch:
            patch.setattr(group_sender, "SEND_SECONDS", 0.1)
            sender = group_sender.send(file, wanted.name, wanted.ranks, "127.0.0.1", "gloo")
        await asyncio.to_thread(sender.thread.join)
        return sender.group.model_dump_json().encode()

    pending = asyncio.ensure_future(own.generate(endless("r")))
    await until_running(own, 1)
    with caplog.at_level(logging.WARNING, "gyre"):
        await grouped(tmp_path, late).bring(own, saved(1), 1, resume=False)
    assert "did not come about in time" in caplog.text
    assert versions(await own.generate(ask("a"))) == [1]
    await weights.bring(own, saved(2), 2, resume=False)
    assert versions(await own.generate(ask("b"))) == [2]

    async def killed(question: bytes) -> bytes:
        await own._server.stop()
        return await weights._ask(question)

    with pytest.raises(EngineError):
        await grouped(tmp_path, killed).bring(own, saved(3), 3, resume=False)
    assert own.version == 2
    with pytest.raises(EngineUnavailable):
        await pending


async def test_an_engine_whose_server_dies_under_its_requests_closes(own: SglangEngine) -> None:
    pending = [asyncio.ensure_future(own.generate(endless(f"r{i}"))) for i in range(3)]
    await until_running(own, 3)
    await asyncio.gather(own._server.stop(), own.close())
    found = await asyncio.gather(*pending, return_exceptions=True)
    assert all(isinstance(each, EngineUnavailable) or each.finish == "abort" for each in found)  # type: ignore[union-attr]


async def test_every_rank_of_a_server_receives_its_part(
    model_folder: Path, weights: Grouped, tmp_path: Path, saved: Save
) -> None:
    server = managed(model_folder, "--tp-size=2", "--mem-fraction-static=0.2", SGLANG_CPU_OMP_THREADS_BIND="0|1")
    engine = SglangEngine(server, model_folder, instance="two")
    try:
        await engine.resume(make_llama(0).state_dict(), 0)
        before = await checksum(RunningServer(server.url))
        await weights.bring(engine, saved(1), 1, resume=False)
        by_group = await checksum(RunningServer(server.url))
        assert versions(await engine.generate(ask("a"))) == [1]
        await engine.load(saved_path(tmp_path, saved(1)), 2)
        assert await checksum(RunningServer(server.url)) == by_group != before
    finally:
        await engine.close()
