"""Where an attached consumer finds its run when the run ends meanwhile."""

import asyncio
import fcntl
from pathlib import Path

from gyre.config import Config
from services.attach_host import hosted
from services.setup import open_run


async def test_a_run_is_at_rest_also_where_somebody_else_had_its_server_back_first(tmp_path: Path) -> None:
    opened = await open_run(Config.load(None, ["run.name=tried", f"run.folder={tmp_path}", "model.path=modelled"]))
    server = opened.server
    assert server is not None
    try:
        with (opened.folder / "control.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as its supervisor has it
            async with hosted(opened.folder) as host:
                assert not host.at_rest.is_set()
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
                async with asyncio.timeout(20):
                    await host.bus.ev.head()  # connected again
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    await host.at_rest.wait()
    finally:
        await asyncio.to_thread(server.stop)
