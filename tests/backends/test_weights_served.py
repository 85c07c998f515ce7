"""A core whose own server serves again after it trained: what it published, by the transport that is configured."""

import logging
from pathlib import Path
from typing import Any

import pytest

from bus.streams import Limits
from gyre.config import Config
from gyre.engines.sglang.client import Client
from gyre.engines.sglang.engine import SglangEngine
from gyre.engines.sglang.server import RunningServer
from schemas.roles import RoleTransitionCompleted
from schemas.training import WeightsPublished
from tests.backends.published import Save, checksum, saved_path, versions
from tests.engines.conftest import make_llama
from tests.engines.test_contract import PROMPT, ask
from tests.proxy.rig import RUN, SECRET
from tests.services.agents import Crew

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("chosen", [("group", "weights.backend=gloo"), ("tensor",)], ids=lambda each: each[0])
async def test_a_core_that_trained_serves_what_it_published(
    chosen: tuple[str, ...],
    server: RunningServer,
    model_folder: Path,
    tmp_path: Path,
    saved: Save,
    full_logprobs: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport, *more = chosen
    config = Config.load(None, ["engine.kind=sglang", f"weights.transport={transport}", *more])
    crew = Crew(tmp_path, config=config)
    crew.broker.provision(RUN, Limits())
    (tmp_path / "proxy.key").write_bytes(SECRET)
    first, newest = saved(20), saved(21)
    await crew.start(first)
    engine = SglangEngine(server, model_folder, instance=f"core-{transport}")
    async with crew.agent(0, engine):
        assert versions(await engine.generate(ask("a"))) == [0]
        assert isinstance(await crew.ask("t1", 0, "train"), RoleTransitionCompleted)
        await crew.say("cell", ("step",), WeightsPublished(version=2, weights=newest, seconds=0.0))
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "gyre"):
            patch.setattr(Client, "load", _by_no_file)
            back = await crew.ask("t2", 0, "rollout")
        assert isinstance(back, RoleTransitionCompleted)
        assert back.version == 2
        found = await engine.generate(ask("b", max_tokens=20, temperature=1.0))
        assert versions(found) == [2]
        wanted = full_logprobs(make_llama(21), PROMPT, found).tolist()
        assert max(abs(a - b) for a, b in zip(found.logprobs, wanted, strict=True)) < 1e-4
        brought = await checksum(server)
        await engine.load(saved_path(tmp_path, newest), 3)
        assert await checksum(server) == brought
    assert "version 2 does not come by" not in caplog.text
    await engine.close()


async def _by_no_file(*_: object) -> None:
    raise AssertionError
