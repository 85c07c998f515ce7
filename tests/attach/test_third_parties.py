"""A consumer of somebody else's that sleeps, dies or wants more than it may have: the run does not notice."""

import asyncio
import json
from pathlib import Path

import pytest

from bus import credentials
from gyre.config import Config
from services.replay import verify
from services.setup import open_run
from services.source import messages, open_source
from tests.attach.conftest import Collector
from tests.e2e.living import Command, heard, write_modelled
from tests.e2e.rules import check_log

pytestmark = pytest.mark.timeout(200)

OTHERS = Path(__file__).with_name("others.py")


async def attached(name: str, runs: Path, *words: str | Path) -> Command:
    return await Command.start("attach", f"{OTHERS}:{name}", "tried", "--runs", runs, *words)


async def test_a_run_does_not_notice_who_reads_along(tmp_path: Path, collector: Collector) -> None:
    path, runs = write_modelled(tmp_path, "tried", tasks=8, training_seconds=0.2), tmp_path / "runs"
    opened = await open_run(Config.load(path, [f"telemetry.otlp_endpoint={collector.url}"]))
    assert opened.server is not None
    run = await Command.start("resume", "tried", "--runs", runs, "--json")
    async with open_source("tried", runs) as source:
        await heard(source.ev.read(1), lambda event: event.type == "OfficeTaken")  # its supervisor is at work
        sleeper = await attached("Sleeper", runs, "--option", f"file={tmp_path / 'slept'}", "--durable", "slow")
        crasher, asker = [await attached(name, runs) for name in ("Crasher", "Asker")]
        meddler = await attached("Meddler", runs, "--option", f"file={tmp_path / 'denied'}")
        result = await run.result()
    assert result["dispatched"] == result["terminated"] == 8
    assert len(collector.named("execution")) == 8  # its own process for traces sent them on the way
    assert len(collector.named("step")) == 2

    assert (await crasher.end())[0] == 7
    assert (await asker.end())[0] == 1
    assert len(asker.lines) == 1
    assert asker.lines[0].startswith("ERROR subject $JS.API.STREAM.INFO.EV_tried: user attached_0")
    assert "may not publish there on nats://" in asker.lines[0]
    assert (await sleeper.end())[0] == (await meddler.end())[0] == 0, (sleeper.lines, meddler.lines)
    await asyncio.to_thread(opened.server.stop)

    denied = json.loads((tmp_path / "denied").read_text())
    assert len(denied) == 20
    assert all("permissions violation for" in each for each in denied)
    async with open_source(result["archive"], runs) as source:
        await check_log(source, steps=2)
        assert (await verify(source)).differences == []
        kept = [stored async for stored in messages(source.ev)]
    slept = json.loads((tmp_path / "slept").read_text())
    assert slept == [[s.sequence, i] for s in kept if s.commit for i in range(len(s.commit.events))]
    position = json.loads((runs / "tried/attached/slow.json").read_text())["position"]
    assert position == {"EV": len(kept)}
    assert credentials.login(opened.url, opened.folder, "attached_00").user == "attached_00"
