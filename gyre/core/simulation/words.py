"""Events as the modelled outside says them: true where a decider or a timeline looks, filled in elsewhere."""

from schemas.base import pack_floats
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated, Reason
from schemas.refs import WeightsRef
from schemas.rewards import GroupReady, Outcome
from schemas.roles import CellRegistered
from schemas.runs import EvaluationScored, EvaluationStarted, RunStarted
from schemas.training import OptimizerStepped, Row, Segment, TrajectoriesAdmitted

DIGEST = "0" * 64
WEIGHTS = WeightsRef(digest=DIGEST, size=0, address="simulated")
TARGET = b"\x01"  # the one target of a micro-step
REWARD = 0.5


def instance(cell: int) -> str:
    """The instance that is this cell from the beginning to the end."""
    return f"cell-{cell}"


def run_started(tasks: tuple[str, ...], seed: int) -> RunStarted:
    """The run begins."""
    return RunStarted(
        config={},
        config_digest=DIGEST,
        seed=seed,
        code_version="simulated",
        weights=WEIGHTS,
        tasks=tasks,
        heldout=(),
    )


def registered(cell: int, capacity: int) -> CellRegistered:
    """A cell is there, in rollout."""
    return CellRegistered(cell=cell, instance=instance(cell), url="", capacity=capacity, version=0)


def launched(event: ExecutionDispatched, limit: float) -> ExecutionLaunched:
    """A dispatched execution starts; `limit` in seconds."""
    return ExecutionLaunched(
        execution=event.execution,
        group=event.group,
        runner="simulated",
        token_digest=DIGEST,
        deadline_seconds=limit,
    )


def terminated(event: ExecutionDispatched, reason: Reason, seconds: float) -> ExecutionTerminated:
    """A launched execution has ended after `seconds`."""
    return ExecutionTerminated(
        execution=event.execution,
        group=event.group,
        task=event.task,
        reason=reason,
        stage="closing" if reason == "completed" else "agent",
        exit_code=0,
        seconds=seconds,
        state=None,
    )


def carrier(index: int, place: int) -> str:
    """The execution in whose name the group's micro-step `place` reaches the packer."""
    return f"x{index}-{place}"


def ready(group: str, index: int, version: int, parts: int) -> GroupReady:
    """A group is closed and scored, with one outcome for each of its micro-steps."""
    outcomes = tuple(
        Outcome(execution=carrier(index, place), standing="valid", reward=REWARD) for place in range(parts)
    )
    return GroupReady(group=group, index=index, version=version, outcomes=outcomes)


def admitted(group: str, index: int, place: int, version: int, targets: int = len(TARGET)) -> TrajectoriesAdmitted:
    """What one of the group's micro-steps trains: one target, so that each execution is one micro-step."""
    return TrajectoriesAdmitted(
        execution=carrier(index, place),
        group=group,
        version=version,
        advantage=1.0,
        targets=targets,
        seed=0,
        trajectories=(),
    )


def row(execution: str) -> Row:
    """The training input of one micro-step."""
    segment = Segment(execution=execution, leaf="leaf", ids=b"", target=TARGET, logprobs=b"", advantage=1.0, weight=1.0)
    return Row(segments=(segment,))


def stepped(step: int, seconds: float) -> OptimizerStepped:
    """An update is durable."""
    return OptimizerStepped(
        step=step,
        version=step,
        weights=WEIGHTS,
        optimizer=WEIGHTS,
        loss=0.0,
        gradient_norm=0.0,
        clip_coefficient=1.0,
        learning_rate=1.0,
        seconds=seconds,
    )


def scored(event: EvaluationStarted, seconds: float) -> EvaluationScored:
    """An evaluation has ended after `seconds`."""
    scores = pack_floats([0.0] * event.episodes)
    return EvaluationScored(
        evaluation=event.evaluation,
        version=event.version,
        scores=scores,
        mean=0.0,
        valid=event.episodes,
        seconds=seconds,
    )
