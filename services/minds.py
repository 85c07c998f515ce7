"""The singleton deciders with all they need to think: for their offices, and for a replay that decides again.

A mind reads nothing but EV and what EV refers to by sequence or digest, so a run and its archive give the same
decisions.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from bus.log import Stored
from gyre.config import Config
from gyre.core import batch_state, batches, groups, scheduler_state, tree
from gyre.core.decider import Decision
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler, armed
from gyre.rl import advantages, packing
from schemas.base import Model
from schemas.envelope import Event
from schemas.refs import BlobRef
from schemas.runs import RunStarted
from schemas.training import TrajectoriesAdmitted
from services.hearing import filters_of

State = TypeVar("State")


class Bodies(Protocol):
    """Blobs by reference."""

    def get(self, ref: BlobRef) -> bytes:
        """The body with this digest."""


class Reader(Protocol):
    """EV by sequence."""

    async def get(self, sequence: int) -> Stored | None:
        """The message with this sequence."""


@dataclass(frozen=True, slots=True)
class Mind(Generic[State]):
    """One singleton decider."""

    service: str
    initial: State
    evolve: Callable[[State, int, Event], State]
    think: Callable[[State], Awaitable[Decision | None]]
    """The next commit that is due, if any is."""
    adapter: TypeAdapter[State]
    folds: frozenset[type[Model]]
    """The events that `evolve` does not step over."""
    armed: Callable[[State], Iterable[tuple[str, float]]] = lambda _: ()
    """Timers (name, seconds) that are set and still matter."""


def minds(started: RunStarted, ev: Reader, blobs: Bodies) -> dict[str, Mind[Any]]:
    """All deciders of a run, by service."""
    made = (scheduling(started), admitting(started, blobs), packing_mind(started, ev))
    return {mind.service: mind for mind in made}


def filters(run: str, mind: Mind[Any]) -> tuple[str, ...]:
    """Of EV, what a mind has to hear: all of its own service, and of others where they say what it folds."""
    return filters_of(run, mind.folds, mind.service)


def scheduling(started: RunStarted) -> Mind[Scheduler]:
    """The scheduler's mind."""
    plan = Config.recorded(started.config).plan(started.tasks)
    decider = scheduler(plan)

    async def think(state: Scheduler) -> Decision | None:
        return _first(decider.decide(state))

    return Mind(
        "scheduler",
        decider.initial,
        decider.evolve,
        think,
        TypeAdapter(Scheduler),
        scheduler_state.folds(plan),
        lambda state: armed(plan, state),
    )


def admitting(started: RunStarted, blobs: Bodies) -> Mind[groups.State]:
    """The admission sampler's mind."""
    config = Config.recorded(started.config)
    initial = groups.initial(groups.Params(seed=config.run.seed, j_max=config.admission.j_max))
    rule = advantages.rule(config.objective.advantage, shuffle=config.objective.shuffle_advantages)

    def load(ref: BlobRef) -> groups.Nodes:
        return tree.from_bytes(blobs.get(ref)).nodes

    async def think(state: groups.State) -> Decision | None:
        return _first(groups.decide(state, load, rule))

    return Mind("admission", initial, groups.evolve, think, TypeAdapter(groups.State), groups.FOLDS)


def packing_mind(started: RunStarted, ev: Reader) -> Mind[batch_state.State]:
    """The packer's mind. It reads TrajectoriesAdmitted back by sequence, those of one group at a time."""
    config = Config.recorded(started.config)
    schedule, (low, high) = config.schedule, config.objective.mask_bounds
    initial = batch_state.initial(
        batch_state.Params(
            groups=schedule.groups,
            steps=config.run.steps,
            burst=schedule.mu,
            stream=schedule.stream,
            ratio_low=low,
            ratio_high=high,
        )
    )
    pack = partial(packing.pack, shape=packing_shape(config))
    kept: dict[int, TrajectoriesAdmitted] = {}

    async def think(state: batch_state.State) -> Decision | None:
        needed = batches.needs(state)
        for sequence in set(kept) - set(needed):
            del kept[sequence]
        for sequence in needed:
            if sequence not in kept:
                kept[sequence] = await _admitted(ev, sequence)
        return _first(batches.decide(state, kept.__getitem__, pack))

    return Mind("packer", initial, batch_state.evolve, think, TypeAdapter(batch_state.State), batch_state.FOLDS)


def packing_shape(config: Config) -> packing.Shape:
    """What the packer makes rows and micro-steps by."""
    return packing.Shape(
        groups=config.schedule.groups,
        group_size=config.schedule.executions,
        row_tokens=config.packing.row_tokens,
        micro_step_tokens=config.packing.micro_step_tokens,
        share_prefixes=config.packing.share_prefixes,
    )


async def _admitted(ev: Reader, sequence: int) -> TrajectoriesAdmitted:
    stored = await ev.get(sequence)
    found = stored.commit.events if stored and stored.commit else ()
    for event in found:
        if isinstance(event, TrajectoriesAdmitted):
            return event
    raise LookupError(f"EV sequence {sequence}: holds no TrajectoriesAdmitted, though the log was folded past it")


def _first(decisions: tuple[Decision, ...]) -> Decision | None:
    return decisions[0] if decisions else None
