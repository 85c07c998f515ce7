"""Cells and a packer that train over one log, each seeing it late, dying and coming back as chance has it.

The log is as strict as the broker: a claim expects the sequence of the last enqueue or reissue of its micro-step, a
completion that of its claim. A cell keeps its accumulated gradient as the set of micro-steps in it, so that a sum can
be compared with the ledger, which is the whole question.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from pydantic import TypeAdapter

from gyre.core import batches, ledger
from gyre.core.batch_state import Params, State, initial
from gyre.core.batches import Rows
from gyre.core.ledger import Ledger, Reduction
from gyre.rl.packing import Shape, pack
from schemas.envelope import Event
from schemas.training import (
    ContributionDiscarded,
    GradientReduced,
    JoinWindowClosed,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    RatioMeasured,
    ReductionOpened,
    TrajectoriesAdmitted,
)
from tests.core.facts import admitted, claimed, completed, group_ready, joined, lost, moved, registered, stepped

SHAPE = Shape(groups=2, group_size=2, row_tokens=8, micro_step_tokens=12)
STATE = TypeAdapter(State)
ABOUT_MICRO_STEP = (MicroStepEnqueued, MicroStepReissued, MicroStepClaimed, MicroStepCompleted)


@dataclass
class Log:
    """Commits in order; sequence n is the n-th."""

    commits: list[tuple[Event, ...]] = field(default_factory=list)
    last: dict[tuple[int, int], int] = field(default_factory=dict)
    """(step, micro-step) -> sequence of the last commit about it."""

    def say(self, *events: Event, expect: int | None = None) -> bool:
        """Store; False when the micro-step has moved on from the expected sequence."""
        about = [(e.step, e.micro_step) for e in events if isinstance(e, ABOUT_MICRO_STEP)]
        if expect is not None and self.last.get(about[0]) != expect:
            return False
        self.commits.append(events)
        self.last |= dict.fromkeys(about, len(self.commits))
        return True

    def events(self) -> list[tuple[int, Event]]:
        return [(place, event) for place, events in enumerate(self.commits, 1) for event in events]


@dataclass
class Cell:
    """One process: what it has seen of the log, what it works on and what it has accumulated."""

    index: int
    instance: str
    log: Log
    view: Ledger = field(default_factory=Ledger)
    seen: int = 0
    is_joined: bool = False
    held: MicroStepClaimed | None = None
    claim: int = 0
    gradient: dict[int, int] = field(default_factory=dict)
    """Micro-step -> claim under which its gradient was added."""

    def zero(self) -> None:
        self.is_joined, self.held, self.gradient = False, None, {}

    def see(self, upto: int) -> None:
        """Fold on; whoever finds that it does not count any more zeroes and has to join again."""
        for sequence in range(self.seen + 1, upto + 1):
            for event in self.log.commits[sequence - 1]:
                self.view = ledger.evolve(self.view, sequence, event)
                if self.is_joined and self.view.joined.get(self.index) != self.instance:
                    self.zero()
            self.seen = sequence

    def join(self) -> None:
        if not self.is_joined and not self.view.window_closed:
            self.zero()
            self.log.say(joined(self.view.step, self.index, self.instance))
            self.see(len(self.log.commits))
            self.is_joined = self.view.joined.get(self.index) == self.instance

    def take(self, chance: random.Random) -> None:
        """Claim a micro-step that seems to be ready, in this cell's possibly old view."""
        ready = [place for place, slot in self.view.slots.items() if slot.status == "ready"]
        may = self.is_joined and self.held is None and ledger.may_claim(self.view, self.index, self.instance)
        if not ready or not may:
            return
        claim = claimed(self.view.step, chance.choice(ready), self.index, self.instance)
        slot = self.view.slots[claim.micro_step]
        expected = max(slot.enqueued, self._reissue(claim.micro_step))
        if self.log.say(claim, expect=expected):
            self.held, self.claim = claim, len(self.log.commits)

    def _reissue(self, place: int) -> int:
        found = (
            sequence
            for sequence in range(self.seen, 0, -1)
            for event in self.log.commits[sequence - 1]
            if isinstance(event, MicroStepReissued) and (event.step, event.micro_step) == (self.view.step, place)
        )
        return next(found, 0)

    def finish(self) -> None:
        """Complete what it holds; refused means that everything accumulated is discarded."""
        held = self.held
        if held is None:
            return
        step, place = held.step, held.micro_step
        self.held = None
        done = completed(step, place, self.index, self.instance, self.claim)
        ratios = self._measurements(step, place)
        if not ratios:
            self.gradient[place] = self.claim
        if not self.log.say(done, *ratios, expect=self.claim):
            self.discard()

    def discard(self) -> None:
        if self.is_joined:
            self.gradient, self.held = {}, None
            step = self.view.step
            self.log.say(
                ContributionDiscarded(
                    step=step, cell=self.index, instance=self.instance, reason="refused", broken=False
                )
            )

    def _measurements(self, step: int, place: int) -> list[RatioMeasured]:
        for event in (event for commit in self.log.commits for event in commit):
            if isinstance(event, MicroStepEnqueued) and (event.step, event.micro_step) == (step, place):
                counts = targets(event.rows) if event.kind == "measure" else Counter()
                names = Counter(execution for execution, _, _ in counts)
                return [
                    RatioMeasured(step=step, micro_step=place, execution=name, log_ratio_sum=0.0, count=count)
                    for name, count in names.items()
                ]
        raise AssertionError(f"micro-step {place} of step {step} was never queued")

    def share(self, reduction: Reduction) -> dict[int, int] | None:
        """What it gives to a sum; None when the frozen claims are not what it holds."""
        named = {each.micro_step: each.claim for each in reduction.contributions if each.cell == self.index}
        return dict(self.gradient) if named == self.gradient else None


