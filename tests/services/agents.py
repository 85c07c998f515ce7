"""Cells as agents behind HTTP on a bus in memory: scripted engines, a trainer that only holds, a scheduler's words."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gyre.config import Config
from gyre.engines.port import Engine, Generator
from gyre.engines.remote import RemoteEngine
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.roles import (
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionPhaseCompleted,
    RoleTransitionRequested,
)
from schemas.runs import RunStarted
from services.cell.service import CellAgent
from services.place import Place
from services.replica import Replica
from tests.proxy.rig import RUN, Rig


class Holding:
    """The part of a trainer that a change of role asks for; `broken` makes its weights unreadable."""

    def __init__(self) -> None:
        self.holds = self.broken = False

    def load(self, weights: Path) -> None:
        if self.broken:
            raise OSError("the weights cannot be read")
        self.holds = True

    def release(self) -> None:
        self.holds = False


@dataclass
class Crew(Rig):
    """A rig whose cells are agents."""

    config: Config = field(default_factory=Config)

    def _connect(self, url: str) -> Generator:
        return RemoteEngine(url)

    async def begin(self) -> None:
        """The run's first word, with weights that nobody reads."""
        body = b"weights"
        digest = hashlib.sha256(body).hexdigest()
        (self.folder / "weights").mkdir()
        (self.folder / "weights" / f"{digest}.safetensors").write_bytes(body)
        reference = WeightsRef(digest=digest, size=len(body), address=f"weights/{digest}.safetensors")
        await self.start(reference)

    async def start(self, weights: WeightsRef) -> None:
        """The run's first word."""
        started = RunStarted(
            config=self.config.table(),
            config_digest=self.config.digest(),
            seed=3,
            code_version="0",
            weights=weights,
            tasks=("a",),
            heldout=("b",),
        )
        await self.say("control", ("run",), started)

    @asynccontextmanager
    async def agent(self, index: int, engine: Engine, trainer: Any = None) -> AsyncIterator["asyncio.Task[None]"]:
        """Cell `index` at work, registered."""
        instance = f"cell-{index}-{self.starts}"
        bus = self.bus("cell")
        place = Place("cell", instance, RUN, self.folder, "", self.config)
        bus.instance = instance
        await engine.release()
        replica = Replica(engine, trainer or Holding(), None)  # type: ignore[arg-type]  # nothing is ever reduced
        running = asyncio.create_task(CellAgent(place, bus, index, replica).run())
        await self.heard(CellRegistered, cell=index, instance=instance)
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def heard(self, *kinds: type[Any], after: int = 0, **fields: object) -> Any:
        """The first event of one of these kinds with these fields, whenever it comes."""
        async with asyncio.timeout(30), aclosing(self.bus("test").ev.read(after)) as stream:
            async for stored in stream:
                for event in stored.commit.events if stored.commit else ():
                    if isinstance(event, kinds) and all(getattr(event, key) == each for key, each in fields.items()):
                        return event
        raise AssertionError

    async def ask(self, transition: str, index: int, to: Literal["train", "rollout"]) -> Event:
        """Ask a cell for a transition; how it ended."""
        await self.request(transition, index, to)
        ended: Event = await self.heard(RoleTransitionCompleted, RoleTransitionFailed, transition=transition)
        return ended

    async def request(self, transition: str, index: int, to: Literal["train", "rollout"]) -> None:
        """Ask a cell for a transition."""
        cells = [event for event in await self.said(CellRegistered) if event.cell == index]
        request = RoleTransitionRequested(transition=transition, cell=index, instance=cells[-1].instance, to=to)
        await self.say("scheduler", ("cell", str(index)), request)

    async def phases(self, transition: str) -> list[RoleTransitionPhaseCompleted]:
        """What a transition went through."""
        return [each for each in await self.said(RoleTransitionPhaseCompleted) if each.transition == transition]
