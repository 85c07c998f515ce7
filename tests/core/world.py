"""Everything outside the scheduler, in small: runner, cells, admission, packer, examiner and timers, told by chance.

It keeps its own books and checks each thing that the scheduler says against design §6.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gyre.core.decider import Decider
from gyre.core.plan import Plan
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler
from schemas import dispatch, rewards, roles, runs, training
from schemas.base import pack_floats
from schemas.envelope import Event
from schemas.refs import WeightsRef

DIGEST = "0" * 64
WEIGHTS = WeightsRef(digest=DIGEST, size=1, address="weights/0")


def run_started() -> runs.RunStarted:
    return runs.RunStarted(
        config={}, config_digest=DIGEST, seed=0, code_version="1", weights=WEIGHTS, tasks=("a",), heldout=("b",)
    )


def registered(cell: int, instance: str, capacity: int = 4) -> roles.CellRegistered:
    return roles.CellRegistered(cell=cell, instance=instance, url="http://127.0.0.1:1", capacity=capacity, version=0)


def launched(execution: str) -> dispatch.ExecutionLaunched:
    return dispatch.ExecutionLaunched(
        execution=execution, group="g", runner="r", token_digest=DIGEST, deadline_seconds=1
    )


def terminated(execution: str) -> dispatch.ExecutionTerminated:
    return dispatch.ExecutionTerminated(
        execution=execution,
        group="g",
        task="a",
        reason="completed",
        stage="closing",
        exit_code=0,
        seconds=1,
        state=None,
    )


def ready(group: str) -> rewards.GroupReady:
    return rewards.GroupReady(group=group, index=0, version=0, outcomes=())


def assigned(group: str, step: int) -> training.GroupAssigned:
    return training.GroupAssigned(step=step, group=group, version=0, staleness=0)


def stepped(step: int) -> training.OptimizerStepped:
    return training.OptimizerStepped(
        step=step,
        version=step,
        weights=WEIGHTS,
        optimizer=WEIGHTS,
        loss=0,
        gradient_norm=1,
        clip_coefficient=1,
        learning_rate=1,
        seconds=1,
    )


def published(version: int) -> training.WeightsPublished:
    return training.WeightsPublished(version=version, weights=WEIGHTS, seconds=1)


def completed(asked: roles.RoleTransitionRequested) -> roles.RoleTransitionCompleted:
    return roles.RoleTransitionCompleted(
        transition=asked.transition, cell=asked.cell, instance=asked.instance, to=asked.to, version=0
    )


def failed(asked: roles.RoleTransitionRequested) -> roles.RoleTransitionFailed:
    return roles.RoleTransitionFailed(
        transition=asked.transition, cell=asked.cell, instance=asked.instance, phase="load", reason="no room"
    )


def scored(evaluation: str, version: int) -> runs.EvaluationScored:
    return runs.EvaluationScored(
        evaluation=evaluation, version=version, scores=pack_floats([1]), mean=1, valid=1, seconds=1
    )


@dataclass
class Place:
    """A cell, as its own process knows it."""

    instance: str
    role: str = "rollout"
    asked: roles.RoleTransitionRequested | None = None


@dataclass
class World:
    """One run, told event by event."""

    plan: Plan
    chance: random.Random
    capacity: int = 4
    mishaps: int = 0
    """Cell losses and failed transitions that may still happen."""
    eager: bool = False
    """Whether the packer takes every ready group at once, or only while the core trains."""
    log: list[tuple[int, Event]] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """Sequences of the scheduler's commits."""
    places: dict[int, Place] = field(default_factory=dict)
    granted: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    dispatched: int = 0
    waiting: list[str] = field(default_factory=list)
    """Ready groups in no batch."""
    batch: list[str] = field(default_factory=list)
    told_ready: set[str] = field(default_factory=set)
    timers: list[str] = field(default_factory=list)
    steps: int = 0
    version: int = 0
    bursts: int = 0
    evaluating: runs.EvaluationStarted | None = None
    finished: runs.RunFinished | None = None
    births: int = 0
    before_dispatch: int = 0
    deciders: Decider[Scheduler] = field(init=False)
    state: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.deciders = scheduler(self.plan)
        self.state = self.deciders.initial

    def live(self, limit: int) -> None:
        """Tell the run to its end, or until the limit of events."""
        self.tell(run_started())
        while self.finished is None and len(self.log) < limit:
            choices = list(self._choices())
            assert choices, f"nothing can happen any more after {self.log[-5:]}: {self.state}"
            self.chance.choice(choices)()

    def tell(self, event: Event) -> None:
        """This happens outside."""
        self.log.append((len(self.log) + 1, event))
        self.state = self.deciders.evolve(self.state, len(self.log), event)
        self._invariants()

    def say(self) -> None:
        """The scheduler says the next thing that is due."""
        decision = self.deciders.decide(self.state)[0]
        for event in decision.events:
            self._check(event)
            self.own.append(len(self.log) + 1)
            self.tell(event)
            self._book(event)

    # What may happen next ---------------------------------------------------------------------------------------------

    def _choices(self) -> Iterator[Callable[[], None]]:
        if self.deciders.decide(self.state):
            yield self.say
            yield self.say
        for index in range(self.plan.cells):
            yield from self._cell(index)
        if self.granted:
            yield lambda: self._launch(self.chance.choice(self.granted))
        if self.running:
            yield lambda: self._terminate(self.chance.choice(self.running))
        for timer in self.timers:
            yield lambda timer=timer: self._fire(timer)  # type: ignore[misc]
        if self.evaluating:
            yield self._score
        yield from self._training()

    def _cell(self, index: int) -> Iterator[Callable[[], None]]:
        place = self.places.get(index)
        if place is None:
            yield lambda: self._register(index)
            return
        if place.asked:
            yield lambda: self._end_transition(place, well=True)
        if place.asked and self.mishaps > 0:
            yield lambda: self._end_transition(place, well=False)
        if self.mishaps > 0 and self.chance.random() < 0.05:
            yield lambda: self._lose(index)

    def _training(self) -> Iterator[Callable[[], None]]:
        core = self.places.get(0)
        trains = core is not None and core.role == "train" and core.asked is None
        if self.waiting and len(self.batch) < self.plan.groups and (trains or self.eager):
            yield self._assign
        last = min((self.bursts + 1) * self.plan.mu, self.plan.steps)
        if trains and len(self.batch) == self.plan.groups and self.steps < last:
            yield self._step
        home = all(place.role == "rollout" and not place.asked for index, place in self.places.items() if index)
        if core is not None and self.steps == last and self.version < last and home:
            yield self._publish

    # The others' doings -----------------------------------------------------------------------------------------------

    def _register(self, index: int) -> None:
        self.births += 1
        self.places[index] = Place(f"i{self.births}")
        self.tell(registered(index, f"i{self.births}", self.capacity))

    def _lose(self, index: int) -> None:
        self.mishaps -= 1
        place = self.places.pop(index)
        if self.chance.random() < 0.5:  # else it comes back before anybody has missed it
            self.tell(roles.CellLost(cell=index, instance=place.instance, reason="silent"))
        else:
            self._register(index)

    def _end_transition(self, place: Place, *, well: bool) -> None:
        asked = place.asked
        assert asked is not None
        place.asked = None
        if well:
            place.role = asked.to
            self.tell(completed(asked))
            self.tell(completed(asked))  # said twice: no effect
        else:
            self.mishaps -= 1
            self.tell(failed(asked))

    def _launch(self, execution: str) -> None:
        self.granted.remove(execution)
        self.running.append(execution)
        self.tell(launched(execution))
        self.tell(launched(execution))

    def _terminate(self, execution: str) -> None:
        self.running.remove(execution)
        self.gone.add(execution)
        self.tell(terminated(execution))
        self.tell(terminated(execution))
        group = execution.split("-", maxsplit=1)[0].replace("x", "g")
        if sum(name.startswith(f"x{group[1:]}-") for name in self.gone) == self.plan.executions:
            self.told_ready.add(group)
            self.waiting.append(group)
            self.tell(ready(group))

    def _fire(self, timer: str) -> None:
        self.timers.remove(timer)
        self.tell(runs.TimerFired(timer=timer))

    def _score(self) -> None:
        assert self.evaluating is not None
        evaluation, self.evaluating = self.evaluating, None
        self.tell(scored(evaluation.evaluation, evaluation.version))

    def _assign(self) -> None:
        group = self.waiting.pop(0)
        if not self.batch:
            self.tell(training.BatchOpened(step=self.steps + 1, version=self.steps, groups=self.plan.groups))
        self.batch.append(group)
        self.tell(assigned(group, self.steps + 1))

    def _step(self) -> None:
        self.steps += 1
        self.batch = []
        self.tell(stepped(self.steps))

    def _publish(self) -> None:
        self.version = self.steps
        self.tell(published(self.version))

    # The books --------------------------------------------------------------------------------------------------------

    def capacity_now(self) -> int:
        """C_R by our own count."""
        return self.capacity * sum(place.role == "rollout" and not place.asked for place in self.places.values())

    def waterlevel(self) -> int:
        return self.dispatched - len(self.gone)

    def _check(self, event: Event) -> None:
        """What the scheduler is about to say, against the rules of design §6."""
        if isinstance(event, dispatch.GroupDispatched | dispatch.ExecutionDispatched | dispatch.LaunchGranted):
            assert self.evaluating is None
        if isinstance(event, dispatch.GroupDispatched):
            assert event.version == self.version
            assert self.dispatched < self.plan.quota(self.bursts) * self.plan.executions
        if isinstance(event, dispatch.LaunchGranted):
            assert len(self.places) == self.plan.cells or self.births >= self.plan.cells
            assert len(self.granted) + len(self.running) < self.capacity_now()
        if isinstance(event, roles.RoleTransitionRequested):
            self._check_transition(event)
        if isinstance(event, training.BurstEnded):
            self._check_retention(event)
        if isinstance(event, runs.EvaluationStarted):
            assert event.version == self.version
            assert self.places[0].role == "rollout"

    def _check_transition(self, event: roles.RoleTransitionRequested) -> None:
        place = self.places[event.cell]
        last = min((self.bursts + 1) * self.plan.mu, self.plan.steps)
        if event.to == "rollout":
            assert place.role == "train"
            assert event.cell == 0 or self.steps == last
            return
        assert place.role == "rollout"
        assert self.evaluating is None
        assert not any(other.asked for other in self.places.values())
        assert all(self.places[index].role == "train" for index in range(event.cell))
        assert self.waterlevel() <= self.capacity_now() - self.capacity
        assert self.steps < last
        supply = min(len(self.waiting), self.plan.groups - len(self.batch))
        untouched = len(self.batch) if event.cell == 0 else 0
        assert supply + untouched >= self.plan.rho_min * self.plan.groups - 1e-9

    def _check_retention(self, event: training.BurstEnded) -> None:
        assert self.version == self.steps == event.version
        before = self.plan.quota(self.bursts)
        pending = (self.plan.quota(self.bursts + 1) - before) * self.plan.executions
        room = self.waterlevel() + pending <= self.capacity_now()
        enough = len(self.waiting) >= self.plan.rho_min * self.plan.groups - 1e-9
        if event.retained:
            assert room
            assert enough
            assert self.places[0].role == "train"
        elif self.places.get(0) and self.places[0].role == "train" and self.plan.evaluation_episodes == 0:
            assert not (room and enough) or self.steps == self.plan.steps

    def _book(self, event: Event) -> None:
        match event:
            case dispatch.ExecutionDispatched():
                self.dispatched += 1
            case dispatch.LaunchGranted(execution=execution):
                self.granted.append(execution)
            case roles.RoleTransitionRequested(cell=cell):
                self.places[cell].asked = event
            case runs.TimerSet(timer=timer):
                self.timers.append(timer)
            case runs.EvaluationStarted():
                self.evaluating = event
            case training.BurstEnded():
                self.bursts += 1
            case runs.RunFinished():
                self.finished = event

    def _invariants(self) -> None:
        counts = self.state.dispatch
        assert 0 <= counts.terminated <= counts.launched <= counts.dispatched
        assert counts.launched - counts.terminated == len(counts.running)
        assert counts.dispatched <= self.plan.total_groups * self.plan.executions