@dataclass
class World:
    """A run of `steps` steps whose groups are ready from the start."""

    chance: random.Random
    cells: int
    params: Params
    log: Log = field(default_factory=Log)
    alive: dict[int, Cell] = field(default_factory=dict)
    packer: State = field(init=False)
    packed_upto: int = 0
    born: int = 0
    sums: dict[int, list[int]] = field(default_factory=dict)
    """Step -> micro-steps in the sum of its update."""

    def __post_init__(self) -> None:
        self.packer = initial(self.params)
        for index in range(self.params.groups * self.params.steps):
            self.log.say(group_ready(index, 2))
            for place in range(2):
                lengths = tuple(self.chance.randint(2, 11) for _ in range(self.chance.randint(0, 3)))
                self.log.say(admitted(index, place, lengths, self.chance.choice([1.0, -1.0, 0.0])))
        for cell in range(self.cells):
            self.start(cell)

    @property
    def head(self) -> int:
        return len(self.log.commits)

    def start(self, index: int) -> None:
        self.born += 1
        cell = Cell(index, f"i{self.born}", self.log)
        self.log.say(registered(index, cell.instance))
        self.log.say(moved(index, cell.instance, version=len(self.sums)))
        self.alive[index] = cell
        cell.see(self.head)

    def pack(self, upto: int) -> None:
        """The packer folds, decides and says its first decision; deciding from a snapshot gives the same."""
        for sequence in range(self.packed_upto + 1, upto + 1):
            for event in self.log.commits[sequence - 1]:
                self.packer = batches.evolve(self.packer, sequence, event)
            self.packed_upto = sequence
        decisions = batches.decide(self.packer, self._load, partial(pack, shape=SHAPE))
        restored = STATE.validate_json(STATE.dump_json(self.packer))
        assert batches.decide(restored, self._load, partial(pack, shape=SHAPE)) == decisions
        if decisions:
            self.log.say(*decisions[0].events)
            self.pack(self.head)

    def _load(self, sequence: int) -> TrajectoriesAdmitted:
        (event,) = self.log.commits[sequence - 1]
        assert isinstance(event, TrajectoriesAdmitted)
        return event

    def reduce(self) -> None:
        """The core opens a reduction, sums what the members hold and updates, if it lives that long."""
        core = self.alive.get(0)
        due = ledger.reduction_due(core.view) if core is not None else None
        if core is None or due is None or not core.is_joined:
            return
        opened = ReductionOpened(
            step=core.view.step,
            epoch=due.epoch,
            members=due.members,
            instances=due.instances,
            contributions=due.contributions,
        )
        self.log.say(JoinWindowClosed(step=core.view.step, members=due.members), opened)
        core.see(self.head)
        reduction = core.view.reduction
        total = self._sum(reduction, self.head) if reduction is not None and reduction.intact else None
        if reduction is None or total is None:
            return
        assert ledger.check(reduction.contributions, ledger.training(core.view)) == ()
        self._update(core, reduction, total)

    def _sum(self, reduction: Reduction, opened: int) -> list[int] | None:
        total: list[int] = []
        for member, instance in zip(reduction.members, reduction.instances, strict=True):
            cell = self.alive.get(member)
            if cell is None or cell.instance != instance:
                return None
            cell.see(max(opened, cell.seen))
            share = cell.share(reduction)
            assert share is not None, f"cell {member} holds {cell.gradient}, the log says {reduction.contributions}"
            total.extend(share)
        return total

    def _update(self, core: Cell, reduction: Reduction, total: list[int]) -> None:
        step = core.view.step
        self.log.say(
            GradientReduced(
                step=step,
                epoch=reduction.epoch,
                members=reduction.members,
                micro_steps=len(total),
                gradient_norm=1.0,
                seconds=0.1,
            )
        )
        if self.chance.random() < 0.2:  # the core dies between the sum and the durable weights
            self.kill(0)
            return
        assert step not in self.sums
        self.sums[step] = total
        self.log.say(stepped(step))

    def kill(self, index: int) -> None:
        """A process ends; sometimes the scheduler notices before it is back, sometimes not."""
        cell = self.alive.pop(index, None)
        if cell is not None and self.chance.random() < 0.5:
            self.log.say(lost(index, cell.instance))

    def declare_lost(self, index: int) -> None:
        """A living cell's heartbeats do not arrive: it goes on until it reads that it is lost."""
        cell = self.alive.get(index)
        if cell is not None:
            self.log.say(lost(index, cell.instance))

    def act(self, *, harm: float) -> None:
        """One thing happens."""
        index = self.chance.randrange(self.cells)
        cell = self.alive.get(index)
        if cell is None:
            self.start(index)
        elif self.chance.random() < harm:
            self.chance.choice([self.kill, self.declare_lost, lambda _: cell.discard()])(index)
        else:
            self._work(cell)

    def _work(self, cell: Cell) -> None:
        cell.see(self.chance.randint(cell.seen, self.head))
        known = cell.view.cells.get(cell.index)
        if known is not None and (known.instance != cell.instance or not known.alive):
            self.alive.pop(cell.index)  # it reads that it is lost, and ends
            return
        if not cell.is_joined:
            cell.join()
        does = self.chance.choice(["take", "finish", "finish", "pack", "pack", "reduce"])
        if does == "take":
            cell.take(self.chance)
        elif does == "finish":
            cell.finish()
        elif does == "pack":
            self.pack(self.chance.randint(self.packed_upto, self.head))
        else:
            self.reduce()


def targets(rows: Rows) -> Counter[tuple[str, str, int]]:
    """(execution, leaf, place) of each target."""
    return Counter(
        (segment.execution, segment.leaf, place)
        for row in rows
        for segment in row.segments
        for place, flag in enumerate(segment.target)
        if flag
    )
