"""Everything outside the scheduler, in small: runner, cells, admission, packer, examiner and timers, told by chance.

It keeps its own books; each thing that the scheduler says is checked against them (world_rules.py).
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
from tests.core import world_rules

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


def terminated(
    execution: str, reason: dispatch.Reason = "completed", seconds: float = 1
) -> dispatch.ExecutionTerminated:
    return dispatch.ExecutionTerminated(
        execution=execution,
        group="g",
        task="a",
        reason=reason,
        stage="closing",
        exit_code=0,
        seconds=seconds,
        state=None,
    )


def rewarded(execution: str, *, placeholder: bool = False) -> rewards.RewardAssigned:
    return rewards.RewardAssigned(execution=execution, group="g", reward=0, placeholder=placeholder)


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
    told_to_end: list[str] = field(default_factory=list)
    """Cancelled, and not yet gone."""
    ungraded: list[str] = field(default_factory=list)
    valid: dict[str, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    """Group -> executions that are scored, excluded or cancelled."""
    dispatched: int = 0
    groups: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    """Group -> published version at its dispatch."""
    staleness: list[int] = field(default_factory=list)
    """Of each assigned group."""
    left_over: list[int] = field(default_factory=list)
    """Dispatched groups not yet trained on, at each publication."""
    waiting: list[str] = field(default_factory=list)
    """Ready groups in no batch."""
    batch: list[str] = field(default_factory=list)
    told_ready: set[str] = field(default_factory=set)
    timers: list[str] = field(default_factory=list)
    steps: int = 0
    version: int = 0
    bursts: int = 0
    burst_version: int = 0
    """Published at the end of the last burst."""
    between: bool = False
    """The burst's last update is done, and the core was neither retained nor asked to train again."""
    evaluating: runs.EvaluationStarted | None = None
    finished: runs.RunFinished | None = None
    births: int = 0
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
            world_rules.check(self, event)
            self.own.append(len(self.log) + 1)
            self.tell(event)
            self._book(event)

    # What may happen next ---------------------------------------------------------------------------------------------

    def _choices(self) -> Iterator[Callable[[], None]]:
        if self.deciders.decide(self.state):
            yield self.say
            yield self.say
        for index in range(self.plan.cells + self.plan.standalone):
            yield from self._cell(index)
        unlaunched = [*self.granted, *(each for each in self.told_to_end if each not in self.running)]
        if unlaunched:
            yield lambda: self._launch(self.chance.choice(unlaunched))
        if self.running:
            yield lambda: self._terminate(self.chance.choice(self.running))
        if self.ungraded:
            yield lambda: self._grade(self.chance.choice(self.ungraded))
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
        trains = core is not None and core.role == "train" and core.asked is None and not self.between
        if self.waiting and len(self.batch) < self.plan.groups and (trains or self.eager) and self._gathered():
            yield self._assign
        last = min((self.bursts + 1) * self.plan.mu, self.plan.steps)
        if trains and len(self.batch) == self.plan.groups and self.steps < last:
            yield self._step
        first = max(1, self.plan.trainers)
        satellites = [place for index, place in self.places.items() if index >= first]
        home = all(place.role == "rollout" and not place.asked for place in satellites)
        boundary = self.plan.dispatching == "boundary"  # it may be overtaken by a whole burst while it dispatches
        prompt = boundary or not self.deciders.decide(self.state)
        if core is not None and self.steps == last and self.version < last and home and prompt:
            yield self._publish

    def _gathered(self) -> bool:
        """Whether a packer may begin: without streaming a burst waits for all of its groups."""
        begins = not self.batch and self.steps % self.plan.mu == 0
        return self.plan.stream or not begins or len(self.waiting) >= self.plan.burst_groups(self.bursts)

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
            self.between = self.between and not (asked.cell == 0 and asked.to == "train")
            self.tell(completed(asked))
            self.tell(completed(asked))  # said twice: no effect
        else:
            self.mishaps -= 1
            self.tell(failed(asked))

    def _launch(self, execution: str) -> None:
        if execution in self.granted:
            self.granted.remove(execution)
        self.running.append(execution)
        self.tell(launched(execution))
        self.tell(launched(execution))

    def _terminate(self, execution: str) -> None:
        self.running.remove(execution)
        self.gone.add(execution)
        reason: dispatch.Reason = "completed"
        if execution in self.told_to_end:
            self.told_to_end.remove(execution)
            reason = "cancelled"
        self.tell(terminated(execution, reason, self.chance.random()))
        self.tell(terminated(execution))
        if reason == "cancelled":
            self._settle(execution, valid=False)
        elif self.plan.oversample:
            self.ungraded.append(execution)
        else:
            self._settle(execution, valid=True)

    def _grade(self, execution: str) -> None:
        self.ungraded.remove(execution)
        valid = self.chance.random() < 0.8
        if valid:
            self.tell(rewarded(execution))
            self.tell(rewarded(execution))
        self._settle(execution, valid=valid)

    def _settle(self, execution: str, *, valid: bool) -> None:
        group = execution.split("-", maxsplit=1)[0].replace("x", "g")
        self.valid[group] = self.valid.get(group, 0) + valid
        self.settled[group] = self.settled.get(group, 0) + 1
        enough = self.valid[group] >= self.plan.executions or self.settled[group] == self.plan.size
        if enough and group not in self.told_ready:
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
        self.staleness.append(self.steps - self.versions[group])
        self.tell(assigned(group, self.steps + 1))

    def _step(self) -> None:
        self.steps += 1
        self.batch = []
        self.between = self.steps == min((self.bursts + 1) * self.plan.mu, self.plan.steps)
        self.tell(stepped(self.steps))

    def _publish(self) -> None:
        self.version = self.steps
        self.left_over.append(self.groups - self.steps * self.plan.groups)
        self.tell(published(self.version))

    # The books --------------------------------------------------------------------------------------------------------

    def capacity_now(self) -> int:
        """C_R by our own count."""
        return self.capacity * sum(self.serves(index) for index in self.places)

    def serves(self, index: int) -> bool:
        """Whether this cell counts in C_R."""
        place = self.places.get(index)
        here = place is not None and place.role == "rollout" and not place.asked
        return here and index >= self.plan.trainers

    def waterlevel(self) -> int:
        return self.dispatched - len(self.gone)

    def _book(self, event: Event) -> None:  # noqa: C901 - one line for each word of the scheduler
        match event:
            case dispatch.GroupDispatched(group=group, version=version):
                self.groups += 1
                self.versions[group] = version
            case dispatch.ExecutionDispatched():
                self.dispatched += 1
            case dispatch.CancellationRequested(execution=execution):
                self.told_to_end.append(execution)
            case dispatch.LaunchGranted(execution=execution):
                self.granted.append(execution)
            case roles.RoleTransitionRequested(cell=cell):
                self.places[cell].asked = event
            case runs.TimerSet(timer=timer):
                self.timers.append(timer)
            case runs.EvaluationStarted():
                self.evaluating = event
            case training.BurstEnded(retained=retained, version=version):
                self.bursts += 1
                self.burst_version = version
                self.between = self.between and not retained
            case runs.RunFinished():
                self.finished = event

    def _invariants(self) -> None:
        counts = self.state.dispatch
        assert 0 <= counts.terminated <= counts.launched <= counts.dispatched
        assert counts.running == len(self.running)
        assert counts.dispatched <= self.plan.total_groups * self.plan.size
