"""Services that are forked from a process which has imported what they need."""

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gyre.config import Config
from services.births import Born, Nursery, modules_of
from tests.e2e.living import opened_run, processes


@asynccontextmanager
async def nursery(folder: Path) -> AsyncIterator[Nursery]:
    (folder / "logs").mkdir(exist_ok=True)
    made = Nursery("tried", folder, ("services.builder",))
    try:
        yield made
    finally:
        await made.close()


async def bear(made: Nursery, folder: Path) -> Born:
    with (folder / "said").open("ab") as output:
        return await made.bear(("builder", str(folder)), output.fileno())


async def lives(folder: Path, name: str) -> int:
    """Its pid, once it is at work."""
    async with asyncio.timeout(30):
        while "serves run" not in (folder / "said").read_text():
            await asyncio.sleep(0.02)
    return processes(folder)[name]


async def test_a_born_service_is_what_it_would_be_alone_and_its_end_is_told(tmp_path: Path) -> None:
    async with opened_run(tmp_path) as (opened, _), nursery(opened.folder) as made:
        born = await bear(made, opened.folder)
        assert await lives(opened.folder, "builder") == born.pid
        assert os.getsid(born.pid) == born.pid
        born.send_signal(signal.SIGTERM)
        assert await born.wait() == 0

        killed = await bear(made, opened.folder)
        os.kill(killed.pid, signal.SIGKILL)
        assert await killed.wait() == -signal.SIGKILL
        killed.send_signal(signal.SIGTERM)  # nobody is hit
        assert set(processes(opened.folder)) == {"nursery-tried"}


async def test_who_was_born_in_a_nursery_that_is_killed_ends_with_it_and_the_next_is_born_in_another(
    tmp_path: Path,
) -> None:
    async with opened_run(tmp_path) as (opened, _), nursery(opened.folder) as made:
        born = await bear(made, opened.folder)
        await lives(opened.folder, "builder")
        watch = os.pidfd_open(born.pid)
        os.kill(processes(opened.folder)["nursery-tried"], signal.SIGKILL)
        async with asyncio.timeout(10):
            assert await born.wait() == -signal.SIGKILL
        ended = select.poll()
        ended.register(watch, select.POLLIN)
        assert await asyncio.to_thread(ended.poll, 10_000)
        os.close(watch)
        again = await bear(made, opened.folder)
        assert again.pid != born.pid
    assert again.returncode == -signal.SIGKILL  # closed with it in work
    assert not processes(opened.folder)


async def test_a_service_that_cannot_start_says_why_in_its_own_output(tmp_path: Path) -> None:
    async with nursery(tmp_path) as made:
        born = await bear(made, tmp_path)
        async with asyncio.timeout(30):
            assert await born.wait() == 1
    assert "holds no run" in (tmp_path / "said").read_text()


@pytest.mark.parametrize(("model", "cell"), [("nano", True), ("modelled", False)])
def test_only_cells_that_compute_wait_for_transformers(model: str, cell: bool) -> None:
    config = Config.of({"model": {"path": model}})
    assert any("transformers" in name for name in modules_of(config, "cell")) is cell
    assert not any("torch" in name for name in modules_of(config, "scheduler"))
