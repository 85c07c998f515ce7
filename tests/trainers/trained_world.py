"""Cells of `tests.core.training_world` with real trainers: their gradients are tensors, and satellites come when told.

All trainers hold the same weights, so a cell that starts takes the one of its index, zeroed: a process's memory is
gone when it ends.
"""

import random
from dataclasses import dataclass, field
from functools import cache

import torch

from gyre.core import ledger
from gyre.core.batch_state import initial
from gyre.core.ledger import Ledger, Reduction
from gyre.trainers.torch import TorchTrainer
from schemas.base import pack_floats, pack_ints
from schemas.training import MicroStepEnqueued, TrajectoriesAdmitted, Trajectory
from tests.core.facts import completed, group_ready, moved, registered
from tests.core.training_world import Cell, World
from tests.trainers import batch

ROLLED = -3.0
"""Behaviour log-probability of every target, nats: near the tiny model's, so that some executions are masked."""


@cache
def trainer(index: int, kind: torch.dtype) -> TorchTrainer:
    """Of a cell; the last one is for references."""
    made = batch.trainer(model=batch.tiny_model().to(kind))
    assert made.gradient.dtype == kind, index
    return made


def alone(steps: list[MicroStepEnqueued], kind: torch.dtype) -> torch.Tensor:
    """The gradient of one trainer that takes them all in order."""
    one = trainer(-1, kind)
    one.zero()
    for each in steps:
        one.micro_step(each)
    return one.gradient.clone()


def admitted(chance: random.Random, index: int, place: int, advantage: float) -> TrajectoriesAdmitted:
    """An execution of group `index` with one to three trajectories of random ids."""
    made = []
    for number in range(chance.randint(1, 3)):
        length = chance.randint(2, 11)
        ids = [chance.randrange(batch.VOCABULARY) for _ in range(length)]
        logprobs = [0.0] + [ROLLED + chance.uniform(-1, 1) for _ in range(length - 1)]
        made.append(
            Trajectory(
                leaf=f"x{index}-{place}-{number}",
                role="main",
                ids=pack_ints(ids),
                target=bytes([0]) + bytes([1]) * (length - 1),
                logprobs=pack_floats(logprobs),
                targets=length - 1,
            )
        )
    return TrajectoriesAdmitted(
        execution=f"x{index}-{place}",
        group=f"g{index}",
        version=0,
        advantage=advantage,
        targets=sum(each.targets for each in made),
        seed=0,
        trajectories=tuple(made),
    )


@dataclass
class TrainedCell(Cell):
    """A cell that computes."""

    trainer: TorchTrainer = field(kw_only=True)

    def zero(self) -> None:
        super().zero()
        self.trainer.zero()

    def finish(self) -> None:
        held = self.held
        if held is None:
            return
        self.held = None
        work = queued(self.log.events())[held.micro_step]
        found = self.trainer.micro_step(work)
        if work.kind == "train":
            self.gradient[held.micro_step] = self.claim
        done = completed(held.step, held.micro_step, self.index, self.instance, self.claim)
        if not self.log.say(done, *found.measured, expect=self.claim):
            self.discard()

    def discard(self) -> None:
        self.trainer.zero()
        super().discard()


@dataclass
class TrainedWorld(World):
    """One step; `joins` says at which share of its targets each satellite comes, None: never."""

    kind: torch.dtype = field(kw_only=True)
    joins: tuple[float | None, ...] = field(kw_only=True)
    total: torch.Tensor | None = None
    """The reduced gradient that was applied."""
    late: int = 0
    """Satellites that came when the window was closed."""

    def __post_init__(self) -> None:
        self.packer = initial(self.params)
        for index in range(self.params.groups):
            self.log.say(group_ready(index, 2))
            self.log.say(admitted(self.chance, index, 0, 1.0))
            self.log.say(admitted(self.chance, index, 1, -1.0))
        self.start(0)

    def start(self, index: int) -> None:
        """A process starts, if it is time for it."""
        at = 0.0 if index == 0 else self.joins[index - 1]
        if at is None or self.share() < at:
            return
        self.late += self.truth().window_closed
        self.born += 1
        cell = TrainedCell(index, f"i{self.born}", self.log, trainer=trainer(index, self.kind))
        cell.zero()
        self.log.say(registered(index, cell.instance))
        self.log.say(moved(index, cell.instance))
        self.alive[index] = cell
        cell.see(self.head)

    def truth(self) -> Ledger:
        """The ledger as the whole log has it."""
        state = Ledger()
        for sequence, event in self.log.events():
            state = ledger.evolve(state, sequence, event)
        return state

    def share(self) -> float:
        """Of the batch's targets: those whose gradient lies in a cell that counts."""
        events = self.log.events()
        everything = sum(event.targets for _, event in events if isinstance(event, TrajectoriesAdmitted))
        steps = queued(events)
        held = sum(targets(steps[each.micro_step]) for each in ledger.live(self.truth()))
        return held / everything

    def _sum(self, reduction: Reduction, opened: int) -> list[int] | None:
        total = super()._sum(reduction, opened)
        if total is not None:
            members = [self.alive[each] for each in reduction.members]
            shares = [each.trainer.gradient for each in members if isinstance(each, TrainedCell)]
            self.total = torch.stack(shares).sum(0)
        return total


def queued(events: list[tuple[int, object]]) -> dict[int, MicroStepEnqueued]:
    """Micro-step -> its rows."""
    return {event.micro_step: event for _, event in events if isinstance(event, MicroStepEnqueued)}


def targets(step: MicroStepEnqueued) -> int:
    """How many tokens of a micro-step carry loss."""
    return sum(segment.target.count(1) for row in step.rows for segment in row.segments)
