"""Whether an SGLang server's memory is released, whatever breaks off: over HTTP, with a server that ends over mistakes.

The server keeps what 0.5.23 keeps of it; the real one is in `tests/backends`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gyre.engines.port import EngineFailed, EngineUnavailable, WeightsRefused
from gyre.engines.sglang import client as client_module
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from gyre.models.load import NANO

WEIGHTS = NANO / "model.safetensors"


class Sglang:
    """What a server's memory depends on."""

    def __init__(self) -> None:
        self.busy = 0
        self.refuses = self.answers_nothing = False
        self.changing, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.mistakes: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Be started anew."""
        self.version, self.released = "none", False

    async def info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "weight_version": self.version})

    async def loads(self, _: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": self.busy, "num_waiting_reqs": 0}]})

    async def rename(self, request: web.Request) -> web.Response:
        self.version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def load(self, request: web.Request) -> web.Response:
        if self.released:
            self.mistakes.append("weights into released memory")
        if not self.refuses:
            self.version = (await request.json())["weight_version"]
        return web.json_response({"success": not self.refuses, "message": "no"})

    async def release(self, _: web.Request) -> web.Response:
        return await self.change(to=True)

    async def resume(self, _: web.Request) -> web.Response:
        return await self.change(to=False)

    async def change(self, *, to: bool) -> web.Response:
        if self.released == to:
            self.mistakes.append("released twice" if to else "resumed what was not released")
        self.changing.set()
        await self.go_on.wait()
        self.released = to
        return web.Response(status=500 if self.answers_nothing else 200)


class Ours:
    """A server that is started and ended here."""

    def __init__(self, url: str, sglang: Sglang) -> None:
        self.url, self._sglang, self.runs = url, sglang, False

    async def start(self, _: Client) -> None:
        self.runs = True

    async def hear(self, _: Client) -> None:
        """It answers."""

    async def stop(self) -> bool:
        self.runs = False
        self._sglang.begin()
        return True


@pytest.fixture
def sglang() -> Sglang:
    return Sglang()


@pytest.fixture
async def url(sglang: Sglang) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(
        [
            web.get("/model_info", sglang.info),
            web.get("/v1/loads", sglang.loads),
            web.post("/update_weight_version", sglang.rename),
            web.post("/update_weights_from_disk", sglang.load),
            web.post("/release_memory_occupation", sglang.release),
            web.post("/resume_memory_occupation", sglang.resume),
        ]
    )
    async with TestServer(app) as server:
        yield str(server.make_url(""))
    assert sglang.mistakes == []


@pytest.fixture
async def engine(url: str) -> AsyncIterator[SglangEngine]:
    """Of a server of somebody else's."""
    made = SglangEngine(RunningServer(url), NANO)
    yield made
    await made.close()


async def test_an_engine_that_does_not_come_to_a_release_serves_as_before_and_may_try_again(
    sglang: Sglang, engine: SglangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.resume(WEIGHTS, 1)
    monkeypatch.setattr(client_module, "ANSWER_SECONDS", 0.1)
    sglang.busy = 1
    with pytest.raises(EngineUnavailable, match="other clients"):
        await engine.release()
    assert (await engine.health()).admitting
    sglang.busy = 0
    await engine.load(WEIGHTS, 2)
    await engine.release()
    assert sglang.released


async def test_memory_that_a_resume_took_back_in_vain_is_released_again(sglang: Sglang, engine: SglangEngine) -> None:
    await engine.resume(WEIGHTS, 1)
    await engine.release()
    sglang.refuses = True
    with pytest.raises(WeightsRefused):
        await engine.resume(WEIGHTS, 2)
    assert not sglang.released
    await engine.release()
    assert sglang.released
    sglang.refuses = False
    await engine.resume(WEIGHTS, 2)
    assert not sglang.released


async def test_a_server_that_a_cell_released_before_it_was_killed_is_resumed_by_the_next_one(
    sglang: Sglang, url: str, engine: SglangEngine
) -> None:
    killed = SglangEngine(RunningServer(url), NANO)
    await killed.resume(WEIGHTS, 1)
    await killed.release()
    await engine.resume(WEIGHTS, 2)
    assert (sglang.released, sglang.version) == (False, "2")
    await killed._client.close()


async def test_a_server_that_was_started_anew_is_not_resumed(sglang: Sglang, engine: SglangEngine) -> None:
    await engine.resume(WEIGHTS, 1)
    await engine.release()
    sglang.begin()
    await engine.resume(WEIGHTS, 2)


async def test_nobody_goes_on_from_a_release_without_an_answer(sglang: Sglang, engine: SglangEngine) -> None:
    await engine.resume(WEIGHTS, 1)
    sglang.answers_nothing = True
    with pytest.raises(EngineFailed, match="release_memory_occupation answered 500"):
        await engine.release()
    assert not (await engine.health()).admitting
    for again in (engine.release(), engine.resume(WEIGHTS, 2)):
        with pytest.raises(EngineFailed, match="nobody can tell how far that came; start it anew"):
            await again


@pytest.mark.parametrize("which", ["release", "resume"])
async def test_a_server_of_ours_in_doubt_about_its_memory_ends_and_is_started_anew(
    sglang: Sglang, url: str, which: str
) -> None:
    server = Ours(url, sglang)
    engine = SglangEngine(server, NANO)
    await engine.resume(WEIGHTS, 1)
    asked: dict[str, Any] = {"release": engine.release, "resume": lambda: engine.resume(WEIGHTS, 2)}
    if which == "resume":
        await engine.release()
    sglang.answers_nothing = True
    with pytest.raises(EngineFailed, match="answered 500"):
        await asked[which]()
    assert not server.runs
    sglang.answers_nothing = False
    await engine.release()  # it has nothing
    await engine.resume(WEIGHTS, 3)
    assert (server.runs, sglang.version) == (True, "3")
    await engine.close()


async def test_a_release_comes_to_its_end_though_its_cell_is_ended_and_is_undone_by_closing(
    sglang: Sglang, engine: SglangEngine
) -> None:
    await engine.resume(WEIGHTS, 1)
    sglang.changing.clear()
    sglang.go_on.clear()
    releasing = asyncio.create_task(engine.release())
    await sglang.changing.wait()
    releasing.cancel()
    await asyncio.sleep(0)
    assert not releasing.done()
    sglang.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    assert sglang.released
    await engine.close()
    assert not sglang.released
