"""The reference harness, a process of its own, works through the proxy and an engine behind HTTP."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from gyre.core.leaves import summaries
from gyre.engines.remote import RemoteEngine
from gyre.harnesses import reference
from services.engine_server import engine_app, engine_runner
from tests.proxy.rig import WRITE, Cell, Rig

AGENT = Path(reference.__path__[0]) / "agent.py"
DELEGATE = '<tool_call>{"name":"delegate","arguments":{"prompt":"look around"}}</tool_call>'


@asynccontextmanager
async def served(cell: Cell) -> AsyncIterator[RemoteEngine]:
    runner = engine_runner(engine_app(cell, lambda: True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with RemoteEngine(f"http://127.0.0.1:{runner.addresses[0][1]}") as engine:
        yield engine
    await runner.cleanup()


async def work(rig: Rig, texts: list[str], *options: str) -> tuple[int, str, Cell]:
    """Run one episode in the folder `work`; exit code, what it printed, and the cell."""
    cell = Cell(texts)
    workspace = rig.folder / "work"
    workspace.mkdir()
    (rig.folder / "task").write_text("write up to a.txt")
    async with served(cell) as engine:
        await rig.register(0, cell)
        rig.cells["cell0"] = engine  # type: ignore[assignment]
        token = await rig.launch()
        async with rig.proxy() as client:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(AGENT), *options),
                cwd=workspace,
                env={
                    "OPENAI_BASE_URL": f"{client.url}/x/{token}/v1",
                    "OPENAI_API_KEY": token,
                    "GYRE_INSTRUCTION_FILE": str(rig.folder / "task"),
                    "PATH": os.environ["PATH"],
                },
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, output.decode(), cell


async def test_an_episode_changes_its_workspace_and_is_one_path(rig: Rig) -> None:
    code, output, cell = await work(rig, [WRITE, "done"])
    assert (code, output) == (0, "done\n")
    assert (rig.folder / "work" / "a.txt").read_text() == "up\n"
    tree = await rig.tree()
    assert [(leaf.role, leaf.tokens) for leaf in summaries(tree)] == [
        ("main", len(cell.asked[1].input_ids) + len(cell.given[1].output_ids))
    ]


async def test_streaming_is_the_same_episode(rig: Rig) -> None:
    code, output, cell = await work(rig, [WRITE, "done"], "--stream")
    assert (code, output) == (0, "done\n")
    assert [record.parent for record in await rig.records()] == [None, "x1-c0"]
    assert len(cell.asked) == 2


async def test_a_sub_agent_is_a_branch_of_its_own(rig: Rig) -> None:
    code, output, _ = await work(rig, [DELEGATE, WRITE, "seen", "done"])
    assert (code, output) == (0, "done\n")
    assert [(leaf.leaf, leaf.role) for leaf in summaries(await rig.tree())] == [
        ("x1-c2", "sub-agent"),
        ("x1-c3", "main"),
    ]


async def test_compaction_leaves_a_summary_and_a_new_root(rig: Rig) -> None:
    code, output, _ = await work(rig, [WRITE, "wrote up", "done"], "--compact-at", "30")
    assert (code, output) == (0, "done\n")
    records = await rig.records()
    assert [record.kind for record in records] == ["turn", "compaction", "turn"]
    assert records[2].prefix_messages == 1
    assert [(leaf.leaf, leaf.role) for leaf in summaries(await rig.tree())] == [
        ("x1-c1", "main-summary"),
        ("x1-c2", "main"),
    ]


async def test_a_prompt_that_is_too_long_makes_the_harness_summarise(rig: Rig) -> None:
    shell = '<tool_call>{"name":"shell","arguments":{"command":"seq 150"}}</tool_call>'
    code, _, _ = await work(rig, [WRITE, shell, "it counted", "done"])
    assert code == 0
    assert "compaction" in [record.kind for record in await rig.records()]
