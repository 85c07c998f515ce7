"""The fold behind a trace: (seconds, event) pairs, in the order of the log."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gyre.core.routes import Routes
from gyre.core.routes import evolve as evolve_routes
from gyre.core.simulation.trace import Measure, MicroStep, Recorded, Trace
from schemas.dispatch import (
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupDispatched,
    LaunchGranted,
)
from schemas.envelope import Event
from schemas.rewards import RewardAssigned, RewardUnresolved
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    StreamClosed,
    TrajectoriesAdmitted,
    WeightsPublished,
)


def trace(pairs: Iterable[tuple[float, Event]]) -> Trace:
    """The trace of a log."""
    fold = TraceFold()
    for seconds, event in pairs:
        fold.add(seconds, event)
    return fold.trace()


@dataclass(slots=True)
class _Execution:
    group: int
    index: int
    granted: float = 0.0
    launched: float = 0.0
    ended: float = -1.0
    scored: float = 0.0


class TraceFold:
    """Takes pairs one by one; what is about an execution or a group that was never dispatched changes nothing."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._zero: float | None = None
        self._now = 0.0
        self._began: float | None = None
        self._groups: dict[str, int] = {}
        self._executions: dict[str, _Execution] = {}
        self._scored: dict[int, float] = {}
        """Group -> its latest score."""
        self._admitted: dict[str, float] = {}
        """Group -> its latest admission."""
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._sizes: dict[int, int] = {}
        """Micro-step of this step -> its tokens."""
        self._queued: dict[int, float] = {}
        self._claimed: dict[int, float] = {}
        self._free: dict[int, float] = {}
        """Cell -> its latest completion in this step."""
        self._trained = 0.0
        """The latest completion, or the closing of the stream."""
        self._home = 0.0
        """The latest update, or a satellite's return after it."""
        self._asked: dict[str, float] = {}
        self._evaluating = 0.0
        self._said = 0.0
        """The latest commit about a group that is being dispatched."""
        self._routes = Routes()
        """Which cells serve, as a proxy has it."""
        self._running = 0
        self._loads: list[tuple[float, float]] = []
        self._micro_steps: list[MicroStep] = []
        self._measured: dict[Measure, list[tuple[float, float]]] = defaultdict(list)
        self._updates: list[float] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            **self._of_executions(),
            **self._of_training(),
            CellRegistered: self._serve,
            CellLost: self._serve,
            RoleTransitionRequested: self._ask,
            RoleTransitionCompleted: self._arrive,
            RoleTransitionFailed: self._fail,
            EvaluationStarted: self._evaluate,
            EvaluationScored: self._evaluated,
        }

    def _of_executions(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            GroupDispatched: self._group,
            ExecutionDispatched: self._dispatch,
            LaunchGranted: self._grant,
            ExecutionLaunched: self._launch,
            ExecutionTerminated: self._end,
            RewardAssigned: self._score,
            RewardUnresolved: self._score,
            TrajectoriesAdmitted: self._admit,
            GroupAssigned: self._assign,
        }

    def _of_training(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            BatchOpened: self._open,
            MicroStepEnqueued: self._enqueue,
            MicroStepClaimed: self._claim,
            MicroStepCompleted: self._complete,
            StreamClosed: self._close,
            OptimizerStepped: self._update,
            WeightsPublished: self._publish,
        }

    def add(self, seconds: float, event: Event) -> None:
        """One event, at seconds on any one clock; the first one's time is the trace's zero."""
        if self._zero is None:
            self._zero = seconds
        self._now = max(self._now, seconds - self._zero)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def trace(self) -> Trace:
        """All so far."""
        ended = (each for each in self._executions.values() if each.ended >= 0.0)
        return Trace(
            zero=self._zero or 0.0,
            began=self._began or 0.0,
            groups=len(self._groups),
            executions={
                (each.group, each.index): Recorded(each.launched, each.ended, max(each.ended, each.scored))
                for each in ended
            },
            tokens={group: tuple(tokens) for group, tokens in self._tokens.items()},
            micro_steps=tuple(self._micro_steps),
            measured={what: tuple(values) for what, values in self._measured.items()},
            loads=tuple(self._loads),
            updates=tuple(self._updates),
        )

    def _took(self, what: Measure, seconds: float) -> None:
        self._measured[what].append((self._now, max(0.0, seconds)))

    def _load(self, change: int = 0) -> None:
        self._running += change
        places = sum(cell.capacity for cell in self._routes.cells.values() if cell.serving)
        self._loads.append((self._now, self._running / places if places else 1.0))

    def _group(self, event: GroupDispatched) -> None:
        self._groups[event.group] = event.index
        self._said = self._now

    def _dispatch(self, event: ExecutionDispatched) -> None:
        if (group := self._groups.get(event.group)) is None:
            return
        self._executions[event.execution] = _Execution(group, event.index)
        self._took("commit", self._now - self._said)  # it was due as soon as the one before was said
        self._said = self._now

    def _grant(self, event: LaunchGranted) -> None:
        self._begin()
        if (execution := self._executions.get(event.execution)) is not None:
            execution.granted = self._now

    def _launch(self, event: ExecutionLaunched) -> None:
        if (execution := self._executions.get(event.execution)) is not None:
            execution.launched = self._now
            self._took("launch", self._now - execution.granted)
            self._load(1)

    def _end(self, event: ExecutionTerminated) -> None:
        execution = self._executions.get(event.execution)
        if execution is not None and execution.ended < 0.0:
            execution.ended = self._now
            self._load(-1)

    def _score(self, event: RewardAssigned | RewardUnresolved) -> None:
        if (execution := self._executions.get(event.execution)) is not None:
            execution.scored = self._scored[execution.group] = self._now

    def _admit(self, event: TrajectoriesAdmitted) -> None:
        self._admitted[event.group] = self._now

    def _assign(self, event: GroupAssigned) -> None:
        scored = self._scored.get(self._groups.get(event.group, -1))
        admitted = self._admitted.pop(event.group, None)
        if scored is not None and admitted is not None:
            self._took("admission", admitted - scored)

    def _open(self, _: BatchOpened) -> None:
        self._sizes, self._queued, self._claimed, self._free = {}, {}, {}, {}

    def _enqueue(self, event: MicroStepEnqueued) -> None:
        first = next((segment.execution for row in event.rows for segment in row.segments), "")
        execution = self._executions.get(first)
        self._sizes[event.micro_step] = event.tokens
        self._queued[event.micro_step] = self._now
        if execution is not None:
            self._tokens[execution.group].append(event.tokens)

    def _claim(self, event: MicroStepClaimed) -> None:
        self._claimed[event.micro_step] = self._now
        free = self._free.get(event.cell)
        queued = self._queued.get(event.micro_step, self._now)
        if free is not None and queued <= free:  # it could have gone on at once
            self._took("claim", self._now - free)

    def _complete(self, event: MicroStepCompleted) -> None:
        self._free[event.cell] = self._trained = self._now
        claimed, tokens = self._claimed.get(event.micro_step), self._sizes.get(event.micro_step)
        if claimed is not None and tokens is not None:
            # In a pipeline others are in hand from a claim to its completion.
            seconds = self._now - claimed if event.passage is None else event.seconds
            self._micro_steps.append(MicroStep(self._now, tokens, seconds))

    def _close(self, _: StreamClosed) -> None:
        self._trained = self._now

    def _update(self, _: OptimizerStepped) -> None:
        self._took("update", self._now - self._trained)
        self._updates.append(self._now)
        self._home = self._now

    def _publish(self, _: WeightsPublished) -> None:
        self._took("publication", self._now - self._home)

    def _serve(self, event: Event) -> None:
        routes = evolve_routes(self._routes, event)
        if routes is not self._routes:  # a late word about a process that was replaced moves nothing
            self._routes = routes
            self._load()

    def _ask(self, event: RoleTransitionRequested) -> None:
        self._asked[event.transition] = self._now
        self._serve(event)

    def _arrive(self, event: RoleTransitionCompleted) -> None:
        asked = self._asked.pop(event.transition, self._now)
        self._took("to_train" if event.to == "train" else "to_rollout", self._now - asked)
        if event.to == "rollout":
            self._home = self._now
        self._serve(event)

    def _fail(self, event: RoleTransitionFailed) -> None:
        self._asked.pop(event.transition, None)
        self._serve(event)

    def _evaluate(self, _: EvaluationStarted) -> None:
        self._begin()
        self._evaluating = self._now

    def _evaluated(self, _: EvaluationScored) -> None:
        self._took("evaluation", self._now - self._evaluating)

    def _begin(self) -> None:
        if self._began is None:
            self._began = self._now
