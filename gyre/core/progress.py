"""How far a run has come: the fold behind the live display, `gyre status` and the closing summary."""

from dataclasses import dataclass, field, replace
from statistics import fmean

from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.rewards import GroupReady
from schemas.roles import CellLost, CellRegistered, RoleTransitionCompleted, RoleTransitionRequested
from schemas.runs import EvaluationScored, EvaluationStarted, RunFinished
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
    StepAborted,
    StreamClosed,
    WeightsPublished,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, as far as it has come."""

    step: int
    opened: int
    """UTC, ns."""
    rewards: tuple[float, ...] = ()
    """Mean reward of each group in it that has a reward."""
    staleness: tuple[int, ...] = ()
    """v_t - v_d of each group in it."""
    enqueued: int = 0
    """Training micro-steps queued."""
    completed: frozenset[int] = frozenset()
    committed: int = 0
    """Training micro-steps in the reduction that was applied."""
    members: int = 1
    closed: bool = False
    seconds: float = 0.0
    """From BatchOpened to OptimizerStepped."""
    loss: float = 0.0
    gradient_norm: float = 0.0
    max_delta_log_p: float = 0.0
    """nats"""
    targets: int = 0
    masked: int = 0
    """Executions with m_i = 0."""
    executions: int = 0

    @property
    def reward(self) -> float | None:
        """Mean over its groups."""
        return fmean(self.rewards) if self.rewards else None


@dataclass(frozen=True, slots=True)
class Progress:
    """A run so far."""

    dispatched: int = 0
    launched: int = 0
    terminated: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Termination reason -> executions."""
    published: int = 0
    roles: dict[int, str] = field(default_factory=dict)
    """Cell -> rollout, train, moving or lost."""
    steps: tuple[Step, ...] = ()
    ready: dict[str, tuple[float | None, int]] = field(default_factory=dict)
    """Ready, unassigned group -> (mean reward, valid executions)."""
    valid: int = 0
    scored: int = 0
    evaluating: str = ""
    evaluations: tuple[tuple[int, float, int], ...] = ()
    """(version, mean, valid episodes) of each evaluation."""
    finished: bool = False
    aborted: str = ""
    first: int = 0
    last: int = 0
    """UTC, ns, of the first and the latest commit."""

    @property
    def waterlevel(self) -> int:
        """w = d - f"""
        return self.dispatched - self.terminated

    @property
    def done(self) -> tuple[Step, ...]:
        """Steps whose update is durable."""
        return tuple(step for step in self.steps if step.seconds > 0)

    @property
    def seconds(self) -> float:
        """From the first commit to the latest."""
        return (self.last - self.first) / 1e9


def evolve(state: Progress, time: int, event: Event) -> Progress:
    """Fold one event; `time` is its commit's (UTC, ns)."""
    state = replace(state, first=state.first or time, last=max(state.last, time))
    match event:
        case ExecutionDispatched():
            return replace(state, dispatched=state.dispatched + 1)
        case ExecutionLaunched():
            return replace(state, launched=state.launched + 1)
        case ExecutionTerminated(reason=reason):
            reasons = state.reasons | {reason: state.reasons.get(reason, 0) + 1}
            return replace(state, terminated=state.terminated + 1, reasons=reasons)
        case CellRegistered(cell=cell):
            return replace(state, roles=state.roles | {cell: "rollout"})
        case CellLost(cell=cell):
            return replace(state, roles=state.roles | {cell: "lost"})
        case RoleTransitionRequested(cell=cell):
            return replace(state, roles=state.roles | {cell: "moving"})
        case RoleTransitionCompleted(cell=cell, to=to):
            return replace(state, roles=state.roles | {cell: to})
        case WeightsPublished(version=version):
            return replace(state, published=version)
        case EvaluationStarted(evaluation=evaluation):
            return replace(state, evaluating=evaluation)
        case EvaluationScored(version=version, mean=mean, valid=valid):
            return replace(state, evaluating="", evaluations=(*state.evaluations, (version, mean, valid)))
        case RunFinished():
            return replace(state, finished=True)
        case StepAborted(reason=reason, step=step):
            return replace(state, aborted=f"step {step}: {reason}")
        case GroupReady():
            return _ready(state, event)
    return _training(state, time, event)


def _ready(state: Progress, event: GroupReady) -> Progress:
    rewards = [each.reward for each in event.outcomes if each.reward is not None]
    mean = fmean(rewards) if rewards else None
    scored = state.scored + len(event.outcomes)
    return replace(
        state,
        ready=state.ready | {event.group: (mean, len(rewards))},
        valid=state.valid + len(rewards),
        scored=scored,
    )


def _training(state: Progress, time: int, event: Event) -> Progress:
    if isinstance(event, BatchOpened):
        return replace(state, steps=(*state.steps, Step(event.step, time)))
    if not state.steps:
        return state
    step = state.steps[-1]
    match event:
        case GroupAssigned(group=group, staleness=staleness):
            mean, _ = state.ready.get(group, (None, 0))
            rewards = step.rewards if mean is None else (*step.rewards, mean)
            ready = {key: value for key, value in state.ready.items() if key != group}
            state = replace(state, ready=ready)
            step = replace(step, rewards=rewards, staleness=(*step.staleness, staleness))
        case MicroStepEnqueued(kind="train"):
            step = replace(step, enqueued=step.enqueued + 1)
        case StreamClosed():
            step = replace(step, closed=True)
        case MicroStepCompleted():
            step = _completed(step, event)
        case ReductionOpened(contributions=contributions, members=members):
            step = replace(step, committed=len(contributions), members=len(members))
        case OptimizerStepped(loss=loss, gradient_norm=norm):
            step = replace(step, seconds=(time - step.opened) / 1e9, loss=loss, gradient_norm=norm)
        case _:
            return state
    return replace(state, steps=(*state.steps[:-1], step))


def _completed(step: Step, event: MicroStepCompleted) -> Step:
    if event.micro_step in step.completed:
        return step
    return replace(
        step,
        completed=step.completed | {event.micro_step},
        max_delta_log_p=max([step.max_delta_log_p, *(each.max_delta_log_p for each in event.stats)]),
        targets=step.targets + sum(each.targets for each in event.stats),
        masked=step.masked + sum(1 - each.mask for each in event.stats),
        executions=step.executions + len(event.stats),
    )
