"""A real SGLang server that stands still is told from one that is busy."""

import asyncio
import signal
import time
from pathlib import Path

import psutil
import pytest

from gyre.engines.port import EngineUnavailable
from gyre.engines.sglang.engine import SglangEngine
from tests.backends.conftest import managed
from tests.engines.test_contract import ask

pytestmark = pytest.mark.timeout(300)


def stopped(keeper: int) -> None:
    """Every process of the server, from its front down."""
    for process in psutil.Process(keeper).children(recursive=True):
        process.send_signal(signal.SIGSTOP)


async def test_a_server_at_work_answers_within_seconds_and_one_that_stands_still_never(model_folder: Path) -> None:
    server = managed(model_folder)
    server.silent_seconds = 20.0
    engine = SglangEngine(server, model_folder)
    weights = model_folder / "model.safetensors"
    longest = 0.0
    try:
        await engine.resume(weights, 1)
        work = [asyncio.create_task(engine.generate(ask(f"long{n}", (n,) * 2000, max_tokens=8))) for n in range(2, 6)]
        for change in (engine.load(weights, 2), engine.release(), engine.resume(weights, 3)):
            work.append(asyncio.create_task(change))
            while not work[-1].done():
                began = time.monotonic()
                await engine.health()
                longest = max(longest, time.monotonic() - began)
        await asyncio.gather(*work)
        assert longest < server.silent_seconds / 2
        assert server._process is not None
        stopped(server._process.pid)
        with pytest.raises(EngineUnavailable, match="is there and has answered nothing for 20 s"):
            await engine.health()
    finally:
        await engine.close()
