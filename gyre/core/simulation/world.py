"""One run in virtual time: the log, the scheduler's and the packer's deciders, and everything that answers them.

Whatever is said is folded by both deciders at once and then answered; after each deed, what is due is said until
nothing is. So the deciders see a log in which nobody is ever late, and decide by the same rules as in a real run.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from gyre.core import batch_state
from gyre.core.decider import Decider
from gyre.core.roles import satellites_home
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler, burst_done, folds
from gyre.core.simulation.agenda import Agenda, SimulationStuck
from gyre.core.simulation.fleet import Fleet
from gyre.core.simulation.outcome import Outcome
from gyre.core.simulation.setting import Setting
from gyre.core.simulation.training import Training
from gyre.core.simulation.words import WEIGHTS, instance, registered, run_started, scored
from gyre.core.simulation.workload import Workload
from schemas.envelope import Event
from schemas.roles import RoleTransitionCompleted, RoleTransitionRequested
from schemas.runs import EvaluationScored, EvaluationStarted, RunFinished, TimerFired, TimerSet
from schemas.training import GroupAssigned, OptimizerStepped, WeightsPublished

Watch = Callable[[float, Event], None]
"""Told of each event with its virtual seconds."""


def simulate(setting: Setting, workload: Workload, watch: Watch | None = None) -> Outcome:
    """See a run through.

    Args:
        setting: the schedule and its hardware.
        workload: its executions; one that draws at random brings a seeded generator.
        watch: told of every event, in order; with it a picture can be drawn (`gyre.core.timeline_fold`).

    Raises:
        SimulationStuck: the schedule can never end, such as one whose cells have too little room.
    """
    return World(setting, workload, watch).run()


class World:
    """Everything, at one virtual moment."""

    def __init__(self, setting: Setting, workload: Workload, watch: Watch | None) -> None:
        """Before RunStarted."""
        self._setting, self._watch = setting, watch
        self._decider: Decider[Scheduler] = scheduler(setting.plan)
        self._folds = folds(setting.plan)
        self._state = self._decider.initial
        self._settled: Scheduler | None = None
        """The state in which nothing was due."""
        self._resting = False
        """Whether the scheduler is still at its latest commit."""
        self._sequence = 0
        self._updates: list[float] = []
        self._staleness: list[int] = []
        self._finished: RunFinished | None = None
        self._publishing = 0
        """The latest version whose publication has begun."""
        self.agenda = Agenda()
        self._training = Training(setting, self.agenda, self.tell)
        self._fleet = Fleet(setting, workload, self.agenda, self.tell, self._training.admit, watched=watch is not None)
        self._reactions: dict[type[Any], list[Callable[[Any], None]]] = defaultdict(list)
        own: dict[type[Any], Callable[[Any], None]] = {
            RoleTransitionRequested: self._move,
            TimerSet: self._set,
            EvaluationStarted: self._evaluate,
            EvaluationScored: lambda _: self._publish_if_home(),
            GroupAssigned: self._assigned,
            OptimizerStepped: self._stepped,
            RunFinished: self._finish,
        }
        for reactions in (own, self._fleet.reactions, self._training.reactions):
            for kind, reaction in reactions.items():
                self._reactions[kind].append(reaction)

    @property
    def events(self) -> int:
        """Said so far."""
        return self._sequence

    def run(self) -> Outcome:
        """From RunStarted to RunFinished."""
        plan = self._setting.plan
        self.tell(run_started(plan.tasks, plan.seed))
        for cell in range(plan.cells + plan.standalone):
            self.tell(registered(cell, self._setting.capacity_of(cell)))
        self._settle()
        while self._finished is None:
            if not self.agenda.proceed():
                raise SimulationStuck(self._stuck())
            self._settle()
        return Outcome(
            updates=tuple(self._updates),
            staleness=tuple(self._staleness),
            executions=self._finished.terminated,
            transitions=self._state.cells.requested,
            seconds=self.agenda.now,
        )

    def tell(self, event: Event) -> int:
        """This is said now: everyone folds it, then those whom it concerns act. Gives its sequence."""
        self._sequence = sequence = self._sequence + 1
        kind = type(event)
        if kind in self._folds:
            self._state = self._decider.evolve(self._state, sequence, event)
        if kind in batch_state.FOLDS:
            self._training.evolve(sequence, event)
        if self._watch is not None:
            self._watch(self.agenda.now, event)
        for reaction in self._reactions.get(kind, ()):
            reaction(event)
        return sequence

    def _settle(self) -> None:
        """Say what is due until nothing is, or until the scheduler has to rest; then the engines know their load."""
        while True:
            events = () if self._resting else self._due()
            if events and self._setting.timings.commit > 0.0:
                self._resting = True
                self.agenda.after(self._setting.timings.commit, self._rested)
            events = events or self._training.due()
            for event in events:
                self.tell(event)
            if not events and not self._training.claim():
                break
        self._fleet.settle()

    def _rested(self) -> None:
        self._resting = False

    def _due(self) -> tuple[Event, ...]:
        if self._state is self._settled:
            return ()
        decisions = self._decider.decide(self._state)
        if not decisions:
            self._settled = self._state
        return decisions[0].events if decisions else ()

    def _move(self, event: RoleTransitionRequested) -> None:
        timings = self._setting.timings
        self._fleet.close(event.cell)
        self.agenda.after(timings.to_train if event.to == "train" else timings.to_rollout, self._moved, event)

    def _moved(self, event: RoleTransitionRequested) -> None:
        completed = RoleTransitionCompleted(
            transition=event.transition,
            cell=event.cell,
            instance=instance(event.cell),
            to=event.to,
            version=self._state.version,
        )
        if event.to == "rollout":
            self._fleet.open(event.cell)
        self.tell(completed)
        self._publish_if_home()

    def _assigned(self, event: GroupAssigned) -> None:
        self._staleness.append(event.staleness)

    def _stepped(self, _: OptimizerStepped) -> None:
        self._updates.append(self.agenda.now)
        self._publish_if_home()

    def _publish_if_home(self) -> None:
        """After a burst's last update the core publishes, once every satellite that does not train for good serves.

        Not while an evaluation is open: it measures one policy.
        """
        plan, state = self._setting.plan, self._state
        if state.evaluating or not burst_done(plan, state) or self._publishing == state.steps:
            return
        if plan.kind == "async" or satellites_home(state.cells, plan.cells):
            self._publishing = state.steps
            self.agenda.after(self._setting.timings.publication, self._publish, state.steps)

    def _publish(self, version: int) -> None:
        seconds = self._setting.timings.publication
        self.tell(WeightsPublished(version=version, weights=WEIGHTS, seconds=seconds))

    def _set(self, event: TimerSet) -> None:
        self.agenda.after(event.seconds, self.tell, TimerFired(timer=event.timer))

    def _evaluate(self, event: EvaluationStarted) -> None:
        seconds = self._setting.timings.evaluation
        self.agenda.after(seconds, self.tell, scored(event, seconds))

    def _finish(self, event: RunFinished) -> None:
        self._finished = event

    def _stuck(self) -> str:
        counts = self._state.dispatch
        return (
            f"after {self.agenda.now:.0f} simulated seconds nothing can happen any more: {self._state.steps} of "
            f"{self._setting.plan.steps} steps done, {counts.dispatched} dispatched, {counts.launched} launched, "
            f"{counts.terminated} terminated; give the cells more room or the schedule a lower rho_min"
        )
