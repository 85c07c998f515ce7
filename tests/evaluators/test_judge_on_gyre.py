"""A judge whose model is gyre's own: the torch engine with nano behind the proxy, over both protocols.

nano was never taught to judge. What must hold is that every judgement of it ends, with a score or with none, and that
the two programs understand each other: the proxy has parsed, rendered and recorded each request.
"""

import asyncio
from pathlib import Path

import pytest

from bus.streams import Limits
from gyre.config_evaluator import JudgeSection
from gyre.engines.torch_engine import TorchEngine
from gyre.evaluators.judge.evaluator import JudgeEvaluator
from gyre.models.load import NANO, load_model
from schemas.roles import CellRegistered
from services.proxy.service import ProxySettings, serve_proxy
from tests.evaluators.conftest import working
from tests.proxy.rig import RUN, SECRET, Rig

CONTEXT, ANSWER = 2048, 64


async def url_of(rig: Rig, serving: "asyncio.Task[None]") -> str:
    async with asyncio.timeout(60):
        while not (rig.folder / "proxy.url").exists():
            assert not serving.done(), serving.result()
            await asyncio.sleep(0.01)
    return (rig.folder / "proxy.url").read_text().strip().rstrip("/")


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_a_judge_of_gyres_own_ends_cleanly(tmp_path: Path, protocol: str) -> None:
    rig = Rig(tmp_path / "rig")
    rig.folder.mkdir()
    rig.broker.provision(RUN, Limits())
    (rig.folder / "proxy.key").write_bytes(SECRET)
    engine = TorchEngine(load_model(NANO)[0], rows=2)
    registered = CellRegistered(cell=0, instance="i0", url="cell0", capacity=4, version=0)
    await rig.say("cell", ("cell", "0"), registered)
    token = await rig.launch("x1")
    settings = ProxySettings(RUN, rig.folder, NANO, rig.folder / "proxy.key", 3, 1.0, ANSWER, CONTEXT)
    serving = asyncio.create_task(serve_proxy(rig.bus("proxy"), settings, lambda _: engine))
    try:
        base = f"{await url_of(rig, serving)}/x/{token}" + ("/v1" if protocol == "chat" else "")
        section = JudgeSection(url=base, model="policy", protocol=protocol, turns=3, answer_tokens=ANSWER)
        async with working("process", tmp_path) as work:
            work.leaves(out="4\n")
            found = await JudgeEvaluator(section, work.run, token).evaluate(work.task(), work.left, work.box, 100)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await engine.close()
    assert found.score is None or 0.0 <= found.score <= 1.0
    assert found.score is not None or found.detail == "the judge gave no verdict in 3 answers", found.detail
    records = await rig.records("x1")
    assert 1 <= len(records) <= 3
    assert found.provenance is not None
    assert found.provenance.tokens > 100 * len(records)
