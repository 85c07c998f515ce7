"""A cell whose server is there and answers nothing ends, says why, and is lost at once; a busy one is left alone."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from bus import subjects
from bus.ports import any_port
from bus.streams import Limits
from gyre.config import Config
from gyre.engines.port import EngineUnavailable
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import ManagedServer, RunningServer
from gyre.models.load import NANO
from schemas.refs import WeightsRef
from services.beats import Silence, Silent
from services.cell.service import EngineGone
from services.place import Place
from tests.proxy.rig import RUN
from tests.services.agents import Crew

SERVER = f'''#!{sys.executable} -ES
"""What a cell needs of an SGLang server before it generates; `busy` holds back all but its front."""
import http.server, json, pathlib, sys, time

here = pathlib.Path(sys.argv[0]).parent
(here / "pid").write_text(str(__import__("os").getpid()))

class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body):
        while (here / "busy").exists() and self.path != "/model_info":
            time.sleep(0.01)
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        idle = {{"num_running_reqs": 0, "num_waiting_reqs": 0}}
        self.answer({{"loads": [idle], "model_path": "m", "weight_version": "none"}})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({{"success": True, "message": ""}})

    def log_message(self, *words):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Front).serve_forever()
'''


@pytest.fixture
def server(tmp_path: Path) -> ManagedServer:
    """Stops being patient after a second."""
    python = tmp_path / "server"
    python.write_text(SERVER)
    python.chmod(0o755)
    log = tmp_path / "server.log"
    return ManagedServer(NANO, any_port("127.0.0.1"), log, python=str(python), silent_seconds=1.0)


@pytest.fixture
async def engine(server: ManagedServer) -> AsyncIterator[SglangEngine]:
    engine = SglangEngine(server, NANO)
    yield engine
    await engine.close()


def stop(folder: Path, how: signal.Signals = signal.SIGSTOP) -> None:
    os.kill(int((folder / "pid").read_text()), how)


async def crew_of(folder: Path) -> Crew:
    """A run under way that begins with weights the engine can load."""
    crew = Crew(folder)
    crew.broker.provision(RUN, Limits())
    body = (NANO / "model.safetensors").read_bytes()
    digest = hashlib.sha256(body).hexdigest()
    (folder / "weights").mkdir()
    (folder / "weights" / f"{digest}.safetensors").write_bytes(body)
    await crew.start(WeightsRef(digest=digest, size=len(body), address=f"weights/{digest}.safetensors"))
    return crew


async def test_a_cell_whose_server_is_stopped_ends_and_the_scheduler_hears_why(
    tmp_path: Path, engine: SglangEngine
) -> None:
    crew = await crew_of(tmp_path)
    place = Place("scheduler", "scheduler-1", RUN, tmp_path, "", crew.config)
    async with crew.agent(0, engine) as cell:
        alive = {f"cell-0-{crew.starts}": 0}
        silence = Silence(place, crew.bus("scheduler")).lost(lambda: alive)
        lost = asyncio.ensure_future(anext(silence))
        await asyncio.sleep(0)
        stop(tmp_path)
        with pytest.raises(EngineGone, match=r"cell 0: SGLang at http://.*: is there and has answered nothing for 1 s"):
            await cell
        assert await lost == Silent(next(iter(alive)), str(cell.exception()))
        await silence.aclose()
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


async def test_who_was_heard_again_is_told_again_when_it_falls_silent_again(tmp_path: Path) -> None:
    config = Config.model_validate({"cells": {"heartbeat_seconds": 0.05, "lost_after_seconds": 0.2}})
    crew = Crew(tmp_path, config=config)
    crew.broker.provision(RUN, Limits())
    place = Place("runner", "runner-1", RUN, tmp_path, "", config)
    silence = Silence(place, crew.bus("runner")).lost(lambda: ("runner-2",))
    async with asyncio.timeout(20), aclosing(silence):
        assert (await anext(silence)).instance == "runner-2"
        again = asyncio.ensure_future(anext(silence))
        await asyncio.wait({again}, timeout=0.5)
        assert not again.done()  # told once
        await crew.bus("runner").tell(subjects.hint(RUN, "heartbeat", "runner"), b"runner-2")
        assert (await again).instance == "runner-2"


async def test_a_server_that_is_busy_for_longer_or_silent_for_less_than_the_bound_is_left_alone(
    tmp_path: Path, server: ManagedServer, engine: SglangEngine
) -> None:
    assert not (await engine.health()).admitting  # not started: not waited for
    await engine.resume(NANO / "model.safetensors", 1)
    (tmp_path / "busy").touch()
    loading = asyncio.create_task(engine.load(NANO / "model.safetensors", 2))
    loop = asyncio.get_running_loop()
    until = loop.time() + 1.5 * server.silent_seconds
    while loop.time() < until:
        assert (await engine.health()).version == 1
    (tmp_path / "busy").unlink()
    await loading
    server.silent_seconds = 60.0
    stop(tmp_path)
    asking = asyncio.create_task(engine.health())
    assert not (await asyncio.wait((asking,), timeout=0.3))[0]
    stop(tmp_path, signal.SIGCONT)
    assert (await asking).version == 2


async def test_that_a_server_ended_is_told_at_once_where_it_is_ours_and_else_after_a_while(
    tmp_path: Path, server: ManagedServer, engine: SglangEngine
) -> None:
    await engine.resume(NANO / "model.safetensors", 1)
    theirs = SglangEngine(RunningServer(server.url, silent_seconds=1.0), NANO)
    await theirs.resume(NANO / "model.safetensors", 1)
    await theirs.health()
    server.silent_seconds = 600.0
    stop(tmp_path, signal.SIGKILL)
    with pytest.raises(EngineUnavailable, match="SGLang ended with 137"):
        await asyncio.wait_for(told(engine), 30)
    with pytest.raises(EngineUnavailable, match="has answered nothing for 1 s"):
        await theirs.health()
    await theirs.close()


async def told(engine: SglangEngine) -> None:
    """Until its health is an error."""
    while True:
        await engine.health()
