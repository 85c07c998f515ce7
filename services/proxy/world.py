"""What the proxy knows of the run: EV, followed from its snapshot on, and the tokens that it makes valid."""

import asyncio
import contextlib
import itertools
from collections.abc import Set as AbstractSet

from pydantic import TypeAdapter

from bus.consumers import Projection, SnapshotFile
from bus.log import BusPort, Stored
from gyre.core.admission import seed_of
from gyre.core.routes import FOLDS, Cell, Routes, choose, evolve
from gyre.proxy.errors import Unauthorized
from gyre.proxy.tokens import MOST_ATTEMPTS, episode, execution_token, token_digest
from schemas.calls import RouteAssigned, RouteMoved
from schemas.envelope import Event, Producer
from schemas.runs import EvaluationScored, EvaluationStarted
from services.hearing import SAVE_SECONDS, filters_of, last_of

ADAPTER = TypeAdapter(Routes)
_CATCH_UP_SECONDS = 30.0


class World:
    """A live fold of EV that can be waited on."""

    def __init__(
        self, bus: BusPort, secret: bytes, seed: int, trainers: int = 0, file: SnapshotFile[Routes] | None = None
    ) -> None:
        """Begin where the snapshot says.

        Args:
            bus: the run's.
            secret: what tokens derive from.
            seed: the run's; executions that were never dispatched (held-out episodes) draw theirs from it.
            trainers: cells 0..trainers-1 serve nobody.
            file: where routes are remembered, as the log has them.
        """
        nowhere = Routes(trainers=trainers)
        self._told = Projection(nowhere, evolve_told, file, seconds=SAVE_SECONDS, whole=False)
        self.routes = self._told.state
        self.sequence = self._told.sequence
        self._bus, self._secret, self._seed = bus, secret, seed
        self._filters = filters_of(bus.run, FOLDS, bus.service)
        self._self = Producer(service=bus.service, instance=bus.instance)
        self._episodes: dict[str, str] = {}
        self._gone: dict[str, asyncio.Event] = {}
        self._bell = asyncio.Event()
        for evaluation, episodes in self.routes.evaluations.items():
            self._admit(evaluation, episodes)

    async def follow(self) -> None:
        """Fold EV for ever, but for our own routes: they were folded when said, and may have changed since."""
        async with contextlib.aclosing(self._bus.ev.read(self.sequence, *self._filters)) as stream:
            async for stored in stream:
                self._told.feed(stored)
                for event in stored.commit.events if stored.commit else ():
                    if not (isinstance(event, RouteAssigned | RouteMoved) and self._is_ours(stored)):
                        self.fold(event)
                self.sequence = stored.sequence
                self._ring()

    def fold(self, event: Event) -> None:
        """Take in one event, from the log or on its way there (routes are said by the proxy itself)."""
        before = self.routes.cells
        self.routes = evolve(self.routes, event)
        if self.routes.cells is not before:
            self._mark_gone()
        if isinstance(event, EvaluationStarted):
            self._admit(event.evaluation, event.episodes)
        elif isinstance(event, EvaluationScored):
            self._episodes = {
                token: execution
                for token, execution in self._episodes.items()
                if execution.rpartition("-")[0] in self.routes.evaluations
            }

    def save(self) -> None:
        """Remember what the log says, for the next proxy."""
        self._told.save()

    def told(self, execution: str) -> tuple[int | None, int]:
        """The cell that the log gave an execution, and how far it was read for that."""
        return self._told.state.assigned.get(execution), self._told.sequence

    async def changed(self) -> None:
        """Wait until more was folded."""
        await self._bell.wait()

    async def caught_up(self) -> None:
        """Wait until all that concerns a proxy and that EV holds now is folded."""
        if self.sequence >= await self._bus.ev.head():
            return
        last = await last_of(self._bus.ev, self._filters)
        while self.sequence < last:
            await self.changed()

    async def execution(self, token: str) -> str:
        """The open execution with this token; one whose launch is in the log but not folded yet is waited for.

        Raises:
            Unauthorized: there is none.
        """
        digest = token_digest(token)
        if (found := self._find(digest)) is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CATCH_UP_SECONDS):
                    await self.caught_up()
            found = self._find(digest)
        if found is None:
            raise Unauthorized("token: belongs to no open execution; the execution has ended or never was")
        return found

    def is_open(self, execution: str) -> bool:
        """Whether calls of this execution are accepted."""
        return execution in self.routes.open.values() or execution.rpartition("-")[0] in self.routes.evaluations

    def seed(self, execution: str) -> int:
        """What the execution's sampling is seeded with."""
        return self.routes.seeds.get(execution, seed_of(self._seed, execution))

    async def cell_for(self, execution: str, avoid: AbstractSet[int]) -> tuple[int, Cell]:
        """Where the execution's next request goes; waits while no cell serves."""
        while True:
            index = choose(self.routes, execution, avoid)
            if index is not None:
                return index, self.routes.cells[index]
            await self.changed()

    def clients(self) -> int:
        """Executions and held-out episodes that may be at work."""
        return len(self.routes.open) + sum(self.routes.evaluations.values())

    def gone(self, instance: str) -> asyncio.Event:
        """Set once this instance is no cell any more."""
        event = self._gone.setdefault(instance, asyncio.Event())
        self._mark_gone()
        return event

    def _admit(self, evaluation: str, episodes: int) -> None:
        for attempt, index in itertools.product(range(1, MOST_ATTEMPTS + 1), range(episodes)):
            execution = episode(evaluation, index, attempt)
            self._episodes[token_digest(execution_token(self._secret, execution))] = execution

    def _find(self, digest: str) -> str | None:
        return self.routes.open.get(digest) or self._episodes.get(digest)

    def _is_ours(self, stored: Stored) -> bool:
        return stored.commit is not None and stored.commit.producer == self._self

    def _mark_gone(self) -> None:
        living = {cell.instance for cell in self.routes.cells.values()}
        for instance in [name for name in self._gone if name not in living]:
            self._gone.pop(instance).set()

    def _ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()


def evolve_told(routes: Routes, sequence: int, event: Event) -> Routes:  # noqa: ARG001 - a fold
    """Routes as the log has them."""
    return evolve(routes, event)
