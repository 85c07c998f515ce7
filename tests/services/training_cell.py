"""A cell as a process that only trains: the real desk, deeds and reducer over a real server, and the tiny model."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import torch

from gyre.core import cell
from gyre.engines.scripted import ScriptedEngine, replay
from gyre.trainers.reduction import Reducer
from gyre.weights.files import FromFolder
from schemas.roles import CellRegistered, RoleTransitionCompleted
from services.cell.desk import CellLeftBehind, Desk
from services.cell.training import Training
from services.failpoints import VARIABLE
from services.place import connect
from services.replica import Replica
from tests.trainers import batch
from tests.trainers.lagging import lagging

LEFT_BEHIND = 7
"""Exit code of a cell that reads that it was taken for lost."""


def main(folder: Path, index: int, failpoint: str = "", stages: int = 1) -> None:
    """Be this cell, in training from its registration on, until killed; its trainer ends micro-steps as so many do."""
    os.environ[VARIABLE] = failpoint
    torch.set_num_threads(1)
    try:
        asyncio.run(_be(folder, index, stages))
    except CellLeftBehind:
        os._exit(LEFT_BEHIND)


async def _be(folder: Path, index: int, stages: int) -> None:
    place, bus = await connect("cell", folder)
    desk = Desk(place, bus, index)
    engine = ScriptedEngine(replay(()))
    trainer = batch.trainer() if stages == 1 else lagging(stages)
    replica = Replica(engine, trainer, Reducer(folder, index, place.instance, 10.0))
    training = Training(desk, replica, FromFolder(folder))
    deeds: dict[str, Callable[[], Awaitable[None]]] = {
        "discard": training.discard,
        "join": training.join,
        "claim": training.claim,
        "advance": training.advance,
        "drain": training.drain,
        "reduce": training.open_reduction,
        "sum": training.take_part,
        "step": training.step,
    }
    reading = asyncio.create_task(desk.read())
    try:
        await desk.caught_up()
        await desk.register(
            CellRegistered(cell=index, instance=place.instance, url="http://127.0.0.1:1", capacity=1, version=0)
        )
        done = RoleTransitionCompleted(
            transition=f"to-{place.instance}", cell=index, instance=place.instance, to="train", version=0
        )
        await desk.say(("cell", index), done)
        while True:
            await desk.heard()
            desk.check()
            before, deed = desk.sequence, cell.choose(desk.view, desk.held)
            if deed in deeds:
                await deeds[deed]()
            else:
                await desk.until(lambda before=before: desk.sequence > before)  # type: ignore[misc]
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
